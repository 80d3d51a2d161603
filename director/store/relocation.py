"""Bring accounts, their tokens and the service's own secret to another Redis server, before its queues are moved there.

Each account is taken over once: a later run leaves it as it is there, and brings only tokens that were made since. So
a token that was revoked there does not come back. A run that was cut short is repeated from its start.
"""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text, texts
from director.core.clock import Clock
from director.store.accounts import SIGNING

CAME: Final = "came"  # a field of the account there: when its takeover began, ms
SKEW_MS: Final = 60_000  # tokens have the time of the process that made them
PURPOSES: Final = ("outputs",)  # the service has a secret for each of these


class Brought(Struct, frozen=True, kw_only=True):
    """The result of a run. `known`: accounts that were taken over before. `secrets`: the service's own that are now
    alike; others were made there before, and addresses that were signed here end.
    """

    accounts: int = 0
    known: int = 0
    tokens: int = 0
    secrets: int = 0


class Relocation:
    def __init__(self, here: Redis, there: Redis, clock: Clock) -> None:
        self._here: Any = here  # ours answer in bytes
        self._there: Any = there
        self._clock = clock

    async def run(self, names: Sequence[str], *, only_asks: bool = False) -> Brought:
        """Bring these accounts. With `only_asks` nothing is written."""
        alike = [await self._secret(purpose, only_asks=only_asks) for purpose in PURPOSES]
        accounts = tokens = 0
        for name in names:
            is_new, brought = await self._account(name, only_asks=only_asks)
            accounts, tokens = accounts + is_new, tokens + brought
        return Brought(accounts=accounts, known=len(names) - accounts, tokens=tokens, secrets=sum(alike))

    async def _secret(self, purpose: str, *, only_asks: bool) -> bool:
        key = keys.secret(purpose)
        ours = await ask(lambda: self._here.get(key))
        if ours is not None and not only_asks:
            await ask(lambda: self._there.set(key, ours, nx=True))
        theirs = await ask(lambda: self._there.get(key))
        return ours is not None and theirs in (ours, None)

    async def _account(self, name: str, *, only_asks: bool) -> tuple[bool, int]:
        began_ms = self._clock.now_ms()
        came = await ask(lambda: self._there.hget(keys.account(name), CAME))
        since_ms = None if came is None else int(came) - SKEW_MS
        if came is None and not only_asks:
            await self._take_over(name)
        tokens = await self._tokens(name, since_ms, only_asks=only_asks)
        if came is None and not only_asks:  # the last write, so that what was cut short before it is repeated
            await ask(lambda: self._there.hset(keys.account(name), CAME, began_ms))
        return came is None, tokens

    async def _take_over(self, name: str) -> None:
        key = keys.account(name)
        fields = texts(await ask(lambda: self._here.hgetall(key)))
        fields.pop(CAME, None)
        known = texts(await ask(lambda: self._there.hgetall(key)))
        gone = [field for field in known if field.startswith(SIGNING) and field not in fields]
        suspended = await ask(lambda: self._here.zscore(keys.suspensions(), name))
        spent = await ask(lambda: self._here.hget(keys.credit(name), "spent"))

        async def write() -> None:
            pipe = self._there.pipeline(transaction=False)
            pipe.hset(key, items=[part for pair in fields.items() for part in pair])
            if gone:
                pipe.hdel(key, *gone)
            pipe.sadd(keys.accounts(), name)
            if suspended is not None:
                pipe.zadd(keys.suspensions(), {name: suspended}, gt=True)
                pipe.zadd(keys.settling(), {name: self._clock.now_ms()})
            await pipe.execute()
            if spent is not None:
                await self._there.hset(keys.credit(name), "spent", spent)

        if fields:
            await ask(write)

    async def _tokens(self, name: str, since_ms: int | None, *, only_asks: bool) -> int:
        least = "-inf" if since_ms is None else since_ms
        listed = await ask(lambda: self._here.zrangebyscore(keys.tokens(name), least, "+inf", withscores=True))
        digests = [text(digest) for digest, _ in listed]
        found = await pipelined(self._here, lambda pipe: [pipe.hgetall(keys.token(digest)) for digest in digests])
        there = await pipelined(
            self._there, lambda pipe: [pipe.hget(keys.token(digest), "account") for digest in digests]
        )
        brought = 0
        for (_, created), digest, fields, known in zip(listed, digests, map(texts, found), there, strict=True):
            if fields and known is None:
                brought += 1
                if not only_asks:
                    await self._bring(name, digest, fields, created)
        return brought

    async def _bring(self, name: str, digest: str, fields: dict[str, str], created: float) -> None:
        async def write() -> None:
            # the list first, so that a working token is never missing from it
            await self._there.zadd(keys.tokens(name), {digest: created}, nx=True)
            pipe = self._there.pipeline(transaction=True)
            pipe.hset(keys.token(digest), items=[part for pair in fields.items() for part in pair])
            if expires := fields.get("expires"):
                pipe.pexpireat(keys.token(digest), int(expires))
            await pipe.execute()

        await ask(write)
