"""Read the log of a partition, or of operators' changes, from a cursor on, and its newest lines. What a receiver of the
audit log has read is kept by the receiver itself, or here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from redis import exceptions
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text, texts
from director.core.ids import Partition, QueueName
from director.store.changes import ChangeKind

CHANGES: Final = Partition(-1)  # stands for the log of operators' changes, which has no partition
STEPS: Final = (
    *("accepted", "claimed", "retried", "released", "moved", "asked"),
    *("ended", "told", "revived", "dropped", "erased"),
)
KINDS: Final[frozenset[str]] = frozenset((*STEPS, *get_args(ChangeKind)))
AT_ONCE: Final = 500  # entries of one partition in one round of `Following`
NO_KEY: Final = "no such key"  # Redis's words for a log that never had an entry


class Cursor(Struct, frozen=True, array_like=True):
    """A position in a log: the last entry that was read, and the number of entries up to it."""

    entry: str = "0-0"
    number: int = 0


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`entry` is never used twice in a partition. `at` is in ms. `kind` (one of KINDS) decides the meaning of
    `detail`. A change by an operator has the operator's name in `by`.
    """

    partition: int
    entry: str
    at: int
    kind: str
    id: str
    queue: str
    account: str
    detail: str
    by: str = ""


class Batch(Struct, frozen=True, kw_only=True):
    """The entries after a cursor, and the cursor after them. `missed`: entries that were cut before they were read."""

    partition: int
    entries: tuple[Entry, ...] = ()
    missed: int = 0
    cursor: Cursor

    def halves(self) -> tuple["Batch", "Batch"]:
        middle = len(self.entries) // 2
        older, newer = self.entries[:middle], self.entries[middle:]
        between = Cursor(older[-1].entry, self.cursor.number - len(newer))
        return replace(self, entries=older, cursor=between), replace(self, entries=newer, missed=0)


class LogReading(Struct, frozen=True, kw_only=True):
    """A log at one moment: the numbers of entries added and cut, its last entry, and some entries."""

    added: int
    cut: int
    last: str
    found: list[Any]

    def continues(self, after: Cursor, count: int) -> bool:
        """Return True if this is the log that was read up to `after`, not an older copy or a new log."""
        unread = self.added - max(self.cut, after.number)
        is_all = unread == len(self.found) or (unread > len(self.found) == count)
        return is_all and _order(self.last) >= _order(after.entry)


class AuditLog:
    """The logs in Redis. All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def partitions(self) -> list[Partition]:
        """Return every partition that has a queue or had one: a log outlives the queues of its entries."""
        queues = await ask(lambda: self._redis.smembers(keys.queues()))
        numbers = await ask(lambda: self._redis.smembers(keys.partitions()))
        of_queues = {keys.queue_partition(QueueName(text(queue))) for queue in queues}
        return sorted({CHANGES} | of_queues | {Partition(int(number)) for number in numbers})

    async def oldest(self, partition: Partition) -> Cursor:
        return Cursor(number=(await self._look(partition, Cursor().entry, 1)).cut)

    async def newest(self, partition: Partition) -> Cursor:
        seen = await self._look(partition, Cursor().entry, 1)
        return Cursor(entry=seen.last, number=seen.added)

    async def read(self, partition: Partition, after: Cursor, *, count: int) -> Batch:
        """Return at most `count` entries after a cursor, oldest first. A server that lost its newest entries may have
        named later ones before the cursor. Such a log is read again from its oldest entry.
        """
        seen = await self._look(partition, after.entry, count)
        if not seen.continues(after, count):
            after = Cursor(number=seen.cut)
            seen = await self._look(partition, after.entry, count)
        entries = tuple(_entry(partition, name, fields) for name, fields in seen.found)
        return Batch(
            partition=partition,
            entries=entries,
            missed=max(0, seen.cut - after.number),
            cursor=Cursor(entries[-1].entry if entries else after.entry, max(seen.cut, after.number) + len(entries)),
        )

    async def _look(self, partition: Partition, after: str, count: int) -> LogReading:
        key = keys.changes() if partition == CHANGES else keys.log(partition)

        def look(pipe: Any) -> None:
            pipe.xinfo_stream(key)
            pipe.xrange(key, min=f"({after}", count=count)

        # in one transaction: an entry cut between the two would be neither read nor counted
        info, found = await pipelined(self._redis, look, raise_on_error=False, transaction=True)
        if isinstance(info, exceptions.ResponseError):
            if NO_KEY not in str(info):
                raise info
            return LogReading(added=0, cut=0, last=Cursor().entry, found=[])
        added = info["entries-added"]
        return LogReading(added=added, cut=added - info["length"], last=text(info["last-generated-id"]), found=found)


def _entry(partition: int, name: bytes, fields: dict[bytes, bytes]) -> Entry:
    values = {field.decode(): value.decode() for field, value in fields.items()}
    return msgspec.convert({**values, "partition": partition, "entry": name.decode()}, Entry, strict=False)


def _order(entry: str) -> list[int]:
    return [int(part) for part in entry.split("-")]


Line = tuple[bytes, Mapping[bytes, bytes]]
"""(name, fields) of one entry, as Redis has it."""


async def newest_lines(
    redis: Redis, partitions: Sequence[Partition], *, first: str, last: str, most: int
) -> list[list[Line]]:
    """Return of each partition at most `most` lines between two names, the newest first."""
    return await pipelined(
        redis, lambda pipe: [pipe.xrevrange(keys.log(one), last, first, count=most) for one in partitions]
    )


async def newest_and_oldest(
    redis: Redis, partition: Partition, *, first: str, last: str, most: int
) -> tuple[list[Line], Line, int]:
    """Return the same of one partition, the oldest line that its log still has, and how many it has."""
    log = keys.log(partition)
    [oldest], length, lines = await pipelined(
        redis,
        lambda pipe: [pipe.xrange(log, count=1), pipe.xlen(log), pipe.xrevrange(log, last, first, count=most)],
    )
    return lines, oldest, length


async def cursors_of(redis: Redis, receiver: str) -> dict[int, Cursor]:
    """Return how far a receiver has read, by partition."""
    client: Any = redis
    found = texts(await ask(lambda: client.hgetall(keys.sink(receiver))))
    return {int(name): msgspec.convert(value.split(" "), Cursor, strict=False) for name, value in found.items()}


async def keep_cursor(redis: Redis, receiver: str, partition: int, cursor: Cursor) -> None:
    client: Any = redis
    await ask(lambda: client.hset(keys.sink(receiver), str(partition), f"{cursor.entry} {cursor.number}"))


class News(Struct):
    entries: list[Entry] = []
    missed: int = 0
    more: bool = False


class Following:
    """Follows these partitions and operators' changes, or all partitions with a queue if none are given. Only for
    watching: its cursors are not kept.
    """

    def __init__(self, log: AuditLog, partitions: Sequence[Partition] = ()) -> None:
        self._log = log
        self._partitions = partitions
        self._cursors: dict[Partition, Cursor] = {}

    async def begin(self) -> None:
        for partition in await self._read_of():
            self._cursors[partition] = await self._log.newest(partition)

    async def read(self) -> News:
        """After an error of Redis, the next round reads the same entries."""
        news, cursors = News(), dict(self._cursors)
        for partition in await self._read_of():
            # a partition that got its first queue since has nothing older, unless a queue was removed there before
            after = cursors.get(partition) or await self._log.oldest(partition)
            batch = await self._log.read(partition, after, count=AT_ONCE)
            cursors[partition] = batch.cursor
            news.entries += batch.entries
            news.missed += batch.missed
            news.more |= len(batch.entries) == AT_ONCE
        self._cursors = cursors
        news.entries.sort(key=lambda entry: entry.at)
        return news

    async def _read_of(self) -> Sequence[Partition]:
        return [CHANGES, *self._partitions] if self._partitions else await self._log.partitions()
