import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics

from director.runtime.metric_table import Kind, Metric
from director.runtime.metrics import Counter, Histogram, Series, Summary

BOUNDS = (0.005, 0.1, 1.0, 2.5, 60.0)
VALUES = (0.0, 0.005, 0.0050001, 0.1, 1, 2.5, 2.6, 60, 1e9)
ROWS = [("acme/a", 1), ('a"b\\c\nd é', "x"), ("", "")]


def row(name: str, kind: Kind, labels: tuple[str, ...] = ("queue", "kind")) -> Metric:
    return Metric(name, kind, (), "What.", labels, BOUNDS)


@pytest.fixture(autouse=True)
def without_created() -> None:
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


def pages(registry: CollectorRegistry) -> list[str]:
    return [generate_latest(registry).decode(), generate_open_metrics(registry).decode()]  # type: ignore[no-untyped-call]


def test_the_page_is_the_one_of_prometheus_client() -> None:
    labels = ("queue", "kind")
    theirs, ours = CollectorRegistry(auto_describe=False), CollectorRegistry(auto_describe=False)
    their_runs = prometheus_client.Counter("runs_total", "What.", labels, registry=theirs)
    their_calls = prometheus_client.Summary("call_seconds", "What.", labels, registry=theirs)
    their_waits = prometheus_client.Histogram("wait_seconds", "What.", labels, buckets=BOUNDS, registry=theirs)
    their_lag = prometheus_client.Histogram("lag_seconds", "What.", buckets=BOUNDS, registry=theirs)
    runs, calls = Series(row("runs_total", "counter"), Counter), Series(row("call_seconds", "summary"), Summary)
    waits = Series(row("wait_seconds", "histogram"), Histogram)
    lag = Series(row("lag_seconds", "histogram", ()), Histogram)
    for series in (runs, calls, waits, lag):
        ours.register(series)
    assert pages(ours) == pages(theirs)  # of each its name and type, and zeros of one without labels
    for values in ROWS:
        for counter in (runs.labels(*values), their_runs.labels(*values)):
            counter.inc()
            counter.inc(0.25)
        for value in VALUES:
            calls.labels(*values).observe(value)
            waits.labels(*values).observe(value)
            lag.labels().observe(value)
            their_calls.labels(*values).observe(value)
            their_waits.labels(*values).observe(value)
            their_lag.observe(value)
    assert pages(ours) == pages(theirs)


def test_removed_row_starts_at_zero_and_others_stay() -> None:
    registry = CollectorRegistry()
    runs = Series(row("runs_total", "counter"), Counter)
    registry.register(runs)
    for queue in ("a", "b"):
        for kind in ("x", "y"):
            runs.labels(queue, kind).inc(3)
    runs.remove("queue", "a")
    assert runs.labels("a", "x").value == 0
    shown = {tuple(sample.labels.values()): sample.value for family in registry.collect() for sample in family.samples}
    assert shown == {("a", "x"): 0, ("b", "x"): 3, ("b", "y"): 3}


def test_a_row_has_a_value_for_each_label() -> None:
    for values in ((), ("a",), ("a", "b", "c")):
        with pytest.raises(ValueError, match="are not"):
            Series(row("runs_total", "counter"), Counter).labels(*values)
