"""Read everything that a server stores about one queue in one call, for a test to compare.

This module only reads. It finds data by key, never through the scripts under test.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from director.broker import keys
from director.core.ids import LANES, PredictionId, QueueName
from director.core.schema import pairs

MOST_STREAMS: Final = 8
"""Streams that a test may give a queue: each costs a look."""


@dataclass(frozen=True)
class Entry:
    """A stream entry: its stream, and whether a consumer has received it."""

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
    backlogs: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)  # lane and tenant -> id -> arrival
    turns: dict[str, dict[str, float]] = field(default_factory=dict)  # lane -> tenant -> virtual time
    debts: dict[str, dict[str, float]] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)  # queued and running: tenant -> how many
    limits: dict[str, str] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    meta: dict[str, str] = field(default_factory=dict)
    has_rung: bool = False

    def number(self, name: str) -> int:
        """Return a counter of the queue."""
        return int(self.meta.get(name) or 0)

    def backlogged(self, lane: str) -> int:
        """Return how many predictions of the lane wait in backlogs."""
        return sum(len(backlog) for (of, _), backlog in self.backlogs.items() if of == lane)

    def may_hold(self, lane: str, number: int) -> bool:
        """Return True if a claim would look into this stream."""
        return bool(self.number(f"mask:{lane}") >> number & 1)


INDEXES: Final = ("live", "leaving", "lease", "delayed", "deadline", "dead", "directors")
COUNTS: Final = ("queued", "running")

# One call: several hundred calls would take longer than everything under test.
READ: Final = """
local answers = {}
for i = 1, #KEYS do
  local name, key = ARGV[i], KEYS[i]
  if name == 'stream' then
    answers[i] = redis.call('EXISTS', key) == 0 and {} or { redis.call('XRANGE', key, '-', '+'),
      redis.call('XINFO', 'GROUPS', key), redis.pcall('XPENDING', key, 'directors', '-', '+', 1000) }
  elseif name == 'zset' then
    answers[i] = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif name == 'hash' then
    answers[i] = redis.call('HGETALL', key)
  elseif name == 'set' then
    answers[i] = redis.call('SMEMBERS', key)
  elseif name == 'list' then
    answers[i] = redis.call('LRANGE', key, 0, -1)
  else
    answers[i] = redis.call('PTTL', key)
  end
end
return answers
"""


async def read_books(redis: Any, queue: QueueName, ids: list[PredictionId], tenants: Sequence[str]) -> Books:
    """Return the books. `ids`: all accepted predictions; `tenants`: all tenants."""
    books = Books()
    streams = [(lane, number) for lane in LANES for number in range(MOST_STREAMS)]
    lines = [(lane, tenant) for lane in LANES for tenant in tenants]
    asked = [("stream", keys.stream(queue, lane, number)) for lane, number in streams]
    asked += [("zset", getattr(keys, index)(queue)) for index in INDEXES]
    asked += [("zset", keys.owed(keys.queue_partition(queue)))]
    asked += [("zset", keys.backlog(queue, lane, tenant)) for lane, tenant in lines]
    asked += [("zset", of(queue, lane)) for lane in LANES for of in (keys.vtime, keys.debt)]
    asked += [("hash", getattr(keys, name)(queue)) for name in (*COUNTS, "limits", "meta")]
    asked += [("set", keys.held(queue)), ("list", keys.bell(queue))]
    for name in ids:
        asked += [("hash", keys.record(name)), ("list", keys.events(name))]
        asked += [("lifetime", of(name)) for of in (keys.record, keys.input_data, keys.events)]
    replies = iter(await redis.eval(READ, len(asked), *(key for _, key in asked), *(kind for kind, _ in asked)))

    for lane, number in streams:
        _note_stream(books, lane, number, *next(replies))
    for index in (*INDEXES, "owed"):
        books.indexes[index] = {name: int(score) for name, score in _scores(next(replies)).items()}
    for line in lines:
        books.backlogs[line] = {name: int(score) for name, score in _scores(next(replies)).items()}
    for lane in LANES:
        books.turns[lane], books.debts[lane] = _scores(next(replies)), _scores(next(replies))
    for name in COUNTS:
        books.counts[name] = {tenant: int(count) for tenant, count in _texts(next(replies)).items()}
    books.limits, books.meta = _texts(next(replies)), _texts(next(replies))
    books.held = {tenant.decode() for tenant in next(replies)}
    books.has_rung = bool(next(replies))
    for prediction_id in ids:
        books.records[prediction_id] = _texts(next(replies))
        books.ends[prediction_id] = sum(event.startswith(b"completed ") for event in next(replies))
        books.lifetimes[prediction_id] = [next(replies) for _ in range(3)]
    return books


def _note_stream(books: Books, lane: str, number: int, rows: Any = (), groups: Any = (), pending: Any = ()) -> None:
    held = {mid.decode(): consumer.decode() for mid, consumer, *_ in pending} if groups else {}
    last = dict(pairs(groups[0]))[b"last-delivered-id"].decode() if groups else "0-0"
    for mid, fields in rows:
        entry = Entry(lane, number, mid.decode(), mid.decode() in held, _parts(mid.decode()) <= _parts(last))
        books.entries.setdefault(dict(pairs(fields))[b"id"].decode(), []).append(entry)
    present = {mid.decode() for mid, _ in rows}
    books.stray += [mid for mid in held if mid not in present]
    for consumer in held.values():
        books.consumers[consumer] = books.consumers.get(consumer, 0) + 1


def _parts(mid: str) -> tuple[int, ...]:
    return tuple(map(int, mid.split("-")))


def _texts(flat: list[bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in pairs(flat)}


def _scores(flat: list[bytes]) -> dict[str, float]:
    return {name.decode(): float(score) for name, score in pairs(flat)}
