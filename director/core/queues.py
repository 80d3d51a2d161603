"""Queues as an operator names and sees them: which one is meant, and who waits in it. Changes none: scripts do."""

import heapq
import re
from typing import Any, Final

from msgspec import Struct
from redis.asyncio import Redis

from director.core import keys
from director.core.catalog import Catalog
from director.core.ids import MODEL_NAME, QueueName, queue_name
from director.core.redis_client import ask, text

__all__ = ("Queues", "Tenant")

SCAN: Final = 1_000  # tenants that one call reads: there may be a hundred thousand, and the server serves others too


class Tenant(Struct, frozen=True):
    """What an account has in one queue: waiting or delayed, and claimed. `is_paused`: by an operator, in this queue;
    `is_suspended`: in all of them.
    """

    name: str
    waiting: int
    running: int
    is_paused: bool
    is_suspended: bool = False


class Queues:
    """All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis, catalog: Catalog) -> None:
        self._redis: Any = redis  # its types say str or bytes, and ours answers in bytes
        self._catalog = catalog

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
        tenants = [
            Tenant(name, waiting[name], runs, name in held, name in suspended)
            for name, runs in zip(names, running, strict=True)
        ]
        return [each for each in tenants if each.waiting or each.running or each.is_paused]

    async def tenant(self, queue: QueueName, name: str) -> Tenant:
        """One of them; noughts where it has nothing there."""
        [waiting] = await self._counts(keys.queued(queue), [name])
        [running] = await self._counts(keys.running(queue), [name])
        is_paused = await ask(lambda: self._redis.sismember(keys.held(queue), name))
        is_suspended = await ask(lambda: self._redis.hexists(keys.suspended(queue), name))
        return Tenant(name, waiting, running, bool(is_paused), bool(is_suspended))

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
