"""End what waited past its deadline, and notify the directors of what runs past its deadline.

A run is never ended here: its director stops it and finishes.
"""

import logging
from collections.abc import Callable
from typing import Final, NoReturn

from msgspec import Struct

from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.ids import QueueName
from director.keeper.registry import Registry
from director.runtime.sweep import LIMIT, repeat, sweep

log = logging.getLogger(__name__)

TICK_S: Final = 0.5


class Expired(Struct, frozen=True):
    """The result of one sweep: how many `ended` in their queues, and of how many the director was notified (`told`)."""

    ended: int = 0
    told: int = 0


class Expirer:
    """Sweeps the deadlines of all queues."""

    def __init__(self, scripts: Scripts, registry: Registry, clock: Clock) -> None:
        self._scripts = scripts
        self._registry = registry
        self._clock = clock
        self.on_expired: Callable[[int, int], None] = lambda ended, told: None

    async def run(self) -> NoReturn:
        await repeat(self.run_once, role="expirer", tick_s=TICK_S, clock=self._clock)

    async def run_once(self) -> Expired:
        """Handle all that is past its deadline."""
        sum_ended = sum_told = 0
        full = await self._registry.awake("expirer")
        while full:
            expired = await sweep(full, self._expire)
            sum_ended += sum(ended for ended, _ in expired.values())
            sum_told += sum(told for _, told in expired.values())
            full = [queue for queue, (ended, told) in expired.items() if ended + told == LIMIT]
        return Expired(sum_ended, sum_told)

    async def _expire(self, queue: QueueName) -> tuple[int, int]:
        ended, told = await self._scripts.expire(queue, limit=LIMIT)
        if ended or told:
            self.on_expired(ended, told)
            log.info("deadlines passed", extra={"queue": queue, "ended": ended, "told": told})
        return ended, told
