"""Call the scripts behind a caller's requests: accept a prediction, show it, cancel it. They hold no claim."""

import asyncio
import math
from typing import Final, Literal, NamedTuple, cast

from msgspec import Raw, Struct

from director.broker import keys
from director.broker.gatherer import BATCH_BYTES, LARGE_BYTES, Arg, Traffic
from director.broker.scripts.wire import Wire, event, hoped, now, number
from director.core.errors import BackendUnavailable, IdempotencyMismatch, QueueRefused, UnknownQueue
from director.core.ids import LANES, Kind, PredictionId, partition_of
from director.core.schema import LIFE, Event, Known, NewPrediction, Outlook, Record, Stored, pairs
from director.core.states import TERMINAL, Status
from director.core.view import fold

Canceled = Literal["canceled", "asked", "over", "moved", "unknown"]

Erased = Literal["erased", "unknown", "running"]

Redelivered = Literal["owed", "unknown", "running", "unwanted", "removed"]

IDEMPOTENCY_TTL_MS = 24 * 3600 * 1000

SENT: Final = tuple(name for name in NewPrediction.__struct_fields__ if name not in ("id", "input", "idempotency"))


class Accepted(Struct, frozen=True):
    """The result of a submit. `replayed`: the idempotency key belongs to this older prediction."""

    id: PredictionId
    replayed: bool = False
    created_ms: int = 0
    deadline_ms: int | None = None
    outlook: Outlook | None = None


class Bound(NamedTuple):
    """The prediction of an idempotency key, the request's fingerprint, and the key's age by the server's clock."""

    id: PredictionId
    fingerprint: str
    age_ms: int


class Replayed(Struct, frozen=True, kw_only=True):
    """Some events of a prediction of `account`, and its state at that time.

    `last`: number of the newest event. `next`: number of the event after these. `moved`: the server that the prediction
    moved to, or ''.
    """

    account: str
    status: Status
    ticket: str
    moved: str
    last: int
    next: int
    events: tuple[Event, ...]

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def is_removed(self) -> bool:
        """Whether its events are gone, with all its data."""
        return self.last == 0

    @property
    def has_more(self) -> bool:
        """Whether there are events after these."""
        return self.next <= self.last


class CallerScripts(Wire):
    """The scripts for callers."""

    async def enqueue(self, prediction: NewPrediction, *, now_ms: int | None = None) -> Accepted:
        """Accept a prediction. Safe to repeat with the same id.

        Raises UnknownQueue, IdempotencyMismatch and QueueRefused. Raises BackendUnavailable if its idempotency key went
        to a later one.
        """
        if prediction.lane not in LANES:  # no claim would ever look there
            raise ValueError(f"unknown lane {prediction.lane}")
        record = held = keys.record(prediction.id)
        digest, fingerprint = prediction.idempotency or ("", "")
        if digest:
            held = keys.idempotency(account=prediction.account, model=prediction.model, digest=digest)
        args: list[Arg] = [prediction.id, prediction.input, fingerprint, IDEMPOTENCY_TTL_MS, now(now_ms)]
        for name in SENT:
            value = getattr(prediction, name)
            if value is None or value is False or value == "":
                continue
            args += (name, f"{value:g}" if type(value) is float else int(value) if value is True else value)
        names = [record, keys.input_data(prediction.id), held]
        word, *rest = await self._call("enqueue", names, args, traffic=_filing(len(prediction.input)))
        match word:
            case b"created":
                created, deadline, hope = rest if len(rest) > 1 else (rest[0], b"", None)
                return Accepted(
                    prediction.id,
                    created_ms=int(created),
                    deadline_ms=int(deadline) if deadline else None,
                    outlook=hoped(hope),
                )
            case b"replayed":
                return Accepted(PredictionId(rest[0].decode()), replayed=True)
            case b"mismatch":
                raise IdempotencyMismatch("This Idempotency-Key was used with another body.")
            case b"late":
                raise BackendUnavailable("the same request was placed again meanwhile")
            case b"refused":
                raise _refused(*rest)
            case _:
                raise UnknownQueue(prediction.queue)

    async def bind(
        self,
        prediction_id: PredictionId | None,
        *,
        account: str,
        model: str,
        idempotency: tuple[str, str],
        instead_of: PredictionId | None,
    ) -> Bound | None:
        """Bind an idempotency key to this prediction, or to none. Returns the binding that stands instead, or None on
        success.

        `idempotency`: (key's digest, body's fingerprint). `instead_of`: the prediction that the key may be taken from.
        """
        digest, fingerprint = idempotency
        key = keys.idempotency(account=account, model=model, digest=digest)
        args: list[Arg] = [prediction_id or "", fingerprint, IDEMPOTENCY_TTL_MS, instead_of or ""]
        held = await self._call("bind", [key], args)
        return Bound(PredictionId(held[0].decode()), held[1].decode(), held[2]) if held else None

    def enlist(
        self, prediction_id: PredictionId, *, account: str, oldest: PredictionId, kind: Kind = "", input_bytes: int = 0
    ) -> "asyncio.Future[object]":
        """Put an id on its account's list. Call it before `enqueue`. Ids below `oldest` may be dropped.

        `input_bytes`: size of the input that `enqueue` sends next. Both calls then use the same kind of traffic.
        """
        names, args = [keys.listing(account, kind)], [prediction_id, oldest]
        return self._begin("enlist", names, args, traffic=_filing(input_bytes))

    async def get(
        self,
        prediction_id: PredictionId,
        *,
        outlook: bool = True,
        whole: bool = True,
        size: int | None = None,
        now_ms: int | None = None,
    ) -> Stored | None:
        """Return one prediction as it is now, or None if it is unknown. `outlook`: include why it waits.

        A large one takes a second round trip, so that no small call waits for it. Unless `whole`, large data is left
        out instead, see `Stored.left_out`. `size`: bytes of its data if known, which saves a round trip.
        """
        if size is None:
            stored = await self._get(prediction_id, now(now_ms), outlook, LARGE_BYTES)
            if stored is None or not stored.left_out or not whole:
                return stored
            size = stored.left_out
        return await self._get(prediction_id, now(now_ms), outlook, "", size=size)

    async def _get(
        self, prediction_id: PredictionId, now: Arg, outlook: bool, most: Arg, *, size: int = 0
    ) -> Stored | None:
        args: list[Arg] = [prediction_id, now, int(outlook), most]
        traffic = Traffic.LARGE_READS if size else Traffic.SMALL
        reply = await self._call("get", [keys.record(prediction_id)], args, traffic=traffic, answer_bytes=size)
        if not reply:
            return None
        fields, data, ended, entries, hope, *left_out = reply
        record = Record.parse(prediction_id, fields)
        if left_out:
            return Stored(record=record, input=None, left_out=left_out[0])
        raw = Raw(data) if data else None
        if not record.is_terminal:
            output, logs = fold([event(seq, entry) for seq, entry in enumerate(entries, start=1)])
            return Stored(record=record, input=raw, output=output, logs=logs, outlook=hoped(hope))
        done = dict(pairs(ended))
        output = Raw(done[b"output"]) if done.get(b"output") else None
        return Stored(record=record, input=raw, output=output, logs=done.get(b"logs", b"").decode())

    async def story(self, prediction_id: PredictionId, *, now_ms: int | None = None) -> Known | None:
        """Return everything about one prediction but its large data, or None if it is unknown."""
        reply = await self._call("story", [keys.record(prediction_id)], [prediction_id, now(now_ms)])
        if not reply:
            return None
        at, fields, entries, hope, attempts, due, lease, owed, dead = reply
        return Known(
            now=at,
            record=Record.parse(prediction_id, fields),
            events=tuple(event(seq, entry) for seq, entry in zip(entries[::2], entries[1::2], strict=True)),
            outlook=hoped(hope),
            attempts=number(attempts),
            due=number(due),
            lease=number(lease),
            owed=number(owed),
            is_dead=bool(dead),
        )

    async def replay(
        self, prediction_id: PredictionId, *, after: int, count: int, most_bytes: int, whole: bool = True
    ) -> Replayed | None:
        """Return its events after a number, or None if it is unknown. Stops at `count` events, or once `most_bytes`
        are reached.

        A number from before the last revival, or above the newest, belongs to a former list: all events are returned
        then. One event may be larger than `most_bytes`; unless `whole`, the answer ends before it.
        """
        args: list[Arg] = [prediction_id, after, count, most_bytes, int(whole), LIFE]
        # the size of the answer is not known before: a page may be as large as its bound, and what is whole larger
        is_large = count > 0 and (whole or most_bytes >= LARGE_BYTES)
        traffic, answer_bytes = (Traffic.LARGE_READS, BATCH_BYTES) if is_large else (Traffic.SMALL, 0)
        reply = await self._call(
            "replay", [keys.record(prediction_id)], args, traffic=traffic, answer_bytes=answer_bytes
        )
        if not reply:
            return None
        account, status, ticket, moved, last, first, *entries = reply
        return Replayed(
            account=account.decode(),
            status=Status(status.decode()),
            ticket=ticket.decode(),
            moved=moved.decode(),
            last=last,
            next=first + len(entries),
            events=tuple(event(seq, entry) for seq, entry in enumerate(entries, start=first)),
        )

    async def redeliver(
        self, prediction_id: PredictionId, *, account: str | None, now_ms: int | None = None
    ) -> Redelivered:
        """Owe its terminal webhook again, at once. `account`: the owner that it must have, or None for any."""
        args: list[Arg] = [prediction_id, account or "", now(now_ms)]
        owed = keys.owed(partition_of(prediction_id))
        answer = await self._call("redeliver", [keys.record(prediction_id), owed], args)
        return cast(Redelivered, answer.decode())

    async def cancel(
        self, prediction_id: PredictionId, *, account: str, kind: Kind = "", now_ms: int | None = None
    ) -> Canceled:
        """End a waiting prediction, or ask the director of a running one to stop it."""
        args: list[Arg] = [prediction_id, account, kind, now(now_ms)]
        answer = await self._call("cancel", [keys.record(prediction_id)], args)
        return cast(Canceled, answer.decode())

    async def erase(self, prediction_id: PredictionId, *, account: str, now_ms: int | None = None) -> Erased:
        """Delete a terminal prediction with all its data but its files. Safe to repeat."""
        owed = keys.owed(partition_of(prediction_id))
        args: list[Arg] = [prediction_id, account, now(now_ms)]
        answer = await self._call("erase", [keys.record(prediction_id), owed], args)
        return cast(Erased, answer.decode())


def _filing(input_bytes: int) -> Traffic:
    """Return the traffic of `enlist` and `enqueue`, which go one after the other. Only the input makes such a call
    large.
    """
    return Traffic.LARGE_WRITES if input_bytes >= LARGE_BYTES // 2 else Traffic.SMALL


def _refused(code: bytes, limit: bytes | int, retry_after_ms: bytes | int, eta_ms: bytes | int) -> QueueRefused:
    return QueueRefused(
        code.decode(),
        limit=int(limit) if limit != b"" else None,
        retry_after_s=max(1, math.ceil(int(retry_after_ms) / 1000)),
        eta_s=int(eta_ms) / 1000 if eta_ms != b"" else None,
    )
