import re
from typing import get_args

import anyio
import pytest

from director.broker.replies import QueueStats
from director.core.ids import QueueName
from director.keeper.metrics import OF_QUEUES, QueueReading, families, fold
from director.runtime.metric_table import METRICS, OTHER, Metric, Process, QueueNames
from director.runtime.metrics import OPEN_METRICS, PLAIN, RedisMeter, Registry

LABELS = {
    *(
        "account",
        "attempt",
        "became",
        "code",
        "device",
        "error",
        "how",
        "kind",
        "lane",
        "limit",
        "method",
        "ok",
        "outcome",
        "step",
        "which",
    ),
    *("process", "queue", "repair", "route", "script", "side", "site", "state", "status", "version", "window"),
}


def stats(**given: int) -> QueueStats:
    """Return the statistics of an empty queue with these values."""
    nothing = dict.fromkeys(QueueStats.__struct_fields__, 0)
    return QueueStats(
        **{
            **nothing,
            "mode": "absorb",
            "max_queued": None,
            "breaker": "",
            "tally": {},
            "objectives": {},
            "closed": (0, 0, 0),
        }
        | given
    )  # type: ignore[arg-type]


def queues(count: int) -> list[QueueName]:
    return [QueueName(f"acme/m{number:04d}:0123456789ab") for number in range(count)]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_named_as_prometheus_wants_it(metric: Metric) -> None:
    assert re.fullmatch(r"director_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") is (metric.kind == "counter")
    if metric.kind in ("histogram", "summary"):
        assert metric.name.endswith("_seconds")
    assert bool(metric.buckets) is (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(metric.buckets)
    assert set(metric.labels) <= LABELS
    assert metric.what.endswith(".")
    assert set(metric.by) <= set(get_args(Process))


def test_no_two_metrics_have_one_name() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_registry_makes_each_row_of_its_process_once() -> None:
    registry = Registry("api")
    registry.counter("director_api_refusals_total")
    with pytest.raises(ValueError, match="there already"):
        registry.counter("director_api_refusals_total")
    with pytest.raises(ValueError, match="is a counter of"):
        registry.counter("director_starts_total")
    with pytest.raises(ValueError, match="is a counter of"):
        registry.gauge("director_api_accepted_total")


async def test_a_page_is_text_or_openmetrics_for_who_accepts_that() -> None:
    registry = Registry("keeper")
    registry.counter("director_repaired_total").labels("placed").inc()
    text, kind = await registry.page("text/plain;version=0.0.4")
    assert kind == PLAIN
    assert b'director_repaired_total{repair="placed"} 1.0\n' in text
    assert b"_created" not in text
    text, kind = await registry.page("application/openmetrics-text;version=nonsense, */*")
    assert kind == OPEN_METRICS
    assert text.endswith(b"# EOF\n")
    assert b'director_repaired_total{repair="placed"} 1.0\n' in text


async def test_a_crowd_of_scrapes_is_written_once() -> None:
    registry, asked = Registry("keeper"), []
    registry.gauge("director_state_age_seconds").set_function(lambda: asked.append(1) or 1.0)
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(registry.page, "")
    assert len(asked) == 1


def test_so_many_queues_are_named_and_none_counts_backwards() -> None:
    gone: list[str] = []
    names = QueueNames(2, on_gone=gone.append)
    first, second, third, fourth = queues(4)
    assert [names.of(queue) for queue in (first, second, third, first)] == [first, second, OTHER, first]
    names.keep([second, third])
    assert gone == [first]
    assert names.of(third) == OTHER, "what was counted there stays there"
    assert names.of(fourth) == fourth


def test_what_is_counted_of_a_queue_goes_with_it() -> None:
    registry = Registry("keeper")
    counter = registry.counter("director_promoted_total")
    names = QueueNames(10, on_gone=registry.forget)
    gone, kept = queues(2)
    for queue in (gone, kept):
        counter.labels(names.of(queue)).inc()
    names.keep([kept])
    assert [sample.labels["queue"] for family in counter.collect() for sample in family.samples] == [kept]


def test_two_thousand_queues_are_five_hundred_and_the_rest() -> None:
    names = QueueNames(500)
    seen = {
        queue: QueueReading(stats(normal=1, live=number, oldest_ms=1000 * number))
        for number, queue in enumerate(queues(2000))
    }
    state = fold(seen, names, {"director_queues": 2000})
    for name in OF_QUEUES.keys() - {"director_queue_tenants", "director_queue_largest_share"}:
        assert len(state[name]) == 501
    waiting, oldest = state["director_queue_waiting"], state["director_queue_oldest_seconds"]
    assert len(waiting) == 3 * 501
    assert waiting[OTHER, "normal"] == 1500
    assert sum(waiting.values()) == 2000
    assert (queues(2000)[-1],) in oldest, "those with the most work have their names"
    assert oldest[(OTHER,)] == 1499
    assert sum(len(family.samples) for family in families(state)) == 501 * (4 * 3 + len(OF_QUEUES) - 2) + 1


def test_what_is_not_known_of_a_queue_is_not_shown() -> None:
    one, two = queues(2)
    state = fold(
        {one: QueueReading(stats(normal=30, delayed=10), 2, 39), two: QueueReading(stats())}, QueueNames(9), {}
    )
    assert state["director_queue_largest_share"] == {(one,): 39 / 40}
    assert state["director_queue_tenants"] == {(one,): 2}
    assert list(families(None)) == []


def samples(registry: Registry) -> dict[tuple[str, ...], float]:
    found = [sample for family in registry.families() for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in found}


def test_last_call_decides_whether_redis_is_up() -> None:
    registry = Registry("keeper")
    meter = RedisMeter(registry)
    meter.note_answer(0.002, ["claim", "claim", "extend"])
    found = samples(registry)
    assert found["director_redis_up",] == 1
    assert found["director_redis_call_seconds_count", "claim"] == 2
    assert found["director_redis_call_seconds_sum", "extend"] == 0.002
    assert found["director_redis_round_trip_seconds_count",] == 1
    meter.note_failure(ConnectionError("redis://user:secret@host"))
    meter.note_failure(LookupError("a fault of ours"))
    found = samples(registry)
    assert found["director_redis_up",] == 0
    assert found["director_redis_errors_total", "ConnectionError"] == 1
    assert found["director_redis_errors_total", "other"] == 1
