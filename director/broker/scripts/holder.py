"""Call the scripts for a claim, from taking to releasing it. They write nothing once the claim is lost."""

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
"""State of a claim: held; lost; its caller asked to cancel; its deadline has passed."""

Requeued = Literal["waiting", "delayed", "dead", "canceled", "late", "gone", "lost"]

Readiness = Literal["ready", "starting", "setup_failed", "server_auth", "draining"]
"""State of a director: `starting` has no ready server yet; `draining` claims nothing more."""

Ceased = Literal["count", "empty", "budget", "bound", "paused", "open"]
"""Why a call handed out no more. `bound`: one call looks at no more entries; `open`: the breaker is open."""

MOST_CLAIMS = 20


class Claims(list[Claim]):
    """The claims of one call, and why there were no more."""

    def __init__(self, claims: Iterable[Claim] = (), *, why: Ceased = "empty") -> None:
        super().__init__(claims)
        self.why = why


class Advanced(Struct, frozen=True):
    """The state of a claim after its progress was written, the last event's number, and when the run began."""

    hold: Hold
    seq: int
    started_ms: int | None


class HolderScripts(Wire):
    """The scripts for a director that holds claims."""

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
        """Claim up to `count`. Repeating a call with its nonce returns the same claims. A paused queue hands out
        nothing.

        `budget`: most that all may cost together; with `alone` the first is claimed at any cost. `warm`: the affinity
        key that goes first within the tenant whose turn it is. `send`: sends the packed call once in its own way and
        returns the reply; its errors pass through. Raises UnknownQueue.
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
        """Extend the leases of all these claims and return one state for each, in order. A call without claims is a
        heartbeat.

        `slots`: of this director, busy or free. `state`: of its model servers. `about`: further facts about the
        director, see director.store.directors.
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
        """Write that the run began `ran_ms` ago, new events, and the server's own name of the run (`remote`) if it is
        new.
        """
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
        """Write the terminal record and remove the entry. Returns False if the claim is lost; nothing was written then.

        `over_ms`: how long ago the run was over. `claimed_ms`: how long ago it was claimed, by the caller's clock.
        `seq` and `events` as for `advance`: events that it did not write yet.
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
        """Give a claim back, unspent or as a spent attempt. Returns the new state of the prediction.

        `began`: whether its run began; None lets the record decide. If the queue allows no second run, a begun one ends
        with `error` and `code`. `claimed_ms`: how long ago it was claimed, by the caller's clock.
        """
        has_begun = "" if began is None else int(began)
        args: list[Arg] = [prediction_id, token, int(spent), ms(delay_s), error, code, has_begun]
        args += [now(now_ms), now(claimed_ms)]
        answer = await self._call("release", [keys.record(prediction_id)], args)
        return cast(Requeued, answer.decode())
