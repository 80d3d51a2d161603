"""The state of all queues as /metrics shows it: what was seen of each, folded into a bounded number of series. Pure.

Never asks for anything (`observer.py` does), and shows nothing that is too old.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, get_args

from msgspec import Struct
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from director.broker.scripts import QueueStats
from director.core.ids import QueueName
from director.core.objectives import Burns, Lane
from director.runtime.metrics.names import OTHER, QueueNames
from director.runtime.metrics.table import METRICS

__all__ = ("OF_QUEUES", "OF_THE_WHOLE", "Seen", "State", "StateCollector", "folded")

Labels = tuple[str, ...]
Fold = Callable[[float, float], float]


class Seen(Struct, frozen=True):
    """One queue. `tenants`: accounts with anything waiting; `largest`: what of it is of the one that has the most.

    None where nobody counted. `burnt`: how its objectives are kept, where it has any. `named`: those that have the
    most, where they may be named.
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


class State(Struct, frozen=True):
    """Metric → labels → value."""

    values: Mapping[str, Mapping[Labels, float]]


def added(one: float, other: float) -> float:
    return one + other


# What of a queue, and how those that have no name of their own are taken together
OF_QUEUES: Final[Mapping[str, tuple[Callable[[Seen], float | None], Fold]]] = {
    "director_queue_oldest_seconds": (lambda seen: max(0, seen.stats.oldest_ms) / 1000, max),
    "director_queue_claimed": (lambda seen: seen.stats.claimed, added),
    "director_queue_delayed": (lambda seen: seen.stats.delayed, added),
    "director_queue_dead": (lambda seen: seen.stats.dead, added),
    "director_queue_directors": (lambda seen: seen.stats.directors, added),
    "director_queue_slots": (lambda seen: seen.stats.slots, added),
    "director_queue_setup_failed": (lambda seen: seen.stats.setup_failed, added),
    "director_queue_started_total": (lambda seen: seen.stats.tally.get("started", 0), added),
    "director_queue_ended_total": (lambda seen: seen.stats.tally.get("ended", 0), added),
    "director_queue_paused": (lambda seen: seen.stats.paused, max),
    "director_queue_breaker_open": (lambda seen: bool(seen.stats.breaker), max),
    "director_queue_tenants": (lambda seen: seen.tenants, max),
    "director_queue_largest_share": (lambda seen: seen.share, max),
}
# What of a lane of it
OF_LANES: Final[Mapping[str, tuple[Callable[[QueueStats, Lane], float | None], Fold]]] = {
    "director_queue_waiting": (lambda stats, lane: getattr(stats, lane), added),
    "director_queue_accepted_total": (lambda stats, lane: stats.tally.get(f"accepted:{lane}", 0), added),
    "director_objective_share": (lambda stats, lane: _promised(stats, lane), max),
    "director_objective_met_total": (lambda stats, lane: stats.tally.get(f"met:{lane}", 0), added),
    "director_objective_missed_total": (lambda stats, lane: stats.tally.get(f"missed:{lane}", 0), added),
}
BURN: Final = "director_objective_burn_rate"
OF_TENANTS: Final = "director_queue_tenant_waiting"
OF_THE_WHOLE: Final = (
    "director_queues",
    "director_state_look_seconds",
    "director_webhooks_owed",
    "director_webhooks_owed_oldest_seconds",
    "director_redis_memory_bytes",
    "director_redis_memory_limit_bytes",
    "director_redis_durable",
)


def folded(seen: Mapping[QueueName, Seen], names: QueueNames, whole: Mapping[str, float]) -> State:
    """All series. Those that have work or directors are named before others."""
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
    return State({**values, **{name: {(): value} for name, value in whole.items()}})


class StateCollector(Collector):
    """Shows the state that it is given. `fresh` is asked at each scrape: None where there is none that still holds."""

    def __init__(self, fresh: Callable[[], State | None]) -> None:
        self._fresh = fresh

    @property
    def names(self) -> tuple[str, ...]:
        """What it shows."""
        return (BURN, *OF_LANES, *OF_QUEUES, OF_TENANTS, *OF_THE_WHOLE)

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        state = self._fresh()
        if state is None:
            return
        for row in METRICS:
            if row.name in state.values:
                made = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
                family = made(row.name, row.what, labels=row.labels)
                for labels, value in state.values[row.name].items():
                    family.add_metric(labels, value)
                yield family


def _promised(stats: QueueStats, lane: Lane) -> float | None:
    objective = stats.objectives.get(lane)
    return None if objective is None else objective.share


def _put(series: dict[Labels, float], labels: Labels, value: float | None, fold: Fold) -> None:
    if value is not None:
        series[labels] = fold(series[labels], value) if labels in series else value
