"""Queues as an operator names and sees them: which one is meant, who waits there, and where. Changes none."""

import asyncio
import heapq
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct
from redis import exceptions
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text
from director.broker.scripts import Admission, QueueStats, Scripts
from director.core.errors import SettingsError, UnknownQueue
from director.core.ids import LANES, MODEL_NAME, QueueName, model_and_kind, queue_name
from director.store.catalog import Catalog
from director.store.changes import Changes

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
        self._redis: Any = redis  # redis-py says str or bytes; ours answers in bytes
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
        return await pipelined(
            self._redis,
            lambda pipe: [getattr(pipe, command)(name) for name in names],
            raise_on_error=not may_be_gone,
        )

    async def _waiting(self, queue: QueueName, most: int) -> dict[str, int]:
        largest: dict[str, int] = {}
        cursor = 0
        while True:
            cursor, found = await ask(partial(self._redis.hscan, keys.queued(queue), cursor, count=SCAN))
            largest |= {text(name): int(count) for name, count in found.items()}
            ordered = heapq.nsmallest(most, largest.items(), key=lambda pair: (-pair[1], pair[0]))
            largest = dict(ordered)
            if not cursor:
                return largest

    async def _counts(self, key: str, names: list[str]) -> list[int]:
        return [int(count or 0) for count in await ask(lambda: self._redis.hmget(key, names))] if names else []


def _limits(known: bytes | None) -> tuple[float, int | None]:
    """Weight and most running, as the queue keeps them: `<weight> <most running> <revision>`."""
    weight, most = text(known or b"1  0").split(" ")[:2]
    return float(weight), int(most) if most else None


def _pending(groups: Any) -> int:
    """Of what XINFO GROUPS tells; 0 where the stream, or its group, went meanwhile."""
    return 0 if isinstance(groups, exceptions.RedisError) else sum(group["pending"] for group in groups)


# Move what waits in a queue to another one of the same model: an old version's to its successor.
#
# Each slice is one step of the server, so what is cut short has moved some and harmed none, and is done by the same
# call once more. What is claimed ends where it is; where it comes back to wait, the next call moves it.

SLICE: Final = 50  # a few milliseconds of the server, which serves others too
PASSES: Final = 10


class Moved(Struct, frozen=True, kw_only=True):
    """So far: how many were moved; of the last pass, how many stay since they are claimed, or their account paused."""

    moved: int = 0
    claimed: int = 0
    held: int = 0


class Migration:
    """From one queue to another. Raises BackendUnavailable while Redis cannot answer."""

    def __init__(self, scripts: Scripts, queue: QueueName, to: QueueName) -> None:
        if queue == to:
            raise SettingsError("That is the same queue twice.")
        if model_and_kind(queue) != model_and_kind(to):
            raise SettingsError(f"{queue} and {to} are not of one model, or not for one kind of run.")
        self._scripts = scripts
        self._queue = queue
        self._to = to

    async def steps(self, *, only_asks: bool = False) -> AsyncIterator[Moved]:
        """Move all that waits, slice by slice; what was done by then. `only_asks`: what would be, and nothing is.

        It looks through the queue again until it finds nothing more there, but ten times at most: what comes faster
        than that has to be stopped first.
        """
        moved = 0
        for _ in range(PASSES):
            claimed = held = start = 0
            before = moved
            while True:
                found = await self._scripts.migrate(
                    self._queue, to=self._to, start=start, count=SLICE, only_asks=only_asks
                )
                if found is None:
                    raise UnknownQueue(self._to)
                moved, claimed, held = moved + found.moved, claimed + found.claimed, held + found.held
                yield Moved(moved=moved, claimed=claimed, held=held)
                start = found.next
                if start < 0:
                    break
            if only_asks or moved == before:
                return


# What an operator does with queues, whichever way it was asked for: pause, drain, resize, bound, migrate.
#
# Every change is in the log of changes, with who made it. Judges nobody: whoever calls has asked whether the operator
# may.


class QueueAdministration:
    """Changes to queues. `by` says who makes one. All methods raise BackendUnavailable while Redis cannot answer, and
    UnknownQueue where nobody registered it.
    """

    def __init__(self, scripts: Scripts, changes: Changes) -> None:
        self._scripts = scripts
        self._changes = changes

    async def pause(self, queue: QueueName, *, account: str = "", by: str) -> None:
        """Hand nothing out, of one account or at all. What is claimed runs on."""
        async with self._changes.noting("queue_paused", by=by, queue=queue, account=account):
            await self._scripts.pause(queue, paused=True, tenant=account)

    async def resume(self, queue: QueueName, *, account: str = "", by: str) -> None:
        """Hand out again what waits."""
        async with self._changes.noting("queue_resumed", by=by, queue=queue, account=account):
            await self._scripts.pause(queue, paused=False, tenant=account)

    async def drain(self, queue: QueueName, *, by: str) -> QueueStats:
        """Hand nothing out; how the queue stands then: drained once nothing is claimed. To ask again is no change."""
        stats = await self._scripts.stats(queue)
        if not stats.paused:
            await self.pause(queue, by=by)
            stats = await self._scripts.stats(queue)
        return stats

    async def resize(self, queue: QueueName, *, streams: int, by: str) -> tuple[int, int]:
        """Change the streams of each lane; returns (streams that take new work, streams that are read)."""
        async with self._changes.noting("queue_resized", by=by, queue=queue, streams=streams):
            return await self._scripts.resize(queue, streams=streams)

    async def bound(self, queue: QueueName, *, mode: Admission, max_queued: int | None, by: str) -> None:
        """What the queue does with more than it can run; `max_queued` goes with `bounded`."""
        async with self._changes.noting("queue_bounded", by=by, queue=queue, mode=mode, max_queued=max_queued):
            await self._scripts.bound(queue, mode=mode, max_queued=max_queued)

    async def migrate(
        self, queue: QueueName, to: QueueName, *, by: str, only_asks: bool = False
    ) -> AsyncGenerator[Moved]:
        """Move what waits to another queue of the model, a slice at a time. Raises SettingsError where it is of none.

        `only_asks`: says what would be moved, and nothing is.
        """
        migration = Migration(self._scripts, queue, to)
        if only_asks:
            async for moved in migration.steps(only_asks=True):
                yield moved
            return
        async with self._changes.noting("queue_migrated", by=by, queue=queue, to=to):
            async for moved in migration.steps():
                yield moved
