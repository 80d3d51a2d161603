"""Read queues as an operator sees them, and change them: pause, drain, resize, bound, migrate."""

import asyncio
import heapq
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

from msgspec import Struct
from redis import exceptions
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text
from director.broker.replies import Admission, Order, QueueStats
from director.broker.scripts import Scripts
from director.core.errors import SettingsError, UnknownQueue
from director.core.ids import LANES, MODEL_NAME, QueueName, model_and_kind, queue_name
from director.core.samples import MOST, Sample, parse
from director.store.catalog import Catalog
from director.store.changes import Changes, Note

SCAN: Final = 1_000  # accounts that one call reads: there may be a hundred thousand, and the server serves others too


class Tenant(Struct, frozen=True):
    """The predictions of one account in one queue. `waiting` includes delayed ones, `running` counts claims.

    `is_paused` is set by an operator for this queue, `is_suspended` for all queues.
    """

    name: str
    waiting: int
    running: int
    is_paused: bool
    is_suspended: bool = False
    weight: float = 1.0
    max_running: int | None = None


class Queues:
    def __init__(self, redis: Redis, catalog: Catalog, scripts: Scripts) -> None:
        self._redis: Any = redis  # ours answers in bytes
        self._catalog = catalog
        self._scripts = scripts

    async def all(self) -> list[QueueName]:
        return await self._catalog.queues()

    async def find(self, name: str) -> QueueName | None:
        """Return the queue of this name, or of the latest version of the model of this name, or None."""
        if re.fullmatch(MODEL_NAME, name) and (model := await self._catalog.model(name)) and model.latest:
            name = queue_name(model.name, model.latest)
        return QueueName(name) if name in await self._catalog.queues() else None

    async def tenants(self, queue: QueueName, *, most: int) -> list[Tenant]:
        """Return the accounts with the most waiting, then others that are paused, or suspended and not empty."""
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
        [waiting] = await self._counts(keys.queued(queue), [name])
        [running] = await self._counts(keys.running(queue), [name])
        is_paused = await ask(lambda: self._redis.sismember(keys.held(queue), name))
        is_suspended = await ask(lambda: self._redis.hexists(keys.suspended(queue), name))
        known = await ask(lambda: self._redis.hget(keys.limits(queue), name))
        return Tenant(name, waiting, running, bool(is_paused), bool(is_suspended), *_limits(known))

    async def has(self, queue: QueueName) -> bool:
        return bool(await ask(lambda: self._redis.sismember(keys.queues(), queue)))

    async def stats_of(self, queues: Sequence[QueueName]) -> list[tuple[QueueName, QueueStats]]:
        """Return the queues that still exist with their numbers, in one write."""

        async def look(queue: QueueName) -> QueueStats | None:
            try:
                return await self._scripts.stats(queue)
            except UnknownQueue:  # unregistered, or not registered yet
                return None

        found = await asyncio.gather(*map(look, queues))
        return [(queue, stats) for queue, stats in zip(queues, found, strict=True) if stats is not None]

    async def heat(self, queue: QueueName, *, read: int) -> Mapping[str, list[int]]:
        """Return how many entries of each stream of each lane are not handed out, for the first `read` streams."""
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


async def account_counts(redis: Redis, queues: Sequence[QueueName]) -> list[int]:
    """Return how many accounts have had something waiting in each queue."""
    return await pipelined(redis, lambda pipe: [pipe.hlen(keys.queued(queue)) for queue in queues])


async def waiting_by_account(redis: Redis, queues: Sequence[QueueName]) -> list[dict[str, int]]:
    """Return how many of each account wait in each queue. Ask it only of queues with few accounts."""
    found = await pipelined(redis, lambda pipe: [pipe.hgetall(keys.queued(queue)) for queue in queues])
    return [{text(name): int(count) for name, count in counts.items()} for counts in found]


async def overdue_counts(redis: Redis, queues: Sequence[QueueName], *, before_ms: int) -> list[tuple[int, int, int]]:
    """Return for each queue how many leases, retries and deadlines were over by then."""
    kinds = (keys.lease, keys.delayed, keys.deadline)
    counts = iter(
        await pipelined(
            redis, lambda pipe: [pipe.zcount(key(queue), "-inf", before_ms) for queue in queues for key in kinds]
        )
    )
    return list(zip(counts, counts, counts, strict=True))


def _limits(known: bytes | None) -> tuple[float, int | None]:
    weight, most = text(known or b"1  0").split(" ")[:2]
    return float(weight), int(most) if most else None


def _pending(groups: Any) -> int:
    return 0 if isinstance(groups, exceptions.RedisError) else sum(group["pending"] for group in groups)


SLICE: Final = 50  # a few milliseconds of the server, which serves others too
PASSES: Final = 10


class Moved(Struct, frozen=True, kw_only=True):
    moved: int = 0
    claimed: int = 0
    held: int = 0


class Migration:
    def __init__(self, scripts: Scripts, queue: QueueName, to: QueueName) -> None:
        if queue == to:
            raise SettingsError("That is the same queue twice.")
        if model_and_kind(queue) != model_and_kind(to):
            raise SettingsError(f"{queue} and {to} are not of one model, or not for one kind of run.")
        self._scripts = scripts
        self._queue = queue
        self._to = to

    async def steps(self, *, only_asks: bool = False) -> AsyncIterator[Moved]:
        """Move all that waits, and yield the progress after each slice. With `only_asks` nothing moves.

        The queue is searched until a pass moves nothing, at most ten times: stop a queue that fills faster first.
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


class QueueAdministration:
    """Changes are logged with their operator (`by`), whom the caller has checked. Raises UnknownQueue."""

    def __init__(self, scripts: Scripts, changes: Changes) -> None:
        self._scripts = scripts
        self._changes = changes

    async def pause(self, queue: QueueName, *, account: str = "", by: str) -> None:
        async with self._changes.noting("queue_paused", by=by, queue=queue, account=account):
            # those who wait read the account alone, and the log of changes its token too
            await self._scripts.pause(queue, paused=True, account=account, by=by.partition("/")[0])

    async def resume(self, queue: QueueName, *, account: str = "", by: str) -> None:
        async with self._changes.noting("queue_resumed", by=by, queue=queue, account=account):
            await self._scripts.pause(queue, paused=False, account=account)

    async def order(self, queue: QueueName, order: Order, *, by: str) -> None:
        """Say whether a model that shares devices is loaded. Its director does so within a second."""
        async with self._changes.noting("model_ordered", by=by, queue=queue, order=order):
            await self._scripts.order(queue, order)

    async def drain(self, queue: QueueName, *, by: str) -> QueueStats:
        """Pause the queue unless it is paused, and return its numbers. It is drained once no claim is left."""
        stats = await self._scripts.stats(queue)
        if not stats.paused:
            await self.pause(queue, by=by)
            stats = await self._scripts.stats(queue)
        return stats

    async def resize(self, queue: QueueName, *, streams: int, by: str) -> tuple[int, int]:
        """Change the streams of each lane. Return (streams that take new work, streams that are read)."""
        async with self._changes.noting("queue_resized", by=by, queue=queue, streams=streams):
            return await self._scripts.resize(queue, streams=streams)

    async def set_bound(self, queue: QueueName, *, mode: Admission, max_queued: int | None, by: str) -> None:
        async with self._changes.noting("queue_bounded", by=by, queue=queue, mode=mode, max_queued=max_queued):
            await self._scripts.bound(queue, mode=mode, max_queued=max_queued)

    async def migrate(
        self, queue: QueueName, to: QueueName, *, by: str, only_asks: bool = False
    ) -> AsyncGenerator[Moved]:
        migration = Migration(self._scripts, queue, to)
        noted = self._changes.noting("queue_migrated", by=by, queue=queue, to=to)
        async with nullcontext(Note()) if only_asks else noted as change:
            async for moved in migration.steps(only_asks=only_asks):
                if moved.moved:
                    change.begin()
                yield moved


HISTORIES_AT_ONCE: Final = 50  # queues per write to the socket: an hour of one is about 25 KB


class QueueHistory:
    def __init__(self, redis: Redis) -> None:
        self._redis: Any = redis  # ours answers in bytes

    async def of(self, queue: QueueName, *, most: int = MOST) -> list[Sample]:
        """Return the newest samples of one queue, oldest first. Empty if nothing has happened for an hour."""
        return (await self.many([queue], most=most))[queue]

    async def many(self, queues: Sequence[QueueName], *, most: int = MOST) -> dict[QueueName, list[Sample]]:
        found: dict[QueueName, list[Sample]] = {}
        for start in range(0, len(queues), HISTORIES_AT_ONCE):
            some = queues[start : start + HISTORIES_AT_ONCE]
            for queue, lines in zip(some, await self._lines(some, most - 1), strict=True):
                found[queue] = [parse(line) for line in reversed(lines)]
        return found

    async def _lines(self, queues: Sequence[QueueName], last: int) -> list[list[bytes]]:
        return await pipelined(self._redis, lambda pipe: [pipe.lrange(keys.samples(each), 0, last) for each in queues])
