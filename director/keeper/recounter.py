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
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, get_args

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.data_bytes import DATA_TTL_MS, ENTRY_BYTES, FOR_EVER_MS, KEPT_BYTES, RECORD_BYTES, RECORD_TTL_MS
from director.core.ids import Kind, PredictionId, QueueName, created_ms_of, lowest_id_at, partition_of
from director.keeper.registry import Registry
from director.keeper.sweeps import each_account
from director.runtime.sweep import LIMIT
from director.store.accounts import Accounts
from director.store.catalog import Catalog

PERIOD_S: Final = 60.0
SHARE: Final = 0.01  # of the time, so that a million old predictions cost no more
KEPT: Final = 3  # passes for which a sum is good
AT_ONCE: Final = 500
FIELDS: Final = ("account", "queue", "completed", "data_ttl_ms")
LIFETIMES: Final = ("data_ttl_ms", "record_ttl_ms")
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(slots=True, eq=False)
class Recounter:
    _redis: Any  # redis-py says str or bytes; ours answers in bytes
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
            self._known = await self._recounted()
        queues, before_ms = await self._registry.queues(), self._clock.now_ms()
        read = lambda pipe: [pipe.hmget(keys.meta(queue), LIFETIMES) for queue in queues]  # noqa: E731
        ttls = await pipelined(self._redis, read)
        self._ttls_ms = {queue: int(ttl or DATA_TTL_MS) for queue, (ttl, _) in zip(queues, ttls, strict=True)}
        # the longest life of data and the shortest of a record: rather too few are counted than too many
        data_ms = max(self._ttls_ms.values(), default=DATA_TTL_MS)
        record_ms = min((int(ttl or RECORD_TTL_MS) for _, ttl in ttls), default=RECORD_TTL_MS)
        found.update(await self._records(before_ms - record_ms, before_ms - data_ms))
        for queue, ttl_ms in self._ttls_ms.items():
            for index in (keys.live(queue), keys.dead(queue)):
                async for ids in self._slices(index, before_ms - ttl_ms):
                    found.update(await self._measured(ids, are_owed=False))
        for partition in await self._registry.owing():
            async for ids in self._slices(keys.owed(partition), None):
                found.update(await self._measured(ids, are_owed=True))
        retained = await self._retained()
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

    async def _recounted(self) -> set[str]:
        """Return the accounts that have a sum of an earlier pass, perhaps of another keeper."""
        asked = each_account(self._redis, lambda pipe, name: pipe.hexists(keys.data(name), "old"))
        return {name async for name, has_sum in asked if has_sum}

    async def _retained(self) -> dict[str, tuple[int, int]]:
        """Return the bytes of what each account keeps until it deletes it, and those that were counted before."""

        def read(pipe: Any, name: str) -> None:
            pipe.hget(keys.data(name), FOR_EVER_MS)

        was = {name: int(size or 0) async for name, size in each_account(self._redis, read)}
        found = Counter[str]()
        async for name, count in each_account(self._redis, lambda pipe, name: pipe.zcard(keys.deployments(name))):
            found[name] += ENTRY_BYTES * count
        catalog = Catalog(self._redis, self._scripts, self._clock)
        async for owner, size in catalog.read_kept_bytes(was):
            found[owner] += size
        return {name: (found[name], size) for name, size in was.items()}

    async def _records(self, from_ms: int, before_ms: int) -> Counter[str]:
        """Return the bytes of each account's records that were made in this time. The ranks of the first and the last
        record on its lists say how many there are, so that many cost no more than few.
        """
        low, high = f"[{lowest_id_at(max(0, from_ms))}", f"({lowest_id_at(max(0, before_ms))}"
        names, found = await Accounts(self._redis).names(), Counter[str]()
        for start in range(0, len(names), AT_ONCE):
            lists = {keys.listing(name, kind): name for name in names[start : start + AT_ONCE] for kind in KINDS}
            ends = await pipelined(self._redis, partial(_read_ends, indexes=lists, low=low, high=high))
            pairs = zip(lists, ends[::2], ends[1::2], strict=True)
            spans = [(key, first[0], last[0]) for key, first, last in pairs if first and last]
            read = lambda pipe: [pipe.zrank(key, name) for key, *both in spans for name in both]  # noqa: B023, E731
            ranks = await pipelined(self._redis, read)
            for (key, *_), first, last in zip(spans, ranks[::2], ranks[1::2], strict=True):
                if first is not None and last is not None:
                    found[lists[key]] += KEPT_BYTES * (last - first + 1)
        return found

    async def _slices(self, index: str, most: int | None) -> AsyncIterator[list[PredictionId]]:
        """Yield the ids of an index with at most this score. If one leaves meanwhile, this pass may miss another."""
        start = 0
        while True:
            at = start  # by rank: with a score as its bound, Redis would walk to each slice from the first one
            found = await ask(lambda: self._redis.zrange(index, at, at + LIMIT - 1, withscores=True))  # noqa: B023
            yield [PredictionId(text(name)) for name, score in found if most is None or score <= most]
            if len(found) < LIMIT or (most is not None and found[-1][1] > most):
                return
            start += LIMIT

    async def _measured(self, ids: Sequence[PredictionId], *, are_owed: bool) -> Counter[str]:
        """Return the bytes of each account. A dead letter that is owed too is measured with what is owed."""

        def read(pipe: Any) -> None:
            for name in ids:
                pipe.hmget(keys.record(name), FIELDS)
                pipe.zscore(keys.owed(partition_of(name)), name)
                pipe.strlen(keys.input_data(name))
                pipe.hstrlen(keys.output_data(name), "output")
                pipe.hstrlen(keys.output_data(name), "logs")

        now_ms, found = self._clock.now_ms(), Counter[str]()
        replies = await pipelined(self._redis, read)
        for name, (account, queue, completed, own_ms), owed, *sizes in zip(
            ids, *(replies[part::5] for part in range(5)), strict=True
        ):
            if account is None or (owed is not None) != are_owed:
                continue
            ttl_ms = int(own_ms or self._ttls_ms.get(QueueName(text(queue)), DATA_TTL_MS))
            if int(completed or created_ms_of(name)) + ttl_ms < now_ms:
                found[text(account)] += RECORD_BYTES - KEPT_BYTES + sum(sizes)  # its list has the rest
        return found


def _read_ends(pipe: Any, *, indexes: Iterable[str], low: str, high: str) -> None:
    for key in indexes:
        pipe.zrangebylex(key, low, high, start=0, num=1)
        pipe.zrevrangebylex(key, high, low, start=0, num=1)
