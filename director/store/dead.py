"""List, show, revive and drop dead letters: predictions that used up their attempts and wait for an operator.

Newest first, over all queues. A revived letter that dies again is newer than the start of the walk that revived it. So
no walk revives it twice.
"""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import chain
from typing import Any, Final, NotRequired, TypedDict, Unpack

from msgspec import Raw, Struct, structs
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import pipelined, text
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.ids import PredictionId, QueueName, created_ms_of, is_prediction_id
from director.core.schema import Record, parse_history
from director.core.view import iso, public_input
from director.files.data_files import DataAway
from director.store.changes import ChangeKind, Changes

SLICE: Final = 100
MOST_NOTED: Final = 20  # ids in the log of changes
FAILED_WITH: Final = ("status", "secret")
CURSOR: Final = re.compile(r"(\d{13})([0-9a-z]{26})")


class Attempt(Struct, frozen=True, kw_only=True):
    """One attempt that did not end the prediction. `director` claimed it, and `code` says how it ended."""

    number: int
    director: str
    claimed_at: str | None
    ended_at: str
    code: str


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A dead letter as an operator sees it. `attempts` includes those before earlier revivals."""

    id: PredictionId
    queue: QueueName
    model: str
    version: str
    account: str
    created_at: str
    died_at: str
    error: str
    code: str
    revivals: int
    attempts: tuple[Attempt, ...]


class Shown(Struct, frozen=True, kw_only=True):
    letter: DeadLetter
    input: Raw | None


class DeadCursor(Struct, frozen=True, order=True):
    """The position of a letter among all. As text it is a cursor: the walk continues behind it."""

    died_ms: int
    id: PredictionId
    queue: QueueName = QueueName("")

    def __str__(self) -> str:
        return f"{self.died_ms:013d}{self.id}"

    @classmethod
    def parse(cls, cursor: str) -> "DeadCursor | None":
        match = CURSOR.fullmatch(cursor)
        return cls(int(match[1]), PredictionId(match[2])) if match and is_prediction_id(match[2]) else None


class Letters(Struct, frozen=True):
    results: list[DeadLetter]
    next: str | None


class Done(Struct, frozen=True):
    """How many letters were revived or dropped, which were refused, and the cursor to continue from if time was up.
    `secret`: those among the refused whose secret inputs were overwritten at their end.
    """

    done: int
    refused: tuple[PredictionId, ...] = ()
    next: str | None = None
    secret: tuple[PredictionId, ...] = ()


class Asked(Struct, frozen=True, kw_only=True):
    ids: Sequence[PredictionId] = ()
    queue: str = ""

    @property
    def facts(self) -> dict[str, Any]:
        return {"ids": self.ids[:MOST_NOTED], "count": len(self.ids)} if self.ids else {"all": True}


Slices = AsyncIterator[list[DeadCursor]]
Act = Callable[[DeadCursor], Awaitable[bool]]


class How(TypedDict):
    """How letters are changed: at most `rate` a second, for `within_s`. The log has the operator and what was asked."""

    by: str
    asked: Asked
    rate: NotRequired[float | None]
    within_s: NotRequired[float]


class DeadLetters:
    def __init__(self, redis: Redis, scripts: Scripts, clock: Clock) -> None:
        self._redis: Any = redis  # ours answers in bytes
        self._scripts = scripts
        self._clock = clock
        self._changes = Changes(redis, scripts, clock)

    async def page(
        self, queues: Sequence[QueueName], *, before: DeadCursor | None = None, count: int = SLICE
    ) -> Letters:
        """Return the `count` newest letters of these queues behind `before`. A short page may have a next page."""
        cursors = await self._cursors(queues, before, count + 1)
        more = len(cursors) > count
        letters = await self._letters(cursors[:count])
        return Letters(letters, str(cursors[count - 1]) if more else None)

    async def show(self, prediction_id: PredictionId) -> Shown | None:
        [cursor] = await self.find([prediction_id])
        letters = await self._letters([cursor]) if cursor.died_ms else []
        if not letters:
            return None
        try:
            stored = await self._scripts.get(prediction_id, outlook=False)
        except DataAway as exc:  # its attempts say why it died: perhaps this very file is lost
            stored = exc.without
        given = stored and stored.input
        return Shown(letter=letters[0], input=public_input(stored.record, given) if stored and given else None)

    async def find(self, ids: Sequence[PredictionId]) -> list[DeadCursor]:
        """Return the position of each prediction, in this order. `died_ms` is 0 if it is not a dead letter."""
        queues = await pipelined(self._redis, lambda pipe: [pipe.hget(keys.record(name), "queue") for name in ids])
        named = list(zip(ids, (QueueName(text(queue or b"")) for queue in queues), strict=True))
        died = await pipelined(self._redis, lambda pipe: [pipe.zscore(keys.dead(queue), name) for name, queue in named])
        return [DeadCursor(int(at or 0), name, queue) for (name, queue), at in zip(named, died, strict=True)]

    async def every(
        self, queues: Sequence[QueueName], *, before: DeadCursor | None = None
    ) -> AsyncIterator[list[DeadCursor]]:
        while cursors := await self._cursors(queues, before, SLICE):
            yield cursors
            before = cursors[-1]

    async def revive(self, slices: Slices, **how: Unpack[How]) -> Done:
        """Return letters to their queues. One that had secret inputs is refused: its caller must create it again."""
        done = await self._change("letters_revived", slices, lambda cursor: self._scripts.revive(cursor.id), **how)
        return structs.replace(done, secret=await self._find_without_secrets(done.refused)) if done.refused else done

    async def _find_without_secrets(self, ids: Sequence[PredictionId]) -> tuple[PredictionId, ...]:
        found = await pipelined(self._redis, lambda pipe: [pipe.hmget(keys.record(name), FAILED_WITH) for name in ids])
        return tuple(name for name, (status, secret) in zip(ids, found, strict=True) if status == b"failed" and secret)

    async def drop(self, slices: Slices, **how: Unpack[How]) -> Done:
        return await self._change(
            "letters_dropped", slices, lambda cursor: self._scripts.drop(cursor.id, cursor.queue), **how
        )

    async def _change(self, kind: ChangeKind, slices: Slices, act: Act, **how: Unpack[How]) -> Done:
        asked = how["asked"]
        async with self._changes.noting(kind, by=how["by"], queue=asked.queue, **asked.facts) as noted:
            done = await self._each(slices, act, how.get("rate"), how.get("within_s", math.inf))
            if not done.done:
                noted.void()
        return done

    async def _each(self, slices: Slices, act: Act, rate: float | None, within_s: float) -> Done:
        done, refused = 0, []
        began = due = self._clock.monotonic()
        async for cursors in slices:
            step = 1 if rate else len(cursors)
            for start in range(0, len(cursors), step):
                batch = cursors[start : start + step]
                if (now := self._clock.monotonic()) < due:
                    await self._clock.sleep(due - now)
                due = max(due, now) + len(batch) / (rate or math.inf)
                for cursor, did in zip(batch, await asyncio.gather(*map(act, batch)), strict=True):
                    done += did
                    if not did:
                        refused.append(cursor.id)
                if self._clock.monotonic() - began >= within_s:
                    return Done(done, tuple(refused), str(batch[-1]))
        return Done(done, tuple(refused))

    async def _cursors(self, queues: Sequence[QueueName], before: DeadCursor | None, count: int) -> list[DeadCursor]:
        found: list[DeadCursor] = []
        ranks = dict(zip(queues, await self._ranks(queues, before), strict=True))
        while ranks:
            asked = list(ranks)
            for queue, rows in zip(asked, await self._slices(ranks, count), strict=True):
                cursors = [DeadCursor(int(at), PredictionId(text(name)), queue) for name, at in rows]
                behind = [
                    cursor
                    for cursor in cursors
                    if before is None or (cursor.died_ms, cursor.id) < (before.died_ms, before.id)
                ]
                found += behind
                ranks[queue] += len(rows)
                if len(rows) < count or len(behind) == len(rows):
                    del ranks[queue]
        return sorted(found, reverse=True)[:count]

    async def _ranks(self, queues: Sequence[QueueName], before: DeadCursor | None) -> list[int]:
        if before is None:
            return [0] * len(queues)
        newer = f"({before.died_ms}"
        return await pipelined(
            self._redis, lambda pipe: [pipe.zcount(keys.dead(queue), newer, "+inf") for queue in queues]
        )

    async def _slices(self, ranks: dict[QueueName, int], count: int) -> list[list[tuple[bytes, float]]]:
        def read(pipe: Any) -> None:
            for queue, rank in ranks.items():
                pipe.zrevrange(keys.dead(queue), rank, rank + count - 1, withscores=True)

        return await pipelined(self._redis, read)

    async def _letters(self, cursors: Sequence[DeadCursor]) -> list[DeadLetter]:
        letters = []
        records = await pipelined(
            self._redis, lambda pipe: [pipe.hgetall(keys.record(cursor.id)) for cursor in cursors]
        )
        for cursor, fields in zip(cursors, records, strict=True):
            if fields:
                letters.append(_letter(cursor, Record.parse(cursor.id, list(chain(*fields.items())))))
            else:
                await self._scripts.drop(cursor.id, cursor.queue)
        return letters


def attempts_of(history: str) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(
            number=spent.number,
            director=spent.director,
            claimed_at=None if spent.claimed is None else iso(spent.claimed),
            ended_at=iso(spent.ended),
            code=spent.code,
        )
        for spent in parse_history(history)
    )


def _letter(cursor: DeadCursor, record: Record) -> DeadLetter:
    return DeadLetter(
        id=record.id,
        queue=record.queue,
        model=record.model,
        version=record.version,
        account=record.account,
        created_at=iso(created_ms_of(record.id)),
        died_at=iso(cursor.died_ms),
        error=record.error,
        code=record.code,
        revivals=record.revivals,
        attempts=attempts_of(record.history),
    )


async def newest_letters(redis: Redis, queues: Sequence[QueueName]) -> list[tuple[PredictionId, int] | None]:
    """Return the newest dead letter of each queue and its time in ms."""
    newest = await pipelined(
        redis, lambda pipe: [pipe.zrange(keys.dead(queue), -1, -1, withscores=True) for queue in queues]
    )
    return [(PredictionId(text(found[0][0])), int(found[0][1])) if found else None for found in newest]
