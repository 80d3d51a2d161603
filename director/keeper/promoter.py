"""Put due retries back into their streams, and wake a director for them.

Whether and when there is a retry was decided when the claim was released.
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


class Promoted(Struct, frozen=True):
    """The result of one sweep, by queue. Queues without a due retry are left out."""

    retries: dict[QueueName, int]


class Promoter:
    """Sweeps the delayed retries of all queues."""

    def __init__(self, scripts: Scripts, registry: Registry, clock: Clock) -> None:
        self._scripts = scripts
        self._registry = registry
        self._clock = clock
        self.on_promoted: Callable[[QueueName, int], None] = lambda queue, count: None

    async def run(self) -> NoReturn:
        """Sweep twice a second: the shortest backoff is about one second."""
        await repeat(self.run_once, role="promoter", tick_s=TICK_S, clock=self._clock)

    async def run_once(self) -> Promoted:
        retries: dict[QueueName, int] = {}
        full = await self._registry.awake("promoter", glance_s=0)
        while full:
            promoted = await sweep(full, lambda queue: self._scripts.promote(queue, limit=LIMIT))
            full = [queue for queue, count in promoted.items() if count == LIMIT]
            for queue, count in promoted.items():
                if count:
                    retries[queue] = retries.get(queue, 0) + count
        for queue, count in retries.items():
            self.on_promoted(queue, count)
            log.info("retries are due", extra={"queue": queue, "count": count})
        return Promoted(retries)
