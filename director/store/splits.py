"""Store how deployments' calls are split between two versions, and count how runs of both end.

A split lies with the partition of its deployment's name, as every user of Redis may write there, and not with the
deployment, whose form release 0.3.0 compares. So it names the release that it belongs to, and is void with any other.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys, replies
from director.broker.redis_client import ask, read_all, text, texts
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.ids import PredictionId, QueueName, queue_name
from director.core.split import EndedRun, Runs, Side, Split, read_runs
from director.store.records import record_fields

MOST: Final = 10_000  # that are watched
AT_ONCE: Final = 100
MOST_STEPS: Final = 1_000  # of the log, in one command: Redis serves no other for about 2 ms
RECORDS_AT_ONCE: Final = 250
RAN: Final = ("deployment", "split", "started", "completed")


class Watched(Struct, frozen=True):
    """A deployment on the list of splits. `changed_ms`: when it was last put there."""

    name: str
    changed_ms: int
    split: Split | None


class Counted(Struct, frozen=True):
    """How runs of a split ended so far. `cursor`: the last entry of the log that was counted."""

    runs: Mapping[Side, Runs]
    cursor: str


class Ended(Struct, frozen=True):
    """Runs that ended, of the log after a cursor. `is_all`: the log has no more."""

    runs: Sequence[EndedRun]
    cursor: str
    is_all: bool


class Splits:
    def __init__(self, redis: Redis, scripts: Scripts, clock: Clock) -> None:
        self._redis: Any = redis  # ours answers in bytes
        self._scripts = scripts
        self._clock = clock

    async def get(self, name: str) -> Split | None:
        return (await self.many([name]))[0]

    async def many(self, names: Sequence[str]) -> list[Split | None]:
        return await read_splits(self._redis, names)

    async def list_watched(self) -> list[Watched]:
        return await read_watched(self._redis)

    async def write(self, name: str, was: Split | None, becomes: Split | None, *, by: str, did: str) -> replies.Split:
        """Write a split, or remove it. `did`: what was done, for the log. Keepers watch it from before it is there."""
        one = becomes or was
        assert one is not None  # noqa: S101 - for the type checker: there is a change
        if becomes is not None and not becomes.is_promoted:
            await self.note_change(name)
        return await self._scripts.split(
            name,
            was=_encode(was),
            becomes=_encode(becomes),
            fresh=was is None or becomes is None or was.began_ms != becomes.began_ms,
            queue=queue_name(one.model, one.version),
            account=name.partition("/")[0],
            detail=f"{name} {by}: {did}",
        )

    async def note_change(self, name: str) -> None:
        """Put a deployment on the list of splits, or note a change: keepers leave it alone for a minute."""
        await ask(lambda: self._redis.zadd(keys.splits(), {name: self._clock.now_ms()}))

    async def forget(self, name: str) -> None:
        """Take a deployment off the list of splits."""
        await ask(lambda: self._redis.zrem(keys.splits(), name))

    async def read_counts(self, name: str) -> Counted:
        found = texts(await ask(lambda: self._redis.hgetall(keys.split_runs(name))))
        return Counted(read_runs(found), found.get("cursor", ""))

    async def count(self, name: str, split: Split, was: str, cursor: str, counts: Mapping[str, int]) -> bool:
        """Add these counts, once. Returns False if the split, or its counts, changed meanwhile."""
        written = await self._scripts.count_split(name, is_=_encode(split), was=was, cursor=cursor, counts=counts)
        return written == "counted"

    async def read_ended(self, split: Split, cursor: str) -> Ended:
        """Return runs of both versions that ended after a cursor, as far as the log still has them."""
        first, key = f"({cursor}" if cursor else "-", keys.log(keys.queue_partition(QueueName(f"{split.model}:")))
        entries = await ask(lambda: self._redis.xrange(key, min=first, count=MOST_STEPS))
        ends = [
            (PredictionId(text(fields[b"id"])), QueueName(text(fields[b"queue"])), text(fields[b"detail"]))
            for _, fields in entries
            if fields[b"kind"] == b"ended" and text(fields[b"queue"]) in split.queues
        ]
        found: list[EndedRun] = []
        for start in range(0, len(ends), RECORDS_AT_ONCE):
            some = ends[start : start + RECORDS_AT_ONCE]
            known = await record_fields(self._redis, [one for one, _, _ in some], RAN)
            for (_, queue, detail), (deployment, mark, started, completed) in zip(some, known, strict=True):
                status, _, code = detail.partition(" ")
                found.append(
                    EndedRun(
                        queue=queue,
                        deployment=text(deployment or b""),
                        mark=text(mark or b""),
                        status=status,
                        code=code,
                        ran_ms=int(completed) - int(started) if started and completed else None,
                    )
                )
        return Ended(found, text(entries[-1][0]) if entries else cursor, len(entries) < MOST_STEPS)


async def read_watched(redis: Redis) -> list[Watched]:
    """Return the deployments that are on the list of splits, in the order of their names."""
    untyped: Any = redis  # ours answers in bytes
    listed = await ask(lambda: untyped.zrange(keys.splits(), 0, MOST - 1, withscores=True))
    changed = {text(name): int(at_ms) for name, at_ms in listed}
    names = sorted(changed)
    return [Watched(name, changed[name], one) for name, one in zip(names, await read_splits(redis, names), strict=True)]


async def read_splits(redis: Redis, names: Sequence[str]) -> list[Split | None]:
    found: list[bytes | None] = []
    for start in range(0, len(names), AT_ONCE):
        some = names[start : start + AT_ONCE]
        found += await read_all(redis, some, lambda pipe, name: pipe.get(keys.split(name)))
    return [read_split(one) for one in found]


def read_split(kept: bytes | None) -> Split | None:
    """Decode a split; None if it is missing, or another release wrote it in an unknown form."""
    try:
        return None if kept is None else msgspec.json.decode(kept, type=Split)
    except msgspec.DecodeError:
        return None


def _encode(split: Split | None) -> bytes:
    return b"" if split is None else msgspec.json.encode(split)
