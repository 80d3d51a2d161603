"""Settle the compute that was reserved for a prediction once it has ended: by what its runs took, or to zero.

That includes predictions that were never created, because the process that reserved for them died. Several cashiers do
no harm: a settled reservation is gone.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.ids import Partition, created_ms_of
from director.keeper.registry import Registry
from director.keeper.sweeps import sweep_all
from director.runtime.sweep import LIMIT
from director.store.compute import (
    forget_unsettled,
    forget_unspent,
    read_reserved,
    read_unsettled,
    unspent,
    without_end,
)

LOOK_S: Final = 300.0
# Longer than any create takes: a reservation of this age without a record will never have one.
UNBORN_S: Final = 600.0


@dataclass(slots=True, eq=False)
class Cashier:
    _redis: Redis
    _scripts: Scripts
    _registry: Registry
    _clock: Clock
    _looked_s: float | None = None

    async def run_once(self) -> int:
        """Settle all that ended, and sometimes what was never created. Return how many predictions that was."""
        counts = await sweep_all(await self._registry.unspent(), self._put_right, is_full=lambda count: count == LIMIT)
        settled = await sweep_all(await self._registry.to_settle(), self._settle, is_full=lambda count: count >= LIMIT)
        total = sum(map(sum, (*counts.values(), *settled.values())))
        now_s = self._clock.monotonic()
        if self._looked_s is None or now_s - self._looked_s >= LOOK_S:
            total += await self._free_unborn()
            self._looked_s = now_s
        return total

    async def _put_right(self, partition: Partition) -> int:
        ended, spend = await unspent(self._redis, partition, most=LIMIT), self._scripts.spend
        await asyncio.gather(*(spend(account, prediction_id=each, spent_s=spent_s) for each, account, spent_s in ended))
        await forget_unspent(self._redis, partition, [(each, account) for each, account, _ in ended])
        return len(ended)

    async def _settle(self, partition: Partition) -> int:
        """Settle tokens and compute of ended predictions, those that one look at the list shows."""
        ended, settle = await read_unsettled(self._redis, partition, most=LIMIT), self._scripts.settle
        await asyncio.gather(
            *(
                settle(account, each, tokens=tokens, spent_s=ran_ms / 1000)
                for (each, account), (ran_ms, tokens) in ended.items()
            )
        )
        await forget_unsettled(self._redis, partition, list(ended))
        return len(ended)

    async def _free_unborn(self) -> int:
        """Free what was reserved for predictions that were never created."""
        freed, born_ms = 0, self._clock.now_ms() - UNBORN_S * 1000
        async for account, ids in read_reserved(self._redis, at_once=LIMIT):
            unborn = await without_end(self._redis, account, [each for each in ids if created_ms_of(each) < born_ms])
            await asyncio.gather(*(self._scripts.spend(account, prediction_id=each) for each in unborn))
            await asyncio.gather(*(self._scripts.settle(account, each) for each in unborn))
            freed += len(unborn)
        return freed
