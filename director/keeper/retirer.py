"""Forget directors that are long gone: pods come and go, and each leaves its name in every stream.

A director with pending entries is kept, since entries of a forgotten consumer would never be delivered again.
"""

import logging
from typing import Final, NoReturn

from msgspec import Struct

from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.ids import QueueName
from director.keeper.registry import Registry
from director.runtime.sweep import repeat, sweep

log = logging.getLogger(__name__)

PERIOD_S: Final = 300.0
SILENT_S: Final = 3600.0


class Retired(Struct, frozen=True):
    """The forgotten directors by queue. Queues without any are left out."""

    directors: dict[QueueName, list[str]]


class Retirer:
    """Looks for long silent directors in all queues."""

    def __init__(self, scripts: Scripts, registry: Registry, clock: Clock) -> None:
        self._scripts = scripts
        self._registry = registry
        self._clock = clock

    async def run(self) -> NoReturn:
        await repeat(self.run_once, role="retirer", tick_s=PERIOD_S, clock=self._clock)

    async def run_once(self) -> Retired:
        """Forget all directors that have been silent for an hour and hold nothing."""
        directors: dict[QueueName, list[str]] = {}
        left = await self._registry.queues()
        while left:
            names = await sweep(left, lambda queue: self._scripts.retire(queue, silent_s=SILENT_S))
            left = [queue for queue, name in names.items() if name]
            for queue in left:
                directors.setdefault(queue, []).append(names[queue])
                log.info("director forgotten", extra={"queue": queue, "director": names[queue]})
        return Retired(directors)
