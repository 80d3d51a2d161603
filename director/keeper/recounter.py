"""Count data that outlives what was counted of it: see `lua/lib/data.lua`.

A prediction counts from its create as if it ended at once. Three kinds outlive that: predictions that wait longer than
their data lives, dead letters, and ended predictions whose webhook is still owed. Each is in a list of its queue or
partition, and is measured here. Records outlive their data by days: the account's list says how many there are. Each
pass says the whole sum of an account again, so two keepers do no harm, and an error lasts for a pass. What has no end
is measured too: texts of an account's models, versions that its trainings made, and its deployments.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.data_bytes import DATA_TTL_MS, ENTRY_BYTES, KEPT_BYTES, RECORD_BYTES, RECORD_TTL_MS
from director.core.ids import PredictionId, QueueName, created_ms_of
from director.keeper.registry import Registry
from director.store import account_data
from director.store.catalog import Catalog
from director.store.records import queue_fields

PERIOD_S: Final = 60.0
SHARE: Final = 0.01  # of the time, so that a million old predictions cost no more
KEPT: Final = 3  # passes for which a sum is good
AT_ONCE: Final = 500
LIFETIMES: Final = ("data_ttl_ms", "record_ttl_ms")


@dataclass(slots=True, eq=False)
class Recounter:
    _redis: Redis
    _scripts: Scripts
    _registry: Registry
    _clock: Clock
    _known: set[str] | None = None
    _ttls_ms: dict[QueueName, int] = field(default_factory=dict)
    _next_s: float = float("-inf")

    async def look_in_time(self) -> None:
        if self._clock.monotonic() >= self._next_s:
            await self.run_once()

    async def run_once(self) -> dict[str, int]:
        """Return the bytes of each account that has any."""
        began, found = time.perf_counter(), Counter[str]()
        if self._known is None:  # sums of a keeper that died would count until they are forgotten
            self._known = await account_data.accounts_with_a_sum(self._redis)
        queues, before_ms = await self._registry.queues(), self._clock.now_ms()
        ttls = await queue_fields(self._redis, queues, LIFETIMES)
        self._ttls_ms = {queue: int(ttl or DATA_TTL_MS) for queue, (ttl, _) in zip(queues, ttls, strict=True)}
        # the longest life of data and the shortest of a record: rather too few are counted than too many
        data_ms = max(self._ttls_ms.values(), default=DATA_TTL_MS)
        record_ms = min((int(ttl or RECORD_TTL_MS) for _, ttl in ttls), default=RECORD_TTL_MS)
        records = await account_data.record_counts(
            self._redis, from_ms=before_ms - record_ms, before_ms=before_ms - data_ms
        )
        found.update({name: KEPT_BYTES * count for name, count in records.items()})
        for queue, ttl_ms in self._ttls_ms.items():
            async for ids in account_data.live_or_dead(self._redis, queue, until_ms=before_ms - ttl_ms):
                found.update(await self._measure(ids, are_owed=False))
        for partition in await self._registry.owing():
            async for ids in account_data.read_owed(self._redis, partition):
                found.update(await self._measure(ids, are_owed=True))
        retained = await self._read_retained()
        pause_s = max(PERIOD_S, (time.perf_counter() - began) / SHARE)
        until_ms = self._clock.now_ms() + int(1000 * KEPT * pause_s)
        changed = {name for name, (size, was) in retained.items() if size != was}
        names, now_ms = sorted(self._known | set(found) | changed), self._clock.now_ms()
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            say = partial(self._scripts.recount, until_ms=until_ms, now_ms=now_ms)
            pairs = [(name, *retained.get(name, (0, 0))) for name in some]
            await asyncio.gather(
                *(say(name, found[name], retained=size, was_retained=was) for name, size, was in pairs)
            )
        self._known, self._next_s = set(found), self._clock.monotonic() + pause_s
        return dict(found)

    async def _read_retained(self) -> dict[str, tuple[int, int]]:
        """Return the bytes of what each account keeps until it deletes it, and those that were counted before."""
        was = await account_data.lasting_bytes(self._redis)
        deployments = await account_data.deployment_counts(self._redis)
        found = Counter({name: ENTRY_BYTES * count for name, count in deployments.items()})
        catalog = Catalog(self._redis, self._scripts, self._clock)
        async for owner, size in catalog.read_kept_bytes(was):
            found[owner] += size
        return {name: (found[name], size) for name, size in was.items()}

    async def _measure(self, ids: Sequence[PredictionId], *, are_owed: bool) -> Counter[str]:
        """Return the bytes of each account. A dead letter that is owed too is measured with what is owed."""
        now_ms, found = self._clock.now_ms(), Counter[str]()
        for one in await account_data.measure(self._redis, ids):
            ttl_ms = one.ttl_ms or self._ttls_ms.get(one.queue, DATA_TTL_MS)
            if one.is_owed == are_owed and (one.completed or created_ms_of(one.id)) + ttl_ms < now_ms:
                found[one.account] += RECORD_BYTES - KEPT_BYTES + one.bytes  # its list has the rest
        return found
