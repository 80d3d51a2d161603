"""Read live predictions of a queue, the runs of an account, idempotency keys, and messages of an end."""

import heapq
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Literal, cast

from msgspec import Raw, Struct
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, read_all, text
from director.broker.replies import Bound
from director.broker.scripts import IDEMPOTENCY_TTL_MS
from director.core.errors import IdempotencyMismatch
from director.core.ids import Kind, PredictionId, QueueName, is_prediction_id
from director.core.schema import Stored, parse_history, reference_in
from director.core.states import TERMINAL, Status
from director.core.view import iso

LiveState = Literal["waiting", "running", "delayed"]

MOST_LOOKED_AT: Final = 2_000  # of one page
MOST_RUNNING: Final = 5_000  # more slots than any version has
SLICE: Final = 200
LISTS_AT_ONCE: Final = 100  # lists of accounts per write
CURSOR: Final = re.compile(r"([0-9]{1,15})-([0-9a-z]{26})")
OWNED: Final = ("deployment", "account", "kind")
ERASABLE: Final = ("account", "status", "kind")
FIELDS: Final = ("account", "status", "lane", "created", "started", "attempt", "holder", "claimed", "history")


class LiveView(Struct, frozen=True, kw_only=True):
    """A prediction that has not ended. `director` runs it, `due_at` is its earliest next attempt, `code` is of the
    last.
    """

    id: PredictionId
    state: LiveState
    status: Status
    account: str
    lane: str
    created_at: str
    attempt: int
    director: str | None
    claimed_at: str | None
    started_at: str | None
    due_at: str | None
    code: str | None


class LiveCursor(Struct, frozen=True):
    """The position in an index. As text it is a cursor: the walk continues behind it, even if this one is gone."""

    score: int
    id: PredictionId

    def __str__(self) -> str:
        return f"{self.score}-{self.id}"

    @classmethod
    def parse(cls, cursor: str) -> "LiveCursor | None":
        match = CURSOR.fullmatch(cursor)
        return cls(int(match[1]), PredictionId(match[2])) if match and is_prediction_id(match[2]) else None


class LivePage(Struct, frozen=True):
    results: list[LiveView]
    next: LiveCursor | None


class Predictions:
    """Records are read without input and output, which may be large. A short page may have a next page."""

    def __init__(self, redis: Redis) -> None:
        self._redis: Any = redis  # ours answers in bytes

    async def ids(
        self, account: str, kind: Kind = "", *, low: str = "-", high: str = "+", count: int, newest_first: bool = True
    ) -> list[PredictionId]:
        """Return at most `count` ids of an account's runs of one kind between two bounds in Redis's notation.

        Skip ids without a record: their predictions were refused or removed. No accepted one is missing.
        """
        key = keys.listing(account, kind)
        if newest_first:
            found = await ask(lambda: self._redis.zrevrangebylex(key, high, low, start=0, num=count))
        else:
            found = await ask(lambda: self._redis.zrangebylex(key, low, high, start=0, num=count))
        return [PredictionId(text(name)) for name in found]

    async def ids_of(
        self, accounts: Sequence[str], kind: Kind, *, low: str, high: str, count: int
    ) -> list[PredictionId]:
        """Return the newest `count` ids of several accounts. Only those whose newest id is among them are read on."""
        if len(accounts) > count:
            first = await self._newest(accounts, kind, low=low, high=high, count=1)
            newest = heapq.nlargest(count, [(ids[0], name) for name, ids in zip(accounts, first, strict=True) if ids])
            accounts = [name for _, name in newest]
        found = await self._newest(accounts, kind, low=low, high=high, count=count)
        return heapq.nlargest(count, chain(*found))

    async def _newest(
        self, accounts: Sequence[str], kind: Kind, *, low: str, high: str, count: int
    ) -> list[list[PredictionId]]:
        found: list[list[PredictionId]] = []
        for start in range(0, len(accounts), LISTS_AT_ONCE):
            some = accounts[start : start + LISTS_AT_ONCE]
            replies = await read_all(
                self._redis,
                some,
                lambda pipe, name: pipe.zrevrangebylex(keys.listing(name, kind), high, low, start=0, num=count),
            )
            found += [[PredictionId(text(one)) for one in names] for names in replies]
        return found

    async def stands_for(self, account: str, *, model: str, digest: str, fingerprint: str) -> PredictionId | None:
        """Return the prediction accepted with this key, or None. Raises IdempotencyMismatch for another request."""
        held = await self.read_key(account, model=model, digest=digest)
        if held is None:
            return None
        if held.fingerprint != fingerprint:
            raise IdempotencyMismatch("This Idempotency-Key was used with another body.")
        return held.id

    async def read_key(self, account: str, *, model: str, digest: str) -> Bound | None:
        """Return the prediction that this key is bound to. With several sites it may not be accepted yet, or never."""
        key = keys.idempotency(account=account, model=model, digest=digest)
        held, left_ms = await pipelined(self._redis, lambda pipe: [pipe.get(key), pipe.pttl(key)])
        if held is None:
            return None
        known, _, fingerprint = text(held).partition(" ")
        return Bound(PredictionId(known), fingerprint, IDEMPOTENCY_TTL_MS - left_ms)

    async def may_be_erased(self, prediction_id: PredictionId, *, account: str) -> bool:
        """Return True for a terminal prediction of the account. `erase` decides."""
        found = await ask(lambda: self._redis.hmget(keys.record(prediction_id), ERASABLE))
        owner, status, kind = (text(value or b"") for value in found)
        return owner == account and status in TERMINAL and not kind

    async def live(
        self, queue: QueueName, state: LiveState | None, *, after: LiveCursor | None, count: int
    ) -> LivePage:
        """Return the oldest `count` behind a cursor, in one state or in any. Delayed ones come as they are due."""
        if state == "running":
            return await self._running(queue, after, count)
        index = keys.delayed(queue) if state == "delayed" else keys.live(queue)
        results: list[LiveView] = []
        for _ in range(0, MOST_LOOKED_AT, SLICE):
            found = await self._slice(index, after)
            for cursor, view in zip(found, await self._views(queue, [cursor.id for cursor in found]), strict=True):
                after = cursor
                if view is not None and state in (None, view.state):
                    results.append(view)
                    if len(results) == count:
                        return LivePage(results, after if cursor != found[-1] or len(found) == SLICE else None)
            if len(found) < SLICE:
                return LivePage(results, None)
        return LivePage(results, after)

    async def live_of(self, queue: QueueName, deployment: str) -> AsyncIterator[list[tuple[PredictionId, str]]]:
        """Yield slices of what a deployment has in a queue, each as (id, account)."""
        async for owned in self._read_owners(queue):
            yield [(name, account) for name, of, account, _ in owned if of == deployment]

    async def live_of_account(self, queue: QueueName, account: str) -> AsyncIterator[list[tuple[PredictionId, Kind]]]:
        """Yield slices of what an account has in a queue, each as (id, kind), also if its list lacks it."""
        async for owned in self._read_owners(queue):
            yield [(name, cast(Kind, kind)) for name, _, of, kind in owned if of == account]

    async def _read_owners(self, queue: QueueName) -> AsyncIterator[list[tuple[PredictionId, str, str, str]]]:
        """Yield slices of all that is live in a queue, each as (id, deployment, account, kind)."""
        after: LiveCursor | None = None
        while found := await self._slice(keys.live(queue), after):
            after = found[-1]
            rows = await pipelined(
                self._redis,
                lambda pipe: [pipe.hmget(keys.record(cursor.id), OWNED) for cursor in found],
            )
            yield [
                (cursor.id, text(deployment or b""), text(account or b""), text(kind or b""))
                for cursor, (deployment, account, kind) in zip(found, rows, strict=True)
            ]

    async def _running(self, queue: QueueName, after: LiveCursor | None, count: int) -> LivePage:
        """Page by id, which follows age. The order in the index follows the last heartbeats, so it changes."""
        found = await ask(lambda: self._redis.zrange(keys.lease(queue), 0, MOST_RUNNING - 1))
        ids = sorted(PredictionId(text(name)) for name in found)
        rest = [name for name in ids if after is None or name > after.id]
        page = rest[:count]
        views = [view for view in await self._views(queue, page) if view is not None and view.state == "running"]
        return LivePage(views, LiveCursor(0, page[-1]) if len(rest) > count else None)

    async def _slice(self, index: str, after: LiveCursor | None) -> list[LiveCursor]:
        start = 0
        if after is not None:
            rank = await ask(lambda: self._redis.zrank(index, after.id))
            start = (
                await ask(lambda: self._redis.zcount(index, "-inf", f"({after.score}")) if rank is None else rank + 1
            )
        found = await ask(lambda: self._redis.zrange(index, start, start + SLICE - 1, withscores=True))
        return [LiveCursor(int(score), PredictionId(text(name))) for name, score in found]

    async def _views(self, queue: QueueName, ids: Sequence[PredictionId]) -> list[LiveView | None]:
        def read(pipe: Any) -> None:
            pipe.zmscore(keys.lease(queue), ids)
            pipe.zmscore(keys.delayed(queue), ids)
            for name in ids:
                pipe.hmget(keys.record(name), FIELDS)

        if not ids:
            return []
        leases, dues, *records = await pipelined(self._redis, read)
        return [
            _view(name, [text(value or b"") for value in fields], lease, due)
            for name, fields, lease, due in zip(ids, records, leases, dues, strict=True)
        ]


def _view(name: PredictionId, fields: Sequence[str], lease: float | None, due: float | None) -> LiveView | None:
    account, status, lane, created, started, attempt, holder, claimed, history = fields
    if not status or status in TERMINAL:
        return None
    is_running, spent = lease is not None, parse_history(history)
    return LiveView(
        id=name,
        state="running" if is_running else "waiting" if due is None else "delayed",
        status=Status(status),
        account=account,
        lane=lane,
        created_at=iso(int(created)),
        attempt=int(attempt or 0),
        director=holder or None if is_running else None,
        claimed_at=_when(claimed) if is_running else None,
        started_at=_when(started),
        due_at=None if due is None else iso(int(due)),
        code=spent[-1].code if spent else None,
    )


def _when(at_ms: str) -> str | None:
    return iso(int(at_ms)) if at_ms else None


# The message of a prediction's end, as `lua/lib/ends.lua` writes it: a line of words, then the texts whose sizes the
# line gives. If the end is too large, the id comes alone. A newer release adds words and texts after those known here.

WORDS: Final = 4  # id, status, started, completed
TEXTS: Final = 5  # code, error, metrics, output, logs
NONE: Final = "-"
ENDS: Final[Mapping[str, Status]] = {str(status): status for status in TERMINAL}


class Ending(Struct, frozen=True, kw_only=True):
    status: Status
    started: int | None
    completed: int
    code: str
    error: str
    metrics: str
    output: bytes
    logs: str

    def of(self, filed: Stored) -> Stored:
        record = replace(
            filed.record,
            status=self.status,
            started=self.started,
            completed=self.completed,
            code=self.code,
            error=self.error,
            metrics=self.metrics,
        )
        output = Raw(self.output) if self.output else None
        return Stored(record=record, input=filed.input, output=output, logs=self.logs)


def parse_message(message: bytes) -> tuple[PredictionId, Ending | None]:
    """Return which prediction ended and its end, or None if the record must be read."""
    head, _, rest = message.partition(b"\n")
    words = head.decode(errors="replace").split(" ")
    try:
        return PredictionId(words[0]), _ending(words, rest)
    except ValueError:
        return PredictionId(words[0]), None


def _ending(words: Sequence[str], rest: bytes) -> Ending | None:
    if len(words) < WORDS + TEXTS:
        return None
    status, started, completed = words[1:WORDS]
    texts: list[bytes] = []
    for size in map(int, words[WORDS : WORDS + TEXTS]):
        texts.append(rest[:size])
        rest = rest[size:]
    code, error, metrics, output, logs = texts
    if reference_in(output) or status not in ENDS:
        return None
    return Ending(
        status=ENDS[status],
        started=None if started == NONE else int(started),
        completed=int(completed),
        code=code.decode(),
        error=error.decode(),
        metrics=metrics.decode(),
        output=output,
        logs=logs.decode(),
    )
