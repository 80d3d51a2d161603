"""What is counted in plain numbers is shown as prometheus_client shows its own."""

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics

from director.runtime.metrics import counters, histograms, summaries

BOUNDS = (0.005, 0.1, 1.0, 2.5, 60.0)
VALUES = (0.0, 0.005, 0.0050001, 0.1, 1, 2.5, 2.6, 60, 1e9)
ROWS = [("acme/a", 1), ('a"b\\c\nd é', "x"), ("", "")]


@pytest.fixture(autouse=True)
def without_created() -> None:
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


def pages(registry: CollectorRegistry) -> list[str]:
    return [generate_latest(registry).decode(), generate_open_metrics(registry).decode()]  # type: ignore[no-untyped-call]


def test_the_page_is_the_one_of_prometheus_client() -> None:
    labels = ("queue", "kind")
    theirs, ours = CollectorRegistry(auto_describe=False), CollectorRegistry(auto_describe=False)
    their_runs = prometheus_client.Counter("runs_total", "Runs.", labels, registry=theirs)
    their_calls = prometheus_client.Summary("call_seconds", "Calls.", labels, registry=theirs)
    their_waits = prometheus_client.Histogram("wait_seconds", "Waits.", labels, buckets=BOUNDS, registry=theirs)
    their_lag = prometheus_client.Histogram("lag_seconds", "Lag.", buckets=BOUNDS, registry=theirs)
    runs, calls = counters("runs_total", "Runs.", labels), summaries("call_seconds", "Calls.", labels)
    waits = histograms("wait_seconds", "Waits.", labels, BOUNDS)
    lag = histograms("lag_seconds", "Lag.", (), BOUNDS)
    for series in (runs, calls, waits, lag):
        ours.register(series)
    assert pages(ours) == pages(theirs)  # of each its name and type, and zeros of one without labels
    for row in ROWS:
        for counter in (runs.labels(*row), their_runs.labels(*row)):
            counter.inc()
            counter.inc(0.25)
        for value in VALUES:
            calls.labels(*row).observe(value)
            waits.labels(*row).observe(value)
            lag.labels().observe(value)
            their_calls.labels(*row).observe(value)
            their_waits.labels(*row).observe(value)
            their_lag.observe(value)
    assert pages(ours) == pages(theirs)


def test_a_row_that_is_removed_begins_anew_and_the_others_stay() -> None:
    registry = CollectorRegistry()
    runs = counters("runs_total", "Runs.", ("queue", "kind"))
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
            counters("runs_total", "Runs.", ("queue", "kind")).labels(*values)
