"""Queues as an operator names and sees them: which one is meant, who waits there, and where. Changes none."""

import asyncio
import heapq
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from redis import exceptions
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, text
from director.broker.scripts import QueueStats, Scripts
from director.core.errors import UnknownQueue
from director.core.ids import LANES, MODEL_NAME, QueueName, queue_name
from director.store.catalog import Catalog

__all__ = ("Queues", "Tenant")

SCAN: Final = 1_000  # tenants that one call reads: there may be a hundred thousand, and the server serves others too


class Tenant(Struct, frozen=True):
    """What an account has in one queue: waiting or delayed, and claimed. `is_paused`: by an operator, in this queue;
    `is_suspended`: in all of them. `weight` and `max_running`: as the queue knows them.
    """

    name: str
    waiting: int
    running: int
    is_paused: bool
    is_suspended: bool = False
    weight: float = 1.0
    max_running: int | None = None


class Queues:
    """All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis, catalog: Catalog, scripts: Scripts) -> None:
        self._redis: Any = redis  # its types say str or bytes, and ours answers in bytes
        self._catalog = catalog
        self._scripts = scripts

    async def all(self) -> list[QueueName]:
        """Every queue there is, sorted."""
        return await self._catalog.queues()

    async def named(self, name: str) -> QueueName | None:
        """The queue of this name, or of the latest version of the model of this name; None where there is none."""
        if re.fullmatch(MODEL_NAME, name) and (model := await self._catalog.model(name)) and model.latest:
            name = queue_name(model.name, model.latest)
        return QueueName(name) if name in await self._catalog.queues() else None

    async def tenants(self, queue: QueueName, *, most: int) -> list[Tenant]:
        """Those who have the most waiting, and behind them whoever else is paused, or suspended and has anything."""
        waiting = await self._waiting(queue, most)
        held = {text(name) for name in await ask(lambda: self._redis.smembers(keys.held(queue)))}
        suspended = {text(name) for name in await ask(lambda: self._redis.hkeys(keys.suspended(queue)))}
        rest = sorted((held | suspended) - waiting.keys())
        names = [*waiting, *rest]
        waiting |= dict(zip(rest, await self._counts(keys.queued(queue), rest), strict=True))
        running = await self._counts(keys.running(queue), names)
        limits = await ask(lambda: self._redis.hmget(keys.limits(queue), names)) if names else []
        tenants = [
            Tenant(name, waiting[name], runs, name in held, name in suspended, *_limits(known))
            for name, runs, known in zip(names, running, limits, strict=True)
        ]
        return [each for each in tenants if each.waiting or each.running or each.is_paused]

    async def tenant(self, queue: QueueName, name: str) -> Tenant:
        """One of them; noughts where it has nothing there."""
        [waiting] = await self._counts(keys.queued(queue), [name])
        [running] = await self._counts(keys.running(queue), [name])
        is_paused = await ask(lambda: self._redis.sismember(keys.held(queue), name))
        is_suspended = await ask(lambda: self._redis.hexists(keys.suspended(queue), name))
        known = await ask(lambda: self._redis.hget(keys.limits(queue), name))
        return Tenant(name, waiting, running, bool(is_paused), bool(is_suspended), *_limits(known))

    async def has(self, queue: QueueName) -> bool:
        """Is there such a queue?"""
        return bool(await ask(lambda: self._redis.sismember(keys.queues(), queue)))

    async def stats_of(self, queues: Sequence[QueueName]) -> list[tuple[QueueName, QueueStats]]:
        """Those of these that are still there, in one write."""

        async def look(queue: QueueName) -> QueueStats | None:
            try:
                return await self._scripts.stats(queue)
            except UnknownQueue:  # it was unregistered, or is about to be there
                return None

        found = await asyncio.gather(*map(look, queues))
        return [(queue, stats) for queue, stats in zip(queues, found, strict=True) if stats is not None]

    async def heat(self, queue: QueueName, *, read: int) -> Mapping[str, list[int]]:
        """How many stand in each stream of each lane and were not handed out, of the first `read` streams."""
        named = [(lane, keys.stream(queue, lane, number)) for lane in LANES for number in range(read)]
        lengths = await self._each("xlen", [stream for _, stream in named])
        held = [stream for (_, stream), length in zip(named, lengths, strict=True) if length]
        claimed = dict(zip(held, map(_pending, await self._each("xinfo_groups", held, may_be_gone=True)), strict=True))
        heat: dict[str, list[int]] = {lane: [] for lane in LANES}
        for (lane, stream), length in zip(named, lengths, strict=True):
            heat[lane].append(max(0, length - claimed.get(stream, 0)))
        return heat

    async def _each(self, command: str, names: Sequence[str], *, may_be_gone: bool = False) -> list[Any]:
        async def read() -> list[Any]:
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                getattr(pipe, command)(name)
            replies: list[Any] = await pipe.execute(raise_on_error=not may_be_gone)
            return replies

        return await ask(read) if names else []

    async def _waiting(self, queue: QueueName, most: int) -> dict[str, int]:
        largest: dict[str, int] = {}
        cursor = 0
        while True:
            cursor, found = await self._scanned(queue, cursor)
            largest |= {text(name): int(count) for name, count in found.items()}
            ordered = heapq.nsmallest(most, largest.items(), key=lambda pair: (-pair[1], pair[0]))
            largest = dict(ordered)
            if not cursor:
                return largest

    async def _scanned(self, queue: QueueName, cursor: int) -> tuple[int, dict[bytes, bytes]]:
        reply: tuple[int, dict[bytes, bytes]] = await ask(
            lambda: self._redis.hscan(keys.queued(queue), cursor, count=SCAN)
        )
        return reply

    async def _counts(self, key: str, names: list[str]) -> list[int]:
        return [int(count or 0) for count in await ask(lambda: self._redis.hmget(key, names))] if names else []


def _limits(known: bytes | None) -> tuple[float, int | None]:
    """Weight and most running, as the queue keeps them: `<weight> <most running> <revision>`."""
    weight, most = text(known or b"1  0").split(" ")[:2]
    return float(weight), int(most) if most else None


def _pending(groups: Any) -> int:
    """Of what XINFO GROUPS tells; 0 where the stream, or its group, went meanwhile."""
    return 0 if isinstance(groups, exceptions.RedisError) else sum(group["pending"] for group in groups)
