"""Store how deployments' calls are split between two versions, and count how runs of both end.

All splits lie in one partition, as every user of Redis may write there, and not with their deployments, whose form
release 0.3.0 compares. So a split names what it belongs to, and is void with any other: see `join` in deployments.py.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys, replies
from director.broker.redis_client import ask, read_all, text, texts
from director.broker.scripts import Scripts
from director.core.ids import Partition, PredictionId, QueueName, queue_name
from director.core.split import EndedRun, Figures, Split, read_figures
from director.store.records import record_fields

log = logging.getLogger(__name__)

MOST: Final = 100  # trials of one account
MOST_LISTED: Final = 10_000  # trials that keepers look at in one round
AT_ONCE: Final = 100
MOST_STEPS: Final = 1_000  # entries of a log in one command: Redis serves no other for about 2 ms
RECORDS_AT_ONCE: Final = 250
RAN: Final = ("deployment", "split", "started", "completed", "revivals")


class Counts(Struct, frozen=True):
    """How runs of a split ended so far. `cursor`: the last entry of the log that was counted."""

    figures: Figures
    cursor: str

    @classmethod
    def of(cls, stored: Mapping[bytes, bytes]) -> "Counts":
        """Decode the counts as they are stored. Raises ValueError for an unknown form."""
        fields = texts(stored)
        return cls(read_figures(fields), fields.get("cursor", ""))


class LogPart(Struct, frozen=True):
    """Runs that ended, by entry, of a part of a log. `cursor`: its last entry. `is_last`: the log has no more."""

    runs: Sequence[tuple[str, EndedRun]]
    cursor: str
    is_last: bool

    def after(self, cursor: str) -> list[EndedRun]:
        return [run for entry, run in self.runs if order(entry) > order(cursor)]


class Splits:
    def __init__(self, redis: Redis, scripts: Scripts) -> None:
        self._redis: Any = redis  # ours answers in bytes
        self._scripts = scripts

    async def many(self, names: Sequence[str]) -> list[bytes]:
        """Return the splits of deployments as they are stored, b"" where it is missing."""
        return await read_splits(self._redis, names)

    async def write(self, name: str, was: bytes, becomes: Split | None, *, of: Split, did: str) -> replies.Split:
        """Write a split, or remove it, if it still equals `was`: the bytes that were read, which a later release may
        have written. `of`: the split whose version the log names. `did`: what was done and by whom, for the log.
        """
        return await self._scripts.split(
            name,
            was,
            encode_split(becomes),
            step=_find_step(read_split(was), becomes),
            most=MOST,
            queue=queue_name(of.model, of.version),
            detail=f"{name} {did}",
        )

    async def read_counts(self, names: Sequence[str]) -> dict[str, Counts]:
        """Return the counts of splits by their deployments, without those that are stored in an unknown form."""
        found: dict[str, Counts] = {}
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            stored = await read_all(self._redis, some, lambda pipe, name: pipe.hgetall(keys.split_runs(name)))
            for name, counts in zip(some, stored, strict=True):
                try:
                    found[name] = Counts.of(counts)
                except ValueError:  # one split that cannot be read delays no other
                    log.exception("the counts of a split cannot be read", extra={"deployment": name})
        return found

    async def count(self, name: str, split: bytes, was: str, cursor: str, counts: Mapping[str, int]) -> bool:
        """Add these counts, once. Returns False if the split, or its counts, changed meanwhile."""
        written = await self._scripts.count_split(name, is_=split, was=was, cursor=cursor, counts=counts)
        return written == "counted"

    async def read_ended(self, partition: Partition, queues: Collection[QueueName], cursor: str) -> LogPart:
        """Return runs of these queues that ended after a cursor, as far as the log still has them. What was revived
        after its end has counted with that end.
        """
        entries = await ask(lambda: self._redis.xrange(keys.log(partition), min=f"({cursor}", count=MOST_STEPS))
        ends = [
            (text(entry), PredictionId(text(fields[b"id"])), QueueName(text(fields[b"queue"])), text(fields[b"detail"]))
            for entry, fields in entries
            if fields[b"kind"] == b"ended" and text(fields[b"queue"]) in queues
        ]
        found: list[tuple[str, EndedRun]] = []
        for start in range(0, len(ends), RECORDS_AT_ONCE):
            some = ends[start : start + RECORDS_AT_ONCE]
            known = await record_fields(self._redis, [one for _, one, _, _ in some], RAN)
            for (entry, _, queue, detail), fields in zip(some, known, strict=True):
                deployment, mark, started, completed, revivals = fields
                status, _, code = detail.partition(" ")
                run = EndedRun(
                    queue=queue,
                    deployment=text(deployment or b""),
                    mark=text(mark or b""),
                    status=status,
                    code=code,
                    ran_ms=int(completed) - int(started) if started and completed else None,
                )
                if not int(revivals or 0):
                    found.append((entry, run))
        return LogPart(found, text(entries[-1][0]) if entries else cursor, len(entries) < MOST_STEPS)


def order(entry: str) -> tuple[int, int]:
    """Return the place of an entry in its log."""
    ms, _, number = entry.partition("-")
    return int(ms), int(number or 0)


async def read_tried(redis: Redis) -> list[tuple[str, bytes]]:
    """Return the deployments that try a version, in the order of their names, with their splits as they are stored."""
    untyped: Any = redis  # ours answers in bytes
    names = [text(name) for name in await ask(lambda: untyped.zrange(keys.splits(), 0, MOST_LISTED - 1))]
    return list(zip(names, await read_splits(redis, names), strict=True))


async def read_splits(redis: Redis, names: Sequence[str]) -> list[bytes]:
    found: list[bytes | None] = []
    for start in range(0, len(names), AT_ONCE):
        some = names[start : start + AT_ONCE]
        found += await read_all(redis, some, lambda pipe, name: pipe.get(keys.split(name)))
    return [one or b"" for one in found]


def read_split(kept: bytes) -> Split | None:
    """Decode a split; None if it is missing, or another release wrote it in an unknown form."""
    try:
        return msgspec.json.decode(kept, type=Split) if kept else None
    except msgspec.DecodeError:
        return None


def encode_split(split: Split | None) -> bytes:
    return b"" if split is None else msgspec.json.encode(split)


def _find_step(was: Split | None, becomes: Split | None) -> replies.SplitStep:
    if becomes is None or becomes.is_promoted:
        return "ends"
    if was is None or was.is_promoted or was.began_ms != becomes.began_ms:
        return "begins"
    return "shares" if becomes.share and becomes.since_ms != was.since_ms else "stays"
