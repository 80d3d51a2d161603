"""Keep a suspended account from running anything, and let it run again. Each step can be done twice, and by anybody.

From the moment that `suspend` has returned nothing of the account is handed out any more, in any queue: what an API
still takes in, which does not know of it yet, waits. Never touches what others have, nor what an operator paused.

An account's changes are numbered. A queue goes by the latest that it has heard of, so whoever is late undoes nothing.
A queue that comes to be asks who is suspended after it is listed, and a suspension asks which queues there are after
it is listed: one of them sees the other.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final, get_args

from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.ids import Kind, PredictionId, QueueName
from director.store.accounts import Accounts, Policy, Reason, Suspension
from director.store.catalog import Catalog
from director.store.living import Listing

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
AT_ONCE: Final = 100  # predictions that are canceled in one write
SETTLED_S: Final = 600.0  # longer than an API keeps what it knows of an account


class Ended(Struct, frozen=True, kw_only=True):
    """What became of a suspended account's predictions: ended in their queue, asked to stop; `left`: not ended yet."""

    ended: int = 0
    asked: int = 0
    left: int = 0


class Suspensions:
    """Suspensions in Redis. All methods raise BackendUnavailable while it cannot answer: call again, it goes on."""

    def __init__(self, redis: Redis, accounts: Accounts, catalog: Catalog, scripts: Scripts, clock: Clock) -> None:
        self._redis: Any = redis  # redis-py says str or bytes; ours answers in bytes
        self._accounts = accounts
        self._catalog = catalog
        self._scripts = scripts
        self._listing = Listing(redis)
        self._clock = clock

    async def suspend(self, account: str, policy: Policy, reason: Reason, *, within_s: float) -> Ended:
        """Hold all that the account has, or end it: so much of that as can be done in a while, a keeper does the rest.

        Raises SettingsError where there is no such account.
        """
        await self._accounts.refuse_unknown(account)
        await self._begin(account)
        since_ms = self._clock.now_ms()
        await self._accounts.set_suspension(account, Suspension(policy=policy, reason=reason, since_ms=since_ms))
        return await self.settle(account, within_s=within_s)

    async def resume(self, account: str) -> None:
        """Let it run again. Raises SettingsError where there is no such account."""
        await self._accounts.refuse_unknown(account)
        await self._begin(account)
        await self._accounts.set_suspension(account, None)
        await self.settle(account, within_s=0)

    async def settle(self, account: str, *, within_s: float) -> Ended:
        """Bring every queue into line with what is written down of the account."""
        written = await self._accounts.written(account)
        revision, suspension = written.suspension_rev, written.suspension
        score = 2 * revision + (suspension is not None)
        await ask(lambda: self._redis.zadd(keys.suspensions(), {account: score}, gt=True))
        queues = await self._catalog.queues()
        await asyncio.gather(
            *(
                self._scripts.pause(queue, paused=suspension is not None, tenant=account, revision=revision)
                for queue in queues
            )
        )
        if suspension is None or suspension.policy == "hold":
            return Ended()
        return await self._end(account, queues, within_s)

    async def settle_all(self, *, within_s: float) -> int:
        """Finish what was begun, and look after it for a while; how many accounts that are. Then they are let be."""
        found = await ask(lambda: self._redis.zrange(keys.settling(), 0, -1, withscores=True))
        unfinished: set[float] = set()
        for name, since_ms in found:
            if (await self.settle(text(name), within_s=within_s)).left:
                unfinished.add(since_ms)
        old_ms = self._clock.now_ms() - SETTLED_S * 1000
        for since_ms in {since_ms for _, since_ms in found if since_ms < old_ms} - unfinished:
            # By its time and not by its name: the account may have been suspended again meanwhile.
            await ask(partial(self._redis.zremrangebyscore, keys.settling(), since_ms, since_ms))
        return len(found)

    async def _begin(self, account: str) -> None:
        """Before anything is changed: whatever is cut short from here on, a keeper finishes."""
        await ask(lambda: self._redis.zadd(keys.settling(), {account: self._clock.now_ms()}))

    async def _end(self, account: str, queues: list[QueueName], within_s: float) -> Ended:
        """Cancel what it has, newest first, until as many were found as its queues count."""
        until, counts = self._clock.monotonic() + within_s, Counter[str]()
        here = await self._left(account, queues)
        for kind in KINDS:
            async for ids in self._listed(account, kind):
                if counts["canceled"] + counts["asked"] >= here or self._clock.monotonic() >= until:
                    break
                cancels = (self._scripts.cancel(each, account=account, kind=kind) for each in ids)
                counts.update(await asyncio.gather(*cancels))
        left = await self._left(account, queues) if here else 0
        return Ended(ended=counts["canceled"], asked=counts["asked"], left=left)

    async def _listed(self, account: str, kind: Kind) -> AsyncIterator[list[PredictionId]]:
        """Its ids of one kind, newest first, in slices."""
        high = "+"
        while ids := await self._listing.ids(account, kind, high=high, count=AT_ONCE):
            yield ids
            high = f"({ids[-1]}"

    async def _left(self, account: str, queues: list[QueueName]) -> int:
        """What waits and runs of it, over all queues."""

        def read(pipe: Any) -> None:
            for queue in queues:
                pipe.hget(keys.queued(queue), account)
                pipe.hget(keys.running(queue), account)

        return sum(int(count or 0) for count in await pipelined(self._redis, read))
