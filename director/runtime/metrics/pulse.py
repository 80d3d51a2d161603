"""Does the loop turn in time, and does Redis answer, also while nobody asks it anything?

Measures only: what is late or silent is told by the metrics, and mended by nobody here.
"""

import time
from collections.abc import Callable
from typing import Final, NoReturn

import anyio
from redis import exceptions
from redis.asyncio import Redis

from director.runtime.metrics.redis_meter import RedisMeter
from director.runtime.metrics.registry import Registry

__all__ = ("Pulse",)

BEAT_S: Final = 0.5
BEATS_PER_PING: Final = 10


class Pulse:
    """One per process. Those in `on_beat` hear of each beat, and how long ago the one before it was."""

    def __init__(self, registry: Registry, meter: RedisMeter, redis: Redis) -> None:
        self._lag = registry.histogram("director_loop_lag_seconds").labels()
        self._meter = meter
        self._redis = redis
        self.on_beat: list[Callable[[float], None]] = []

    async def run(self) -> None:
        """For ever."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ping_for_ever)
            await self._beat_for_ever()

    async def ping(self) -> None:
        """Ask Redis for nothing, once."""
        began = time.monotonic()
        try:
            await self._redis.ping()
        except exceptions.RedisError as exc:
            self._meter.failed(exc)
        else:
            self._meter.answered(time.monotonic() - began)

    async def _ping_for_ever(self) -> NoReturn:
        while True:
            await self.ping()
            await anyio.sleep(BEAT_S * BEATS_PER_PING)

    async def _beat_for_ever(self) -> NoReturn:
        before = time.monotonic()
        while True:
            await anyio.sleep(BEAT_S)
            now = time.monotonic()
            self._lag.observe(max(0.0, now - before - BEAT_S))
            for heed in self.on_beat:
                heed(now - before)
            before = now
