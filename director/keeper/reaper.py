"""Recover expired claims: another attempt while any remain, else the dead letters.

A claim whose lease was still valid when contact was last proven is not touched.
"""

import logging
from collections.abc import Callable
from typing import Final, NoReturn

from msgspec import Struct

from director.broker.replies import Requeued
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId, QueueName
from director.keeper.contact import ServerTime
from director.keeper.registry import GLANCE_S, Registry
from director.runtime.sweep import LIMIT, repeat, sweep

log = logging.getLogger(__name__)

SLOWEST_TICK_S: Final = 1.0
TICKS_PER_LEASE: Final = 10


class Reaped(Struct, frozen=True):
    """The result of one sweep. `is_held_off`: nothing was looked at, since contact is too young."""

    claims: tuple[tuple[PredictionId, Requeued], ...] = ()
    is_held_off: bool = False


class Reaper:
    """Sweeps the leases of all queues. Several keepers may: a recovered claim is gone for the other.

    `on_reaped` is called for each claim.
    """

    def __init__(self, scripts: Scripts, registry: Registry, time: ServerTime, clock: Clock, *, lease_s: float) -> None:
        self._scripts = scripts
        self._registry = registry
        self._time = time
        self._clock = clock
        self._lease_s = lease_s
        self.on_reaped: Callable[[QueueName, Requeued], None] = lambda queue, became: None
        self._tick_s = min(SLOWEST_TICK_S, lease_s / TICKS_PER_LEASE)

    async def run(self) -> NoReturn:
        """Sweep ten times per lease, at least once a second."""
        await repeat(self.run_once, role="reaper", tick_s=self._tick_s, clock=self._clock)

    async def run_once(self) -> Reaped:
        """Recover all claims that expired before the server answered just now."""
        try:
            now_ms = await self._time.proven_ms()
            if now_ms is None:
                return Reaped(is_held_off=True)
            claims: list[tuple[PredictionId, Requeued]] = []
            full = await self._registry.awake("reaper", glance_s=min(GLANCE_S, self._lease_s))
            while full:
                taken = await sweep(full, lambda queue: self._reap(queue, now_ms))
                claims += [claim for batch in taken.values() for claim in batch]
                full = [queue for queue, batch in taken.items() if len(batch) == LIMIT]
        except BackendUnavailable:
            self._time.lost()
            raise
        return Reaped(tuple(claims))

    async def _reap(self, queue: QueueName, now_ms: int) -> list[tuple[PredictionId, Requeued]]:
        batch = await self._scripts.reap(queue, limit=LIMIT, lease_s=self._lease_s, now_ms=now_ms)
        for prediction_id, became in batch:
            self.on_reaped(queue, became)
            log.info("claim recovered", extra={"prediction": prediction_id, "queue": queue, "became": became})
        return batch
