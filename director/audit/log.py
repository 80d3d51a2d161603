"""Read the log of a partition, or that of changes, from where somebody left off, and count what was cut before.

Reads only. Every sink has a cursor of its own, so none waits for another.
"""

from collections.abc import Sequence
from typing import Any, Final, get_args

from msgspec import Struct
from msgspec.structs import replace
from redis import exceptions
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, text
from director.core.ids import Partition, QueueName
from director.store.changes import ChangeKind

CHANGES: Final = Partition(-1)  # stands for the log of what operators change, which is of no partition
STEPS: Final = (
    *("accepted", "claimed", "retried", "released", "moved", "asked"),
    *("ended", "told", "revived", "dropped", "erased"),
)
KINDS: Final[frozenset[str]] = frozenset((*STEPS, *get_args(ChangeKind)))
NO_KEY: Final = "no such key"  # nothing was ever logged there


class Cursor(Struct, frozen=True, array_like=True):
    """How far somebody has read: the last entry, and how many there were ever up to it."""

    entry: str = "0-0"
    number: int = 0


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a prediction, or one change by an operator: then `by` says who, and `id` is that of the change.

    `entry` names it in its partition, and is never used twice; `at` in ms.

    `kind` is one of KINDS. What `detail` says depends on it.
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
    """What follows a cursor, and the cursor after it. `missed`: how many were cut before anybody read them."""

    partition: int
    entries: tuple[Entry, ...] = ()
    missed: int = 0
    cursor: Cursor

    def halves(self) -> tuple["Batch", "Batch"]:
        """The same in two, each with its cursor. There are two entries at least."""
        middle = len(self.entries) // 2
        older, newer = self.entries[:middle], self.entries[middle:]
        between = Cursor(older[-1].entry, self.cursor.number - len(newer))
        return replace(self, entries=older, cursor=between), replace(self, entries=newer, missed=0)


class Seen(Struct, frozen=True, kw_only=True):
    """A log at one moment: how many entries it ever had, how many of them were cut, its last one, and some to read."""

    added: int
    cut: int
    last: str
    found: list[Any]

    def continues(self, after: Cursor, count: int) -> bool:
        """Is it the log that was read up to `after`? Else an older copy or a new log stands in its place."""
        unread = self.added - max(self.cut, after.number)
        is_all = unread == len(self.found) or (unread > len(self.found) == count)
        return is_all and _order(self.last) >= _order(after.entry)


class AuditLog:
    """The logs in Redis. Raises BackendUnavailable while it cannot answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def partitions(self) -> list[Partition]:
        """That of changes, and those that have a queue."""
        queues = await ask(lambda: self._redis.smembers(keys.queues()))
        return sorted({CHANGES} | {keys.queue_partition(QueueName(text(queue))) for queue in queues})

    async def oldest(self, partition: Partition) -> Cursor:
        """Where somebody begins who never read it."""
        return Cursor(number=(await self._look(partition, Cursor().entry, 1)).cut)

    async def newest(self, partition: Partition) -> Cursor:
        """Where somebody begins who wants what is to come."""
        seen = await self._look(partition, Cursor().entry, 1)
        return Cursor(entry=seen.last, number=seen.added)

    async def read(self, partition: Partition, after: Cursor, *, count: int) -> Batch:
        """At most `count` entries after a cursor, oldest first.

        A server that lost the newest entries may have given younger ones names that stand before the cursor: such a log
        is read again from its oldest entry.
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

    async def _look(self, partition: Partition, after: str, count: int) -> Seen:
        key = keys.changes() if partition == CHANGES else keys.log(partition)

        async def look() -> list[Any]:
            # together: what is cut between two looks would be missed and not counted
            pipe = self._redis.pipeline(transaction=True)
            pipe.xinfo_stream(key)
            pipe.xrange(key, min=f"({after}", count=count)
            return await pipe.execute(raise_on_error=False)

        info, found = await ask(look)
        if isinstance(info, exceptions.ResponseError):
            if NO_KEY not in str(info):
                raise info
            return Seen(added=0, cut=0, last=Cursor().entry, found=[])
        added = info["entries-added"]
        return Seen(added=added, cut=added - info["length"], last=text(info["last-generated-id"]), found=found)


def _entry(partition: int, name: bytes, fields: dict[bytes, bytes]) -> Entry:
    told = {field.decode(): value.decode() for field, value in fields.items()}
    return Entry(
        partition=partition,
        entry=name.decode(),
        at=int(told["at"]),
        kind=told["kind"],
        id=told["id"],
        queue=told["queue"],
        account=told["account"],
        detail=told["detail"],
        by=told.get("by", ""),
    )


def _order(entry: str) -> list[int]:
    return [int(part) for part in entry.split("-")]


# What is added to the logs from now on, of all partitions or of one queue's, for whoever only watches.
#
# Keeps no cursor beyond its own life, so it is no way to carry the log: see `feeder.py`. Reads only.

AT_ONCE: Final = 500


class News:
    """What one round found, in the order of time; `missed`: how many were cut before it came."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.missed = 0
        self.more = False


class Following:
    """Of these partitions and the changes of operators; of all that have a queue where none is named."""

    def __init__(self, log: AuditLog, partitions: Sequence[Partition] = ()) -> None:
        self._log = log
        self._partitions = partitions
        self._cursors: dict[Partition, Cursor] = {}

    async def begin(self) -> None:
        """What is there already was before. Raises BackendUnavailable, as `read` does."""
        for partition in await self._read_of():
            self._cursors[partition] = await self._log.newest(partition)

    async def read(self) -> News:
        """One round; one that is cut short by Redis is made again by the next."""
        news, cursors = News(), dict(self._cursors)
        for partition in await self._read_of():
            # what has a queue only now has nothing that is older, but where one was removed before
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
