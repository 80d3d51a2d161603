"""Repair predictions that are lost: accepted, not ended, and in no list that would bring them on.

Repairs only put a prediction where the other roles see it. Nothing is ended or run, and what is well is not touched.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, NoReturn

from msgspec import Struct

from director.broker.replies import Repair
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.ids import PredictionId, QueueName
from director.keeper.registry import Registry
from director.runtime.sweep import repeat, sweep

log = logging.getLogger(__name__)

PERIOD_S: Final = 30.0
# Predictions of one queue per call: a script holds up the whole server while it runs.
SLICE: Final = 200
STEP_S: Final = 0.1


class Reconciled(Struct, frozen=True):
    """The result of one slice of every queue. `is_complete`: it was the last slice of each."""

    repairs: tuple[tuple[PredictionId, Repair], ...] = ()
    is_complete: bool = False


class Reconciler:
    """Compares all queues, slice by slice. `repaired` counts all repairs by kind."""

    def __init__(self, scripts: Scripts, registry: Registry, clock: Clock, *, lease_s: float) -> None:
        self._scripts = scripts
        self._registry = registry
        self._clock = clock
        self._lease_s = lease_s
        self._next: dict[QueueName, int] = {}
        self.repaired: Counter[Repair] = Counter()
        self.on_repaired: Callable[[Repair], None] = lambda repair: None

    async def run(self) -> NoReturn:
        """Compare everything, rest for half a minute, and repeat."""
        await repeat(self._compare, role="reconciler", tick_s=PERIOD_S, clock=self._clock)

    async def run_once(self) -> Reconciled:
        """Compare the next slice of every queue that has one left. After the last, all begin from the start."""
        if not self._next:
            self._next = dict.fromkeys(await self._registry.queues(), 0)
        slices = await sweep(self._next, self._reconcile)
        # A faulty queue is skipped until the next pass.
        self._next = {queue: following for queue, (following, _) in slices.items() if following}
        repairs = tuple(repair for _, batch in slices.values() for repair in batch)
        return Reconciled(repairs, is_complete=not self._next)

    async def _compare(self) -> None:
        while not (await self.run_once()).is_complete:
            await self._clock.sleep(STEP_S)

    async def _reconcile(self, queue: QueueName) -> tuple[int, list[tuple[PredictionId, Repair]]]:
        start = self._next[queue]
        following, batch = await self._scripts.reconcile(queue, start=start, count=SLICE, lease_s=self._lease_s)
        for prediction_id, repair in batch:
            self.repaired[repair] += 1
            self.on_repaired(repair)
            log.warning("repaired", extra={"prediction": prediction_id, "queue": queue, "repair": repair})
        return following, batch
