"""Settle the compute that was reserved for a prediction once it has ended: by what its runs took, or to zero.

That includes predictions that were never created, because the process that reserved for them died. Several cashiers do
no harm: a settled reservation is gone.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.ids import Partition, PredictionId, created_ms_of, partition_of
from director.keeper.registry import Registry
from director.keeper.sweeps import each_account, sweep_all
from director.runtime.sweep import LIMIT

LOOK_S: Final = 300.0
# Longer than any create takes: a reservation of this age without a record will never have one.
UNBORN_S: Final = 600.0
TOTALS: Final = (b"day", b"spent", b"reserved")


@dataclass(slots=True, eq=False)
class Cashier:
    _redis: Any  # redis-py says str or bytes; ours answers in bytes
    _scripts: Scripts
    _registry: Registry
    _clock: Clock
    _looked_s: float | None = None

    async def run_once(self) -> int:
        """Settle all that ended, and sometimes what was never created. Return how many predictions that was."""
        counts = await sweep_all(await self._registry.unspent(), self._put_right, is_full=lambda count: count == LIMIT)
        total = sum(map(sum, counts.values()))
        now_s = self._clock.monotonic()
        if self._looked_s is None or now_s - self._looked_s >= LOOK_S:
            total += await self._free_unborn()
            self._looked_s = now_s
        return total

    async def _put_right(self, partition: Partition) -> int:
        key = keys.unspent(partition)
        ended = await ask(lambda: self._redis.zrange(key, 0, LIMIT - 1, withscores=True))
        spent = [(*text(member).partition(" "), ran_ms / 1000) for member, ran_ms in ended]
        spend = self._scripts.spend
        await asyncio.gather(
            *(spend(account, prediction_id=PredictionId(of), spent_s=spent_s) for of, _, account, spent_s in spent)
        )
        if ended:
            await ask(lambda: self._redis.zrem(key, *(member for member, _ in ended)))
        return len(ended)

    async def _free_unborn(self) -> int:
        """Free what was reserved for predictions that were never created."""
        freed, born_ms = 0, self._clock.now_ms() - UNBORN_S * 1000
        async for account, ids in self._reserved():
            unborn = await self._without_end(account, [each for each in ids if created_ms_of(each) < born_ms])
            await asyncio.gather(*(self._scripts.spend(account, prediction_id=each) for each in unborn))
            freed += len(unborn)
        return freed

    async def _reserved(self) -> AsyncIterator[tuple[str, list[PredictionId]]]:
        for of_account in (keys.compute, keys.credit):
            async for account, has_limit in each_account(self._redis, lambda pipe, name: pipe.exists(of_account(name))):  # noqa: B023
                cursor = -1
                while has_limit and cursor:
                    scan = partial(self._redis.hscan, of_account(account), max(0, cursor), count=LIMIT)
                    cursor, held = await ask(scan)
                    yield account, [PredictionId(text(name)) for name in held if name not in TOTALS]

    async def _without_end(self, account: str, ids: Sequence[PredictionId]) -> list[PredictionId]:

        def read(pipe: Any) -> None:
            for each in ids:
                # In this order: a prediction that ends now and is deleted is noted as ended before its record goes.
                pipe.exists(keys.record(each))
                pipe.zscore(keys.unspent(partition_of(each)), f"{each} {account}")

        replies = iter(await pipelined(self._redis, read))
        return [
            each
            for each, has_record, ran_ms in zip(ids, replies, replies, strict=True)
            if not has_record and ran_ms is None
        ]
