"""Read the log of a partition, or of operators' changes, from a cursor on, and its newest lines. What a receiver of the
audit log has read is kept by the receiver itself, or here.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Protocol, get_args

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace
from redis import exceptions
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text, texts
from director.core.ids import Partition, QueueName
from director.store.changes import ChangeKind

CHANGES: Final = Partition(-1)  # stands for the log of operators' changes, which has no partition
SPLITS: Final = Partition(0)  # of the changes of splits
STEPS: Final = (
    *("accepted", "claimed", "retried", "released", "moved", "asked"),
    *("ended", "told", "revived", "dropped", "erased", "split"),
)
KINDS: Final[frozenset[str]] = frozenset((*STEPS, *get_args(ChangeKind)))
AT_ONCE: Final = 500  # entries of one partition in one round
ROUND: Final = 2_000  # entries of all partitions in one round, about
NO_KEY: Final = "no such key"  # Redis's words for a log that never had an entry


class Cursor(Struct, frozen=True, array_like=True):
    """A position in a log: the last entry that was read, and the number of entries up to it."""

    entry: Annotated[str, Meta(pattern=r"^[0-9]{1,15}-[0-9]{1,15}$(?!\n)")] = "0-0"
    number: Annotated[int, Meta(ge=0)] = 0


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


class News(Struct, frozen=True, kw_only=True):
    """One round over several logs: a batch of each that has entries, or had no cursor. `first`: the partition at which
    the next round begins, so that a busy one delays no other. `more`: whether this round left some.
    """

    batches: list[Batch] = []
    first: int = CHANGES
    more: bool = False

    @property
    def entries(self) -> list[Entry]:
        """Return the entries in the order of their times."""
        return sorted((entry for batch in self.batches for entry in batch.entries), key=lambda entry: entry.at)

    @property
    def missed(self) -> int:
        return sum(batch.missed for batch in self.batches)


class LogReader(Protocol):
    """Reads the logs, in Redis or through the API. Raises BackendUnavailable while they cannot be read."""

    async def ends(self) -> Mapping[int, Cursor]:
        """Return the newest position of each log."""
        ...

    async def read_all(self, after: Mapping[int, Cursor], *, first: int = CHANGES) -> News:
        """Return what comes after these cursors. A log without one begins at its oldest entry."""
        ...


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
    """The logs in Redis: of all partitions, or `only` of these. All methods raise BackendUnavailable while Redis cannot
    answer.
    """

    def __init__(self, redis: Redis, only: Sequence[Partition] = ()) -> None:
        self._redis = redis
        self._only = only

    async def partitions(self) -> list[Partition]:
        """Return every partition that has a queue or had one, as a log outlives the queues of its entries, and the one
        that has the changes of splits.
        """
        if self._only:
            return sorted({CHANGES, *self._only})
        queues = await ask(lambda: self._redis.smembers(keys.queues()))
        numbers = await ask(lambda: self._redis.smembers(keys.partitions()))
        of_queues = {keys.queue_partition(QueueName(text(queue))) for queue in queues}
        return sorted({CHANGES, SPLITS} | of_queues | {Partition(int(number)) for number in numbers})

    async def ends(self) -> dict[int, Cursor]:
        found: dict[int, Cursor] = {}
        for partition in await self.partitions():
            seen = await self._look(partition, Cursor().entry, 1)
            found[partition] = Cursor(entry=seen.last, number=seen.added)
        return found

    async def read_all(self, after: Mapping[int, Cursor], *, first: int = CHANGES) -> News:
        known = sorted({*await self.partitions(), *(() if self._only else map(Partition, after))})
        batches, count, more = list[Batch](), 0, False
        for partition in [one for one in known if one >= first] + [one for one in known if one < first]:
            if count >= ROUND:
                return News(batches=batches, first=partition, more=True)
            batch = await self._read_next(partition, after.get(partition))
            count += len(batch.entries)
            more |= len(batch.entries) == AT_ONCE
            if batch.entries or batch.missed or batch.cursor != after.get(partition):
                batches.append(batch)
        return News(batches=batches, first=first, more=more)

    async def _read_next(self, partition: Partition, after: Cursor | None) -> Batch:
        """Return the next entries of one log, without a cursor from its oldest on: then nothing was missed."""
        if after is None:
            after = Cursor(number=(await self._look(partition, Cursor().entry, 1)).cut)
        return await self.read(partition, after, count=AT_ONCE)

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


class Following:
    """Follows the logs from their ends on. Only for watching: its cursors are not kept."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._cursors: dict[int, Cursor] = {}
        self._first: int = CHANGES

    async def begin(self) -> None:
        self._cursors = dict(await self._log.ends())

    async def read(self) -> News:
        """After an error the next round reads the same entries."""
        # a partition that got its first queue since has nothing older, unless a queue was removed there before
        news = await self._log.read_all(self._cursors, first=self._first)
        self._cursors |= {batch.partition: batch.cursor for batch in news.batches}
        self._first = news.first
        return news
