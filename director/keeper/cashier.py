"""Put the compute that was reserved for a prediction right once it has ended: by what its runs took, or to nothing.

The one way that a reservation ends, whoever ended the prediction and however. Never judges whether an account may have
more. Two of them at work do no harm: what was put right once is not reserved any more.
"""

import asyncio
from typing import Any, Final, NoReturn

from redis.asyncio import Redis

from director.core import keys
from director.core.clock import Clock
from director.core.ids import Partition, PredictionId
from director.core.redis_client import ask, text
from director.core.scripts import Scripts
from director.keeper.registry import Registry
from director.keeper.sweep import LIMIT, repeat, sweep

__all__ = ("Cashier",)

TICK_S: Final = 1.0


class Cashier:
    """Sweeps the partitions where something metered ended."""

    def __init__(self, redis: Redis, scripts: Scripts, registry: Registry, clock: Clock) -> None:
        self._redis: Any = redis  # its types say str or bytes, and ours answers in bytes
        self._scripts = scripts
        self._registry = registry
        self._clock = clock

    async def run(self) -> NoReturn:
        """Sweep every second."""
        await repeat(self.run_once, role="cashier", tick_s=TICK_S, clock=self._clock)

    async def run_once(self) -> int:
        """Put all right that ended; how many predictions that was."""
        total = 0
        full = await self._registry.unspent()
        while full:
            counts = await sweep(full, self._put_right)
            total += sum(counts.values())
            full = [partition for partition, count in counts.items() if count == LIMIT]
        return total

    async def _put_right(self, partition: Partition) -> int:
        key = keys.unspent(partition)
        ended = await ask(lambda: self._redis.zrange(key, 0, LIMIT - 1, withscores=True))
        await asyncio.gather(*(self._spend(text(member), ran_ms) for member, ran_ms in ended))
        if ended:
            await ask(lambda: self._redis.zrem(key, *(member for member, _ in ended)))
        return len(ended)

    async def _spend(self, member: str, ran_ms: float) -> None:
        prediction_id, _, account = member.partition(" ")
        await self._scripts.spend(account, prediction_id=PredictionId(prediction_id), spent_s=ran_ms / 1000)
