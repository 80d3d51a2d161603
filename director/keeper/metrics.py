"""Show at /metrics how all queues stand, what a keeper's roles did, and how Redis answers it.

The observer looks at all queues every ten seconds, so that no scrape has to. A look takes at most about a hundredth of
the server's time: after a longer look the next is later, up to a minute.
"""

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add, itemgetter
from typing import Any, Final, get_args

import anyio
from msgspec import Struct
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from director.broker.durability import check
from director.broker.redis_client import infos
from director.broker.replies import QueueStats, Repair, Requeued
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import UnknownQueue, UnsafeBackend
from director.core.ids import QueueName
from director.core.policy import Lane
from director.core.samples import Burns, burns
from director.core.settings import KeeperSettings
from director.keeper.registry import Registry
from director.keeper.shares import Shares
from director.operate.overview import MOST_QUEUES, Overview
from director.operate.views import stats_of_newcomers
from director.runtime.metric_table import OTHER, QueueNames
from director.runtime.metrics import Labels, RedisMeter, State, WebhookMeter, families
from director.runtime.metrics import Registry as Metrics
from director.runtime.sweep import sweep
from director.store.directors import DirectorFound
from director.store.owed import count_owed_since
from director.store.queues import QueueHistory, account_counts, waiting_by_account

Fold = Callable[[float, float], float]


class QueueReading(Struct, frozen=True):
    """One queue. `tenants` counts accounts with anything waiting, `largest` is the most of one: None if not counted.

    `burnt` is how its objectives are kept. `named` are the accounts with the most, if they may be named.
    """

    stats: QueueStats
    tenants: int | None = None
    largest: int | None = None
    burnt: Burns | None = None
    named: tuple[tuple[str, int], ...] = ()

    @property
    def share(self) -> float | None:
        waiting = self.stats.waiting + self.stats.delayed
        return None if self.largest is None or not waiting else min(1.0, self.largest / waiting)


# The value of a queue, and how to combine queues that share the label for others.
OF_QUEUES: Final[Mapping[str, tuple[Callable[[QueueReading], float | None], Fold]]] = {
    "director_queue_oldest_seconds": (lambda seen: max(0, seen.stats.oldest_ms) / 1000, max),
    "director_queue_claimed": (lambda seen: seen.stats.claimed, add),
    "director_queue_delayed": (lambda seen: seen.stats.delayed, add),
    "director_queue_dead": (lambda seen: seen.stats.dead, add),
    "director_queue_directors": (lambda seen: seen.stats.directors, add),
    "director_queue_slots": (lambda seen: seen.stats.slots, add),
    "director_queue_setup_failed": (lambda seen: seen.stats.setup_failed, add),
    "director_queue_started_total": (lambda seen: seen.stats.tally.get("started", 0), add),
    "director_queue_ended_total": (lambda seen: seen.stats.tally.get("ended", 0), add),
    "director_queue_paused": (lambda seen: seen.stats.paused, max),
    "director_queue_breaker_open": (lambda seen: bool(seen.stats.breaker), max),
    "director_queue_tenants": (lambda seen: seen.tenants, max),
    "director_queue_largest_share": (lambda seen: seen.share, max),
}
OF_LANES: Final[Mapping[str, tuple[Callable[[QueueStats, Lane], float | None], Fold]]] = {
    "director_queue_waiting": (lambda stats, lane: stats.may_start_in(lane), add),
    "director_queue_accepted_total": (lambda stats, lane: stats.count_accepted(lane), add),
    "director_objective_share": (lambda stats, lane: getattr(stats.objectives.get(lane), "share", None), max),
    "director_objective_met_total": (lambda stats, lane: stats.tally.get(f"met:{lane}", 0), add),
    "director_objective_missed_total": (lambda stats, lane: stats.tally.get(f"missed:{lane}", 0), add),
}
BURN: Final = "director_objective_burn_rate"
OF_TENANTS: Final = "director_queue_tenant_waiting"
DATA_OF_ACCOUNTS: Final = "director_account_data_bytes"
FINDINGS: Final = "director_findings"
OF_THE_WHOLE: Final = (
    "director_queues",
    "director_state_look_seconds",
    "director_webhooks_owed",
    "director_webhooks_owed_oldest_seconds",
    "director_redis_memory_bytes",
    "director_redis_memory_limit_bytes",
    "director_redis_durable",
    "director_data_accounts",
    "director_data_bytes",
    "director_data_largest_bytes",
    "director_data_share_bytes",
    DATA_OF_ACCOUNTS,
    FINDINGS,
)


def fold(seen: Mapping[QueueName, QueueReading], names: QueueNames, whole: Mapping[str, float]) -> State:
    """Return all series. Queues with work or directors are named before others."""
    values: dict[str, dict[Labels, float]] = {name: {} for name in (BURN, *OF_LANES, *OF_QUEUES, OF_TENANTS)}
    busy_first = sorted(seen, key=lambda queue: (-seen[queue].stats.live, -seen[queue].stats.directors, queue))
    for queue in busy_first:
        name, stats = names.of(queue), seen[queue].stats
        for metric, (of_lane, fold) in OF_LANES.items():
            for lane in get_args(Lane):
                _put(values[metric], (name, lane), of_lane(stats, lane), fold)
        for lane, by_window in (seen[queue].burnt or {}).items():
            for window, burn in by_window.items():
                _put(values[BURN], (name, lane, window), burn.rate, max)
        for metric, (read, fold) in OF_QUEUES.items():
            _put(values[metric], (name,), read(seen[queue]), fold)
        if name != OTHER:
            values[OF_TENANTS] |= {(name, account): count for account, count in seen[queue].named}
    return {**values, **{name: {(): value} for name, value in whole.items()}}


def _put(series: dict[Labels, float], labels: Labels, value: float | None, fold: Fold) -> None:
    if value is not None:
        series[labels] = fold(series[labels], value) if labels in series else value


LOOK_S: Final = 10.0
GLANCE_S: Final = 2.0  # a model whose first setup fails is shown within 10 s of that
LONGEST_S: Final = 60.0  # at most, so that an alert can fire
SHARE: Final = 0.01
STALE_S: Final = 60.0
STALE_LOOKS: Final = 3
# Queues per write: the server serves others between two writes.
AT_ONCE: Final = 50
CROWD: Final = 20  # waiting: in a shorter queue no account crowds out others
MOST_TENANTS: Final = 1_000  # in a queue whose counts are read
NAMED: Final = 5
OWED_READ: Final = 50  # at either end of a partition's list


@dataclass(slots=True, eq=False)
class Observer(Collector):
    """Looks at all queues. `state` is the last look while it is current, `pause_s` the time until the next."""

    _redis: Any  # redis-py says str or bytes; ours answers in bytes
    _scripts: Scripts
    _registry: Registry
    _names: QueueNames
    _settings: KeeperSettings
    _clock: Clock
    _shares: Shares
    _overview: Overview
    pause_s: float = LOOK_S
    _seen: dict[QueueName, QueueReading] = field(default_factory=dict)
    _state: State | None = None
    _since_s: float = field(init=False)
    _next_s: float = float("-inf")
    _glance_s: float = float("-inf")
    _newcomers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._since_s = self._clock.monotonic()

    @property
    def age_s(self) -> float:
        return self._clock.monotonic() - self._since_s

    @property
    def state(self) -> State | None:
        """The last look. None before the first, and once the last is too old."""
        return None if self.age_s > max(STALE_S, STALE_LOOKS * self.pause_s) else self._state

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        return families(self.state)

    async def look_in_time(self) -> None:
        now_s = self._clock.monotonic()
        if now_s < self._next_s and now_s >= self._glance_s:
            self._glance_s = now_s + GLANCE_S
            if _states(await self._overview.newcomers()) != self._newcomers:
                self._next_s = now_s
        if now_s >= self._next_s:
            await self.run_once()
            self._next_s = self._clock.monotonic() + self.pause_s

    async def run_once(self) -> State:
        queues = await self._registry.queues()
        newcomers = await self._overview.newcomers()
        models, self._newcomers = stats_of_newcomers(newcomers), _states(newcomers)
        self._names.keep([*queues, *models])
        awake = set(await self._registry.awake("observer"))
        asked = [queue for queue in queues if queue in awake or queue not in self._seen or self._seen[queue].stats.live]
        began = time.perf_counter()
        for start in range(0, len(asked), AT_ONCE):
            await self._look(asked[start : start + AT_ONCE])
        there = set(queues)
        self._seen = {queue: seen for queue, seen in self._seen.items() if queue in there}
        found = await self._findings(newcomers, models)
        took_s = time.perf_counter() - began
        whole = {"director_queues": float(len(queues)), **await self._count_owed(), **await self._server()}
        whole |= self._read_shares()
        self.pause_s = min(max(LOOK_S, took_s / SHARE), LONGEST_S)
        whole["director_state_look_seconds"] = took_s
        state = fold(
            {**{model: QueueReading(stats) for model, stats in models.items()}, **self._seen}, self._names, whole
        )
        held = self._shares.last if self._settings.metrics_tenants else None
        of_accounts: dict[Labels, float] = {(name,): float(size) for name, size in held.first} if held else {}
        state = {**state, DATA_OF_ACCOUNTS: of_accounts, FINDINGS: found}
        self._state, self._since_s = state, self._clock.monotonic()
        return self._state

    async def _findings(
        self, newcomers: Sequence[DirectorFound], models: Mapping[QueueName, QueueStats]
    ) -> dict[Labels, float]:
        """Return how many findings of each code there are, by queue, where the page shows them too."""
        busy_first = sorted(self._seen, key=lambda queue: (-self._seen[queue].stats.live, queue))[:MOST_QUEUES]
        owed = len(await self._registry.owing())
        queues = {**models, **{queue: self._seen[queue].stats for queue in busy_first}}
        _, found = await self._overview.judge(queues, newcomers, owed=owed)
        named = Counter((one.code, self._names.of(one.queue) if one.queue else "") for one in found)
        return {labels: float(count) for labels, count in named.items()}

    async def _look(self, queues: Sequence[QueueName]) -> None:
        found = {queue: stats for queue, stats in (await sweep(queues, self._stats)).items() if stats is not None}
        crowded = [queue for queue, stats in found.items() if stats.waiting + stats.delayed >= CROWD]
        counts = await account_counts(self._redis, crowded)
        tenants = dict(zip(crowded, counts, strict=True))
        most = await self._most([queue for queue, count in tenants.items() if count <= MOST_TENANTS])
        for queue, stats in found.items():
            burnt = None
            if stats.objectives:  # one queue at a time: an hour of one takes this process some milliseconds to read
                samples = await QueueHistory(self._redis).of(queue)
                burnt = burns(samples, stats.objectives, now_ms=self._clock.now_ms())
            first = most.get(queue)
            named = tuple(first) if first and self._settings.metrics_tenants else ()
            self._seen[queue] = QueueReading(stats, tenants.get(queue), first[0][1] if first else None, burnt, named)
        await anyio.lowlevel.checkpoint()

    async def _stats(self, queue: QueueName) -> QueueStats | None:
        try:
            return await self._scripts.stats(queue)
        except UnknownQueue:  # unregistered meanwhile
            return None

    async def _most(self, queues: Sequence[QueueName]) -> dict[QueueName, list[tuple[str, int]]]:
        waiting = await waiting_by_account(self._redis, queues)
        return {
            queue: heapq.nlargest(NAMED, counts.items(), key=itemgetter(1))
            for queue, counts in zip(queues, waiting, strict=True)
        }

    async def _count_owed(self) -> dict[str, float]:
        count, since_ms = await count_owed_since(self._redis, await self._registry.owing(), looked_at=OWED_READ)
        now_ms = self._clock.now_ms()
        return {
            "director_webhooks_owed": float(count),
            "director_webhooks_owed_oldest_seconds": max(0, now_ms - min(since_ms, default=now_ms)) / 1000,
        }

    def _read_shares(self) -> dict[str, float]:
        held = self._shares.last
        return (
            {}
            if held is None
            else {
                "director_data_accounts": float(held.accounts),
                "director_data_bytes": float(held.total),
                "director_data_largest_bytes": float(held.most),
                "director_data_share_bytes": float(held.share),
            }
        )

    async def _server(self) -> dict[str, float]:
        memory = max(await infos(self._redis, "memory"), key=_fullness)  # the fullest of a Cluster's masters
        try:
            await check(self._redis, self._settings)
        except UnsafeBackend:
            is_durable = False
        else:
            is_durable = True
        return {
            "director_redis_memory_bytes": float(memory["used_memory"]),
            "director_redis_memory_limit_bytes": float(memory.get("maxmemory", 0)),
            "director_redis_durable": float(is_durable),
        }


def _states(newcomers: Sequence[DirectorFound]) -> dict[str, str]:
    return {one.name: one.last.state for one in newcomers}


def _fullness(memory: dict[str, Any]) -> tuple[float, int]:
    used, limit = int(memory["used_memory"]), int(memory.get("maxmemory", 0))
    return used / limit if limit else 0.0, used


BECAME: Final[tuple[Requeued, ...]] = ("waiting", "delayed", "dead")


class Metering:
    """The metrics of one keeper. Up to `most_queues` queues have their name as a label, and the others share one."""

    def __init__(self, *, most_queues: int) -> None:
        self.registry: Final = Metrics("keeper")
        self.redis: Final = RedisMeter(self.registry)
        self.webhooks: Final = WebhookMeter(self.registry)
        self.names: Final = QueueNames(most_queues, on_new=self._begin, on_gone=self.registry.forget)
        self._reaped = self.registry.counter("director_reaped_total")
        self._recovered = self.registry.counter("director_recovered_total")
        self._repaired = self.registry.counter("director_repaired_total")
        self._promoted = self.registry.counter("director_promoted_total")
        self._expired = self.registry.counter("director_expired_total")
        self._put_off = self.registry.counter("director_webhooks_put_off_total").labels()
        for repair in get_args(Repair):
            self._repaired.labels(repair)

    def show(self, observer: Observer) -> None:
        self.registry.add((BURN, *OF_LANES, *OF_QUEUES, OF_TENANTS, *OF_THE_WHOLE), observer)
        self.registry.gauge("director_state_age_seconds").set_function(lambda: observer.age_s)

    def note_reaped(self, queue: QueueName, became: Requeued) -> None:
        self._reaped.labels(self.names.of(queue), became).inc()

    def note_recovered(self, queue: QueueName, became: Requeued) -> None:
        self._recovered.labels(self.names.of(queue), became).inc()

    def note_repaired(self, repair: Repair) -> None:
        self._repaired.labels(repair).inc()

    def note_promoted(self, queue: QueueName, count: int) -> None:
        self._promoted.labels(self.names.of(queue)).inc(count)

    def note_expired(self, ended: int, told: int) -> None:
        self._expired.labels("ended").inc(ended)
        self._expired.labels("told").inc(told)

    def put_off(self, count: int) -> None:
        self._put_off.inc(count)

    def _begin(self, queue: str) -> None:
        """Start counters at zero: no rule would see the rise of a counter that begins at one."""
        for became in BECAME:
            self._reaped.labels(queue, became)
