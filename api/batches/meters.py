"""Count what the batches of one keeper do, and look at all batches, for its /metrics."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from director.core.clock import Clock
from director.runtime.metrics import Labels, Registry, State, families
from director.store.batches import Batches, Survey

LINES: Final = "director_batch_lines_total"
SLOTS: Final = "director_batch_slots_used"
COUNTS: Final = "director_batches"
OLDEST: Final = "director_batches_oldest_waiting_seconds"
STEPS: Final = ("filed", "succeeded", "failed")
LOOK_S: Final = 10.0
STALE_S: Final = 60.0


class BatchMeter(Collector):
    """`lines`: by step. `slots`: returns how many batches the keeper runs."""

    def __init__(self, slots: Callable[[], int]) -> None:
        self.lines = Counter(dict.fromkeys(STEPS, 0))
        self._slots = slots
        self._seen: tuple[float, Survey] | None = None
        self._clock: Clock | None = None

    def show(self, registry: Registry) -> None:
        registry.add((LINES, SLOTS, COUNTS, OLDEST), self)

    async def look(self, batches: Batches, clock: Clock) -> None:
        self._clock, seen = clock, await batches.survey(now_ms=clock.now_ms())
        self._seen = clock.monotonic(), seen

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        lines: dict[Labels, float] = {(step,): float(self.lines[step]) for step in STEPS}
        state: State = {LINES: lines, SLOTS: {(): float(self._slots())}}
        if self._seen is not None and self._clock is not None:
            at_s, seen = self._seen
            if self._clock.monotonic() - at_s < STALE_S:
                counts: dict[Labels, float] = {(status,): float(count) for status, count in seen.counts.items()}
                state = {**state, COUNTS: counts, OLDEST: {(): seen.oldest_waiting_ms / 1000}}
        return families(state)
