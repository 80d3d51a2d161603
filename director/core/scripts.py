"""Every script as a typed call: the one place that knows the order of KEYS and ARGV and the shape of replies.

One method per file of lua/, named after it; what a script promises stands in its header.
Without `now_ms` scripts ask the server's clock: tests walk time with it.
"""

import random
from collections.abc import Iterable, Sequence
from typing import Literal, cast

from msgspec import Raw, Struct

from director.core import keys
from director.core.errors import IdempotencyMismatch, UnknownQueue
from director.core.gatherer import Arg, Gatherer
from director.core.ids import Partition, PredictionId, QueueName, partition_of
from director.core.policy import Policy
from director.core.redis_client import text
from director.core.schema import Claim, Event, NewEvent, Record, Stored, Token, flat, pairs
from director.core.shards import MAX_STREAMS
from director.core.states import Status
from director.core.view import fold

__all__ = ("Accepted", "Advanced", "Canceled", "Hold", "QueueStats", "Repair", "Requeued", "Scripts")

Hold = Literal["held", "lost", "user", "deadline"]
"""What a holder learns of its claim: it holds; it is lost; its caller asked to cancel; its time is up."""

Canceled = Literal["canceled", "asked", "over", "unknown"]
Requeued = Literal["waiting", "delayed", "dead", "canceled", "late", "gone", "lost"]
Repair = Literal["forgotten", "leased", "offered", "placed"]
"""What reconcile did: dropped an id that has ended or has no record; gave a claim its lease; made claims look into the
stream where it stands; put it in a stream."""

MOST_CLAIMS = 20
IDEMPOTENCY_TTL_MS = 24 * 3600 * 1000


class Accepted(Struct, frozen=True):
    """What became of a submit. `replayed`: the idempotency key stands for this older prediction."""

    id: PredictionId
    replayed: bool = False
    created_ms: int = 0


class Advanced(Struct, frozen=True):
    """How a claim stands after its progress was written; the last event's number; when the run began."""

    hold: Hold
    seq: int
    started_ms: int | None


class QueueStats(Struct, frozen=True, kw_only=True):
    """One queue at one moment. `oldest_ms`: how long ago the oldest that has not ended was accepted."""

    high: int
    normal: int
    low: int
    claimed: int
    delayed: int
    dead: int
    live: int
    oldest_ms: int
    directors: int
    streams: int
    read: int
    paused: bool

    @property
    def waiting(self) -> int:
        return self.high + self.normal + self.low


class Scripts:
    """Every change of shared state. All raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, gatherer: Gatherer) -> None:
        self._call = gatherer.call

    # ── queues ────────────────────────────────────────────────────────────────────────────────────────────────

    async def register(self, queue: QueueName, *, version: str, policy: Policy) -> bool:
        """Make a queue known, or refresh its policy; False when its name belongs to another version."""
        _refuse_streams(policy.streams)
        size: list[Arg] = [version, policy.streams, min(policy.size, policy.streams)]
        retries: list[Arg] = [policy.attempts, policy.on_lost, _ms(policy.backoff_s), _ms(policy.backoff_cap_s)]
        args: list[Arg] = [*size, *retries, _ms(policy.data_ttl_s), _ms(policy.record_ttl_s)]
        return bool(await self._call("register", [keys.meta(queue)], args))

    async def resize(self, queue: QueueName, *, streams: int) -> tuple[int, int]:
        """Change the streams of each lane; returns (streams that take new work, streams that are read)."""
        _refuse_streams(streams)
        reply = await self._call("resize", [keys.meta(queue)], [queue, streams])
        if not reply:
            raise UnknownQueue(queue)
        return reply[0], reply[1]

    async def stats(self, queue: QueueName, *, alive_s: float = 15.0, now_ms: int | None = None) -> QueueStats:
        """How much waits, runs, is delayed and dead, and how many directors serve it."""
        args: list[Arg] = [queue, _ms(alive_s), _now(now_ms)]
        reply = await self._call("stats", [keys.meta(queue)], args)
        if not reply:
            raise UnknownQueue(queue)
        *counts, paused = reply
        names = [name for name in QueueStats.__struct_fields__ if name != "paused"]
        return QueueStats(**dict(zip(names, counts, strict=True)), paused=bool(paused))

    async def pause(self, queue: QueueName, *, paused: bool) -> None:
        """Hand nothing out, or resume. What is claimed runs on."""
        if not await self._call("pause", [keys.meta(queue)], [queue, int(paused)]):
            raise UnknownQueue(queue)

    # ── dead letters ──────────────────────────────────────────────────────────────────────────────────────────

    async def revive(self, prediction_id: PredictionId, *, now_ms: int | None = None) -> bool:
        """Return a dead letter to its queue; False when it is none, or its input is gone."""
        return bool(await self._call("revive", [keys.record(prediction_id)], [prediction_id, _now(now_ms)]))

    async def drop(self, prediction_id: PredictionId, queue: QueueName) -> bool:
        """Let go of a dead letter; False when it is none."""
        return bool(await self._call("drop", [keys.record(prediction_id)], [prediction_id, queue]))

    # ── the caller's side ─────────────────────────────────────────────────────────────────────────────────────

    async def enqueue(
        self,
        prediction_id: PredictionId,
        *,
        queue: QueueName,
        account: str,
        model: str,
        version: str,
        shard: Sequence[int],
        input: bytes,  # noqa: A002 - the word for it
        lane: str = "normal",
        cost: float = 1,
        url: str = "",
        webhook: str = "",
        events: str = "",
        lifetime_ms: int | None = None,
        late: str = "",
        start_by_ms: int | None = None,
        idempotency: tuple[str, str] | None = None,
        now_ms: int | None = None,
    ) -> Accepted:
        """Accept a prediction. `idempotency`: (key's digest, body's fingerprint). Safe to repeat with the same id.

        Raises UnknownQueue, IdempotencyMismatch.
        """
        if lane not in keys.LANES:  # no claim would ever look there
            raise ValueError(f"{lane} is no lane")
        record = keys.record(prediction_id)
        digest, fingerprint = idempotency or ("", "")
        held = keys.idempotency(account=account, model=model, digest=digest) if digest else record
        fields = flat(
            {
                "account": account,
                "model": model,
                "version": version,
                "queue": queue,
                "lane": lane,
                "shard": ",".join(map(str, shard)),
                "cost": f"{cost:g}",
                "url": url,
                "webhook": webhook,
                "events": events,
                "lifetime_ms": lifetime_ms,
                "late": late,
                "start_by_ms": start_by_ms,
            },
        )
        args: list[Arg] = [prediction_id, input, fingerprint, IDEMPOTENCY_TTL_MS, _now(now_ms), *fields]
        word, *rest = await self._call("enqueue", [record, keys.input_data(prediction_id), held], args)
        match word:
            case b"created":
                return Accepted(prediction_id, created_ms=int(rest[0]))
            case b"replayed":
                return Accepted(PredictionId(rest[0].decode()), replayed=True)
            case b"mismatch":
                raise IdempotencyMismatch("This Idempotency-Key was used with another body.")
            case _:
                raise UnknownQueue(queue)

    async def enlist(self, prediction_id: PredictionId, *, account: str, oldest: PredictionId) -> None:
        """Put an id on its account's list; call it before `enqueue`. Ids below `oldest` may be dropped."""
        await self._call("enlist", [keys.listing(account)], [prediction_id, oldest])

    async def get(self, prediction_id: PredictionId) -> Stored | None:
        """One prediction as it is now; None when there is none."""
        reply = await self._call("get", [keys.record(prediction_id)], [prediction_id])
        if not reply:
            return None
        fields, data, ended, entries = reply
        record = Record.parse(prediction_id, fields)
        raw = Raw(data) if data else None
        if not record.is_terminal:
            output, logs = fold([_event(seq, entry) for seq, entry in enumerate(entries, start=1)])
            return Stored(record=record, input=raw, output=output, logs=logs)
        done = dict(pairs(ended))
        output = Raw(done[b"output"]) if done.get(b"output") else None
        return Stored(record=record, input=raw, output=output, logs=done.get(b"logs", b"").decode())

    async def cancel(self, prediction_id: PredictionId, *, account: str, now_ms: int | None = None) -> Canceled:
        """End a prediction that waits, or ask the holder of one that runs to stop it."""
        args: list[Arg] = [prediction_id, account, _now(now_ms)]
        answer = await self._call("cancel", [keys.record(prediction_id)], args)
        return cast(Canceled, answer.decode())

    # ── the holder's side ─────────────────────────────────────────────────────────────────────────────────────

    async def claim(
        self,
        queue: QueueName,
        *,
        consumer: str,
        nonce: str,
        count: int,
        lease_s: float,
        now_ms: int | None = None,
    ) -> list[Claim]:
        """Claim up to `count`. Repeating a call with its nonce answers it again. A paused queue hands out nothing.

        Raises UnknownQueue.
        """
        args: list[Arg] = [queue, consumer, nonce, count, _ms(lease_s), MOST_CLAIMS, _now(now_ms)]
        state, *handed = await self._call("claim", [keys.meta(queue)], args)
        if state == b"unknown":
            raise UnknownQueue(queue)
        claims = []
        for raw_id, data, fields in handed:
            prediction_id = PredictionId(raw_id.decode())
            claims.append(Claim(Record.parse(prediction_id, fields), Raw(data or b"{}")))
        return claims

    async def extend(
        self,
        queue: QueueName,
        *,
        consumer: str,
        lease_s: float,
        claims: Iterable[tuple[PredictionId, Token]],
        now_ms: int | None = None,
    ) -> list[Hold]:
        """Move the leases of all these claims; one answer for each, in order. None at all is a sign of life."""
        held = [part for claim in claims for part in claim]
        args: list[Arg] = [queue, consumer, _ms(lease_s), _now(now_ms), *held]
        return [word.decode() for word in await self._call("extend", [keys.directors(queue)], args)]

    async def advance(
        self,
        prediction_id: PredictionId,
        *,
        token: Token,
        seq: int,
        ran_ms: int | None,
        events: Sequence[NewEvent],
        now_ms: int | None = None,
    ) -> Advanced:
        """Write that the run began (`ran_ms` ago), and its events."""
        args: list[Arg] = [prediction_id, token, seq, _now(ran_ms), _now(now_ms), *_parts(events)]
        word, *known = await self._call("advance", [keys.record(prediction_id)], args)
        last, started = known if known else (seq, None)
        return Advanced(word.decode(), last, int(started) if started else None)

    async def finish(
        self,
        prediction_id: PredictionId,
        *,
        token: Token,
        status: Status,
        error: str = "",
        code: str = "",
        output: bytes = b"",
        logs: str = "",
        metrics: bytes = b"",
        ran_ms: int | None = None,
        grace_s: float = 0,
        seq: int = 0,
        events: Sequence[NewEvent] = (),
        now_ms: int | None = None,
    ) -> bool:
        """Write the terminal record and remove the entry; False when the claim is lost and nothing was written.

        `seq` and `events` as for `advance`: what it did not write yet.
        """
        ended: list[Arg] = [status, error, code, output, logs, metrics]
        written: list[Arg] = [_now(ran_ms), _ms(grace_s), seq, _now(now_ms)]
        args: list[Arg] = [prediction_id, token, *ended, *written, *_parts(events)]
        return bool(await self._call("finish", [keys.record(prediction_id)], args) == b"finished")

    async def release(
        self,
        prediction_id: PredictionId,
        *,
        token: Token,
        spent: bool,
        delay_s: float = 0,
        error: str = "",
        code: str = "",
        now_ms: int | None = None,
    ) -> Requeued:
        """Give a claim back: unspent, or as a spent attempt. Returns what became of the prediction."""
        args: list[Arg] = [prediction_id, token, int(spent), _ms(delay_s), error, code, _now(now_ms)]
        answer = await self._call("release", [keys.record(prediction_id)], args)
        return cast(Requeued, answer.decode())

    # ── the keeper's side ─────────────────────────────────────────────────────────────────────────────────────

    async def contact(self, run_id: str, *, silence_s: float, now_ms: int | None = None) -> tuple[int, float]:
        """Note that this run of the server is heard; its time in ms, and how long keepers have heard it, in seconds."""
        now, lasted = await self._call("contact", [keys.contact()], [run_id, _ms(silence_s), _now(now_ms)])
        return now, lasted / 1000

    async def reap(
        self, queue: QueueName, *, limit: int, now_ms: int | None = None
    ) -> list[tuple[PredictionId, Requeued]]:
        """Take back claims whose lease ran out; what became of each.

        `now_ms`: judge by this time of the server's, which a keeper that was frozen would overrun.
        """
        reply = await self._call("reap", [keys.lease(queue)], [limit, _jitter(), _now(now_ms)])
        return _outcomes(reply)

    async def recover(
        self,
        queue: QueueName,
        lane: str,
        number: int,
        *,
        cursor: str,
        count: int,
        idle_s: float,
        now_ms: int | None = None,
    ) -> tuple[str, list[tuple[PredictionId, Requeued]]]:
        """Find claims of one stream that have no lease any more; the cursor to go on from, '0-0' at the end."""
        args: list[Arg] = [queue, cursor, count, _ms(idle_s), _jitter(), _now(now_ms)]
        last, *recovered = await self._call("recover", [keys.stream(queue, lane, number)], args)
        return last.decode(), _outcomes(recovered)

    async def reconcile(
        self, queue: QueueName, *, start: int, count: int, lease_s: float, now_ms: int | None = None
    ) -> tuple[int, list[tuple[PredictionId, Repair]]]:
        """Put right what is nowhere in one slice of what lives; where the next slice starts, 0 after the last."""
        args: list[Arg] = [queue, start, count, _ms(lease_s), _now(now_ms)]
        following, *repaired = await self._call("reconcile", [keys.live(queue)], args)
        return following, [(PredictionId(name.decode()), cast(Repair, word.decode())) for name, word in pairs(repaired)]

    async def retire(self, queue: QueueName, *, silent_s: float, now_ms: int | None = None) -> str:
        """Forget one director that has been silent for long and has nothing pending; its name, '' for none."""
        return text(await self._call("retire", [keys.directors(queue)], [queue, _ms(silent_s), _now(now_ms)]))

    async def promote(self, queue: QueueName, *, limit: int, now_ms: int | None = None) -> int:
        """Put due retries back into their streams; how many."""
        return int(await self._call("promote", [keys.delayed(queue)], [limit, _now(now_ms)]))

    async def expire(self, queue: QueueName, *, limit: int, now_ms: int | None = None) -> tuple[int, int]:
        """End what waited past its deadline, tell the holders of what runs past it: (ended, told)."""
        ended, told = await self._call("expire", [keys.deadline(queue)], [limit, _now(now_ms)])
        return ended, told

    async def due(
        self, partition: Partition, *, limit: int, hold_s: float, now_ms: int | None = None
    ) -> list[PredictionId]:
        """Take terminal webhooks whose next attempt has come; they are due again after `hold_s`."""
        args: list[Arg] = [limit, _ms(hold_s), _now(now_ms)]
        return [PredictionId(name.decode()) for name in await self._call("due", [keys.owed(partition)], args)]

    async def deliver(
        self,
        prediction_id: PredictionId,
        *,
        outcome: str,
        delay_s: float | None,
        revivals: int = 0,
        now_ms: int | None = None,
    ) -> bool:
        """Note how a terminal webhook's attempt went; no `delay_s`: there will be no other.

        `revivals` of the record that was told of: what a later end owes is not settled by an earlier one's answer.
        """
        delay_ms: Arg = "" if delay_s is None else _ms(delay_s)
        args: list[Arg] = [prediction_id, delay_ms, outcome, revivals, _now(now_ms)]
        owed = keys.owed(partition_of(prediction_id))
        return bool(await self._call("deliver", [keys.record(prediction_id), owed], args))


def _refuse_streams(streams: int) -> None:
    if not 1 <= streams <= MAX_STREAMS:  # beyond the mask an entry would never be read
        raise ValueError(f"a lane has 1 to {MAX_STREAMS} streams, not {streams}")


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _jitter() -> float:
    return random.random()  # noqa: S311 - spreads retries, guards nothing


def _outcomes(reply: Sequence[bytes]) -> list[tuple[PredictionId, Requeued]]:
    return [(PredictionId(name.decode()), cast(Requeued, word.decode())) for name, word in pairs(reply)]


def _now(now_ms: int | None) -> Arg:
    return "" if now_ms is None else now_ms


def _parts(events: Sequence[NewEvent]) -> list[Arg]:
    return [part for event in events for part in event]


def _event(seq: int, entry: bytes) -> Event:
    kind, at, data = entry.split(b" ", 2)
    return Event(seq, kind.decode(), int(at), data)
