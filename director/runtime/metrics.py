"""Count what a process does as plain numbers, and write them as a page for Prometheus at a scrape.

Each process has a registry of its own. A page is written in a thread and at most once a second, so that no scrape
delays the loop. prometheus_client takes a lock for each number: what one run changes (six histograms, three counters)
takes 69,500 instructions there and 15,000 here, and the director's whole run takes 577,000. Only the thread of the loop
changes these numbers.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, Generic, NoReturn, TypeVar

import anyio
from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import INF, floatToGoString
from redis import exceptions
from redis.asyncio import Redis

from director import __version__
from director.broker.redis_client import AWAY, ping
from director.runtime.metric_table import METRICS, OTHER, Metric, Process

PLAIN: Final = CONTENT_TYPE_PLAIN_0_0_4
OPEN_METRICS: Final = openmetrics.CONTENT_TYPE_LATEST
AGAIN_S: Final = 1.0
TURN_S: Final = 0.5
TURNS_PER_PING: Final = 10
# the only errors with a label of their own; all others are counted together
KINDS: Final = frozenset(error.__name__ for error in AWAY)
OUTCOMES: Final = ("delivered", "failed", "gone", "refused", "given_up")


class Counter:
    __slots__ = ("value",)

    def __init__(self, _: Metric) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        self.value += amount

    def shown(self) -> tuple[float]:
        return (self.value,)


class Summary:
    __slots__ = ("count", "sum")

    def __init__(self, _: Metric) -> None:
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.count += 1
        self.sum += value

    def shown(self) -> tuple[int, float]:
        return self.count, self.sum


class Histogram:
    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, row: Metric) -> None:
        self._bounds = row.buckets
        self.counts = [0] * (len(row.buckets) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def shown(self) -> tuple[list[tuple[str, int]], float]:
        return list(zip(_names(self._bounds), accumulate(self.counts), strict=True)), self.sum


@lru_cache
def _names(bounds: tuple[float, ...]) -> list[str]:
    return [floatToGoString(bound) for bound in (*bounds, INF)]  # type: ignore[no-untyped-call]


FAMILIES: Final[Mapping[str, Any]] = {
    "counter": CounterMetricFamily,
    "summary": SummaryMetricFamily,
    "histogram": HistogramMetricFamily,
}
Child = TypeVar("Child", Counter, Summary, Histogram)
Labels = tuple[str, ...]


class Series(Collector, Generic[Child]):
    """All series of one metric: a child for each row of label values. A metric without labels has its child at once."""

    def __init__(self, row: Metric, child: type[Child]) -> None:
        self.row: Final = row
        self._make: Callable[[Metric], Child] = child
        self._children: dict[Labels, Child] = {}
        if not row.labels:
            self.labels()

    def labels(self, *values: object) -> Child:
        if len(values) != len(self.row.labels):
            raise ValueError(f"{values} are not {self.row.labels}")
        row = tuple(map(str, values))
        if row not in self._children:
            self._children[row] = self._make(self.row)
        return self._children[row]

    def remove(self, label: str, value: str) -> None:
        at = self.row.labels.index(label)
        for row in [row for row in self._children if row[at] == value]:
            del self._children[row]

    def collect(self) -> Iterable[Family]:
        family = FAMILIES[self.row.kind](self.row.name, self.row.what, labels=self.row.labels)
        for values, child in dict(self._children).items():
            family.add_metric(values, *child.shown())
        yield family


State = Mapping[str, Mapping[Labels, float]]
"""Metric → labels → value."""


def families(state: State | None) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
    """Yield what is known of the table's rows."""
    for row in METRICS:
        if state is not None and row.name in state:
            made = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
            family = made(row.name, row.what, labels=row.labels)
            for labels, value in state[row.name].items():
                family.add_metric(labels, value)
            yield family


class Registry:
    def __init__(self, process: Process) -> None:
        self.process: Final = process
        self._prometheus = CollectorRegistry(auto_describe=False)
        self._series: list[Series[Any]] = []
        self.names: Final[set[str]] = set()  # of all rows that this process shows
        self._pages: dict[str, tuple[float, bytes]] = {}
        self._writing = anyio.Lock()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._prometheus)
        self.gauge("director_info").labels(process, __version__).set(1)
        self.files_up: Final = self.gauge("director_files_up")
        self.files_up.set(1)
        self.limited: Final = self.counter("director_connections_limited_total")
        for limit in ("all", "peer"):  # alert rules miss the rise of a counter that begins at one
            self.limited.labels(limit)

    def counter(self, name: str) -> Series[Counter]:
        return self._keep(Series(self._row(name, "counter"), Counter))

    def histogram(self, name: str) -> Series[Histogram]:
        return self._keep(Series(self._row(name, "histogram"), Histogram))

    def summary(self, name: str) -> Series[Summary]:
        return self._keep(Series(self._row(name, "summary"), Summary))

    def gauge(self, name: str) -> Gauge:
        row = self._row(name, "gauge")
        return Gauge(row.name, row.what, row.labels, registry=self._prometheus)

    def add(self, names: Iterable[str], collector: Collector) -> None:
        for name in names:
            self._row(name, "gauge", "counter")
        self._prometheus.register(collector)

    def forget(self, queue: str) -> None:
        for series in self._series:
            if "queue" in series.row.labels:
                series.remove("queue", queue)

    async def page(self, accept: str) -> tuple[bytes, str]:
        kind = OPEN_METRICS if "application/openmetrics-text" in accept else PLAIN
        async with self._writing:
            written_s, text = self._pages.get(kind, (float("-inf"), b""))
            if time.monotonic() - written_s >= AGAIN_S:
                text = await anyio.to_thread.run_sync(self._write, kind)
                self._pages[kind] = time.monotonic(), text
        return text, kind

    def families(self) -> list[Family]:
        return list(self._prometheus.collect())

    def _write(self, kind: str) -> bytes:
        if kind == PLAIN:
            return generate_latest(self._prometheus)
        text: bytes = openmetrics.generate_latest(self._prometheus)  # type: ignore[no-untyped-call]
        return text

    def _row(self, name: str, *kinds: str) -> Metric:
        row = next(metric for metric in METRICS if metric.name == name)
        if row.kind not in kinds or self.process not in row.by:
            raise ValueError(f"{name} is a {row.kind} of {row.by}")
        if name in self.names:
            raise ValueError(f"{name} is there already")
        self.names.add(name)
        return row

    def _keep(self, series: Series[Child]) -> Series[Child]:
        self._series.append(series)
        self._prometheus.register(series)
        return series


class RedisMeter:
    """How Redis answers this process: shared by all of its clients, which report each round trip."""

    def __init__(self, registry: Registry) -> None:
        self._up = registry.gauge("director_redis_up")
        self._round_trip = registry.histogram("director_redis_round_trip_seconds").labels()
        self._calls = registry.summary("director_redis_call_seconds")
        self._errors = registry.counter("director_redis_errors_total")
        self._by_script: dict[str, Summary] = {}
        self._answered_s = time.monotonic()
        registry.gauge("director_redis_silence_seconds").set_function(lambda: time.monotonic() - self._answered_s)

    def note_answer(self, took_s: float, scripts: Iterable[str] = ()) -> None:
        self._answered_s = time.monotonic()
        self._up.set(1)
        self._round_trip.observe(took_s)
        for name in scripts:
            child = self._by_script.get(name)
            if child is None:
                child = self._by_script[name] = self._calls.labels(name)
            child.observe(took_s)

    def note_failure(self, error: Exception) -> None:
        self._up.set(0)
        name = type(error).__name__
        self._errors.labels(name if name in KINDS else OTHER).inc()


class Pulse:
    """Measure whether the loop turns in time and Redis answers. `on_turn` gets the seconds since the turn before."""

    def __init__(self, registry: Registry, meter: RedisMeter, redis: Redis) -> None:
        self._lag = registry.histogram("director_loop_lag_seconds").labels()
        self._meter = meter
        self._redis = redis
        self.on_turn: list[Callable[[float], None]] = []

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ping_for_ever)
            await self._turn_for_ever()

    async def ping(self) -> None:
        began = time.monotonic()
        try:
            await ping(self._redis)
        except exceptions.RedisError as exc:
            self._meter.note_failure(exc)
        else:
            self._meter.note_answer(time.monotonic() - began)

    async def _ping_for_ever(self) -> NoReturn:
        while True:
            await self.ping()
            await anyio.sleep(TURN_S * TURNS_PER_PING)

    async def _turn_for_ever(self) -> NoReturn:
        before = time.monotonic()
        while True:
            await anyio.sleep(TURN_S)
            now = time.monotonic()
            self._lag.observe(max(0.0, now - before - TURN_S))
            for callback in self.on_turn:
                callback(now - before)
            before = now


class WebhookMeter:
    """Each POST of a webhook, and the outcome of each attempt at a terminal one. Receivers are never named."""

    def __init__(self, registry: Registry) -> None:
        seconds = registry.histogram("director_webhook_seconds")
        self._seconds = {ok: seconds.labels("yes" if ok else "no") for ok in (True, False)}
        self._outcomes = registry.counter("director_webhooks_total")
        for outcome in OUTCOMES:  # a rule sees no rise in a counter that begins at 1
            self._outcomes.labels(outcome)

    def note_request(self, ok: bool, took_s: float) -> None:
        self._seconds[ok].observe(took_s)

    def note_attempt(self, outcome: str) -> None:
        self._outcomes.labels(outcome).inc()
