"""All that a server has written down about one queue, read in one go, for a test to compare.

Only looks. What is read here is found by its key, never through the scripts that are tested.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from director.core import keys
from director.core.ids import PredictionId, QueueName, partition_of

__all__ = ("MOST_STREAMS", "Books", "Entry", "read_books")

MOST_STREAMS: Final = 8
"""Streams that a test may give a queue: each costs a look."""


@dataclass(frozen=True)
class Entry:
    """Where an entry stands, and whether a consumer was given it."""

    lane: str
    number: int
    mid: str
    is_pending: bool
    is_past: bool  # the group has read beyond it


@dataclass
class Books:
    records: dict[PredictionId, dict[str, str]] = field(default_factory=dict)
    lifetimes: dict[PredictionId, list[int]] = field(default_factory=dict)  # of record, input and events
    ends: dict[PredictionId, int] = field(default_factory=dict)
    entries: dict[str, list[Entry]] = field(default_factory=dict)
    stray: list[str] = field(default_factory=list)  # pending ids without an entry
    consumers: dict[str, int] = field(default_factory=dict)  # consumer -> how many are pending for it
    indexes: dict[str, dict[str, int]] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)

    def may_hold(self, lane: str, number: int) -> bool:
        """Would a claim look into this stream?"""
        return bool(int(self.meta.get(f"mask:{lane}", "0")) >> number & 1)


async def read_books(redis: Any, queue: QueueName, ids: list[PredictionId]) -> Books:
    """`ids`: all that were accepted."""
    books = Books()
    streams = [(lane, number) for lane in keys.LANES for number in range(MOST_STREAMS)]
    indexes = ("live", "lease", "delayed", "deadline", "dead", "directors")
    pipe = redis.pipeline(transaction=False)
    for lane, number in streams:
        name = keys.stream(queue, lane, number)
        pipe.xrange(name)
        pipe.xinfo_groups(name)
        pipe.xpending_range(name, keys.GROUP, "-", "+", 1000)
    for index in indexes:
        pipe.zrange(getattr(keys, index)(queue), 0, -1, withscores=True)
    pipe.zrange(keys.owed(partition_of(ids[0])) if ids else "none", 0, -1, withscores=True)
    pipe.hgetall(keys.meta(queue))
    for prediction_id in ids:
        pipe.hgetall(keys.record(prediction_id))
        for key in (keys.record, keys.input_data, keys.events):
            pipe.pttl(key(prediction_id))
        pipe.lrange(keys.events(prediction_id), 0, -1)
    replies = iter(await pipe.execute(raise_on_error=False))

    for lane, number in streams:
        _note_stream(books, lane, number, next(replies), next(replies), next(replies))
    for index in (*indexes, "owed"):
        books.indexes[index] = {name.decode(): int(score) for name, score in next(replies)}
    books.meta = _texts(next(replies))
    for prediction_id in ids:
        books.records[prediction_id] = _texts(next(replies))
        books.lifetimes[prediction_id] = [next(replies) for _ in range(3)]
        books.ends[prediction_id] = sum(event.startswith(b"completed ") for event in next(replies))
    return books


def _note_stream(books: Books, lane: str, number: int, rows: Any, groups: Any, pending: Any) -> None:
    held = (
        {}
        if isinstance(pending, Exception)
        else {row["message_id"].decode(): row["consumer"].decode() for row in pending}
    )
    last = "0-0" if isinstance(groups, Exception) or not groups else groups[0]["last-delivered-id"].decode()
    for mid, fields in rows:
        entry = Entry(lane, number, mid.decode(), mid.decode() in held, _parts(mid.decode()) <= _parts(last))
        books.entries.setdefault(fields[b"id"].decode(), []).append(entry)
    present = {mid.decode() for mid, _ in rows}
    books.stray += [mid for mid in held if mid not in present]
    for consumer in held.values():
        books.consumers[consumer] = books.consumers.get(consumer, 0) + 1


def _parts(mid: str) -> tuple[int, ...]:
    return tuple(map(int, mid.split("-")))


def _texts(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields.items()}
