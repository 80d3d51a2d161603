"""What the holder of a claim does with it, from taking it to letting it go. Writes nothing once the claim is lost."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, cast

from msgspec import Raw, Struct

from director.broker import keys
from director.broker.gatherer import Arg, Traffic
from director.broker.scripts.wire import Wire, ms, now, parts
from director.core.errors import UnknownQueue
from director.core.ids import PredictionId, QueueName
from director.core.schema import Claim, NewEvent, Record, Token
from director.core.states import Status

Hold = Literal["held", "lost", "user", "deadline"]
"""What a holder learns of its claim: it holds; it is lost; its caller asked to cancel; its time is up."""

Requeued = Literal["waiting", "delayed", "dead", "canceled", "late", "gone", "lost"]

Readiness = Literal["ready", "starting", "setup_failed", "server_auth", "draining"]
"""Of a director: it has a server that can run; it has none yet; none will come; it claims nothing more."""

Ceased = Literal["count", "empty", "budget", "bound", "paused", "open"]
"""Why a call handed out no more. `bound`: of what one call looks at; `open`: the breaker is."""

MOST_CLAIMS = 20


class Claims(list[Claim]):
    """What one call handed out, and why it was no more."""

    def __init__(self, claims: Iterable[Claim] = (), *, why: Ceased = "empty") -> None:
        super().__init__(claims)
        self.why = why


class Advanced(Struct, frozen=True):
    """How a claim stands after its progress was written; the last event's number; when the run began."""

    hold: Hold
    seq: int
    started_ms: int | None


class HolderScripts(Wire):
    """The holder's side."""

    async def claim(
        self,
        queue: QueueName,
        *,
        consumer: str,
        nonce: str,
        count: int,
        lease_s: float,
        budget: float | None = None,
        alone: bool = True,
        warm: str = "",
        send: Callable[[bytes], Awaitable[Any]] | None = None,
        now_ms: int | None = None,
    ) -> Claims:
        """Claim up to `count`. Repeating a call with its nonce answers it again. A paused queue hands out nothing.

        `budget`: most that all may cost together; with `alone` the first is had whatever it costs. `warm`: the affinity
        key that goes first among those of the tenant whose turn it is. `send`: takes the call to the server in its own
        way, once, and brings the answer; raises what it likes. Raises UnknownQueue.
        """
        bounds: list[Arg] = ["" if budget is None else budget, int(alone), warm]
        args: list[Arg] = [queue, consumer, nonce, count, ms(lease_s), MOST_CLAIMS, now(now_ms), *bounds]
        named = [keys.meta(queue)]
        sent = self._call("claim", named, args) if send is None else send(self._packed("claim", named, args))
        state, *handed = await sent
        if state == b"unknown":
            raise UnknownQueue(queue)
        claims = Claims(why=cast(Ceased, (handed[0] if handed else state).decode()))
        for raw_id, data, fields in handed[1:]:
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
        slots: int = 1,
        state: Readiness = "ready",
        about: bytes = b"",
        now_ms: int | None = None,
    ) -> list[Hold]:
        """Move the leases of all these claims; one answer for each, in order. None at all is a sign of life.

        `slots`: that this director has, busy or free; `state`: of its servers. `about`: what else it says of
        itself, see director.store.directors.
        """
        held = [part for claim in claims for part in claim]
        args: list[Arg] = [queue, consumer, ms(lease_s), now(now_ms), slots, state, about, *held]
        return [
            word.decode() for word in await self._call("extend", [keys.directors(queue)], args, traffic=Traffic.BEATS)
        ]

    async def advance(
        self,
        prediction_id: PredictionId,
        *,
        token: Token,
        seq: int,
        ran_ms: int | None,
        events: Sequence[NewEvent],
        remote: str = "",
        now_ms: int | None = None,
    ) -> Advanced:
        """Write that the run began (`ran_ms` ago), and its events; and what its server calls it, if that is new."""
        args: list[Arg] = [prediction_id, token, seq, now(ran_ms), now(now_ms), remote, *parts(events)]
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
        over_ms: int = 0,
        claimed_ms: int | None = None,
        seq: int = 0,
        events: Sequence[NewEvent] = (),
        now_ms: int | None = None,
    ) -> bool:
        """Write the terminal record and remove the entry; False when the claim is lost and nothing was written.

        `over_ms`: how long ago its run was over; `claimed_ms`: how long ago it was claimed, by the caller's clock;
        `seq` and `events` as for `advance`: what it did not write yet.
        """
        ended: list[Arg] = [status, error, code, output, logs, metrics]
        written: list[Arg] = [now(ran_ms), ms(grace_s), seq, now(now_ms), over_ms, now(claimed_ms)]
        args: list[Arg] = [prediction_id, token, *ended, *written, *parts(events)]
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
        began: bool | None = None,
        claimed_ms: int | None = None,
        now_ms: int | None = None,
    ) -> Requeued:
        """Give a claim back: unspent, or as a spent attempt. Returns what became of the prediction.

        `began`: did its run begin? Where nothing may run twice, it then ends with `error` and `code`. None: the record
        says whether it did. `claimed_ms`: how long ago it was claimed, by the caller's clock.
        """
        has_begun = "" if began is None else int(began)
        args: list[Arg] = [prediction_id, token, int(spent), ms(delay_s), error, code, has_begun]
        args += [now(now_ms), now(claimed_ms)]
        answer = await self._call("release", [keys.record(prediction_id)], args)
        return cast(Requeued, answer.decode())
