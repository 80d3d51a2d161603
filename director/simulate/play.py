"""Play a trace through the queue's own scripts on a server in memory, with the time of each call walked by hand.

Slots are counted, not run: whoever is free claims at once, and what was claimed ends when its time has passed. Decides
nothing: who is next is what the scripts say. A play never waits, and the same one comes out the same.
"""

import asyncio
import heapq
import tomllib
from array import array
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker.gatherer import Gatherer
from director.broker.scripts import Admission, Scripts
from director.core.account_limits import Count
from director.core.errors import QueueRefused, SettingsError
from director.core.ids import LANES, PredictionId, QueueName, new_prediction_id, queue_name
from director.core.policy import MAX_STREAMS, NONE, Lane, Objective, Policy, shard
from director.core.schema import Claim
from director.core.states import Status
from director.simulate.trace import Trace

# A policy that is tried: how the queue is made, what it promises, and what each account may have of it.
#
# Pure, but for reading the file. `fifo` is no policy of the queue: it is one line for all, to compare with.

EVERY_OTHER: Final = "*"
MOST_NAME: Final = 14  # as much of a name as a column of a table has room for


class Share(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one account may have, as an operator sets it."""

    weight: Annotated[float, Meta(ge=0.001, le=1000)] = 1.0
    max_running: Count | None = None
    max_queued: Count | None = None


class Tried(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`mode` and `max_queued` as `director queues bound` has them. `accounts`: by name, and `*` for every other."""

    name: str = ""
    fifo: bool = False
    streams: Annotated[int, Meta(ge=1, le=MAX_STREAMS)] = 16
    size: Annotated[int, Meta(ge=1, le=MAX_STREAMS)] = 2
    mode: Admission = "absorb"
    max_queued: Count | None = None
    objectives: Mapping[Lane, Objective] = NONE
    accounts: Mapping[str, Share] = {}

    @property
    def policy(self) -> Policy:
        """What a director would register. What has ended is not asked for again, and leaves the server at once."""
        streams, size = (1, 1) if self.fifo else (self.streams, self.size)
        return Policy(streams=streams, size=size, objectives=self.objectives, data_ttl_s=1, record_ttl_s=1)

    def share_of(self, account: str) -> Share:
        return self.accounts.get(account) or self.accounts.get(EVERY_OTHER) or Share()


FAIR: Final = Tried(name="fair")
FIFO: Final = Tried(name="fifo", fifo=True)
NAMED: Final = {each.name: each for each in (FAIR, FIFO)}


def tried(text: str) -> Tried:
    """`fair`, as a queue is by default; `fifo`, one line for all; or a TOML file. Raises SettingsError."""
    if text in NAMED:
        return NAMED[text]
    path = Path(text)
    try:
        given: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        read = msgspec.convert(given, Tried)
    except OSError as exc:
        known = " and ".join(NAMED)
        raise SettingsError(f"{text} cannot be read: {exc.strerror}. A policy is a file, or {known}.") from exc
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as exc:
        raise SettingsError(f"{text}: {exc}.") from exc
    _check(text, read)
    return replace(read, name=(read.name or path.stem)[:MOST_NAME])


def _check(text: str, read: Tried) -> None:
    if (read.mode == "bounded") != (read.max_queued is not None):
        raise SettingsError(f'{text}: `max_queued` goes with mode "bounded", and only with it.')
    if read.size > read.streams:
        raise SettingsError(f"{text}: a shard of {read.size} streams does not fit into {read.streams}.")
    if read.fifo and read.accounts:
        raise SettingsError(f"{text}: in one line for all no account has anything of its own; leave out `accounts`.")


MODEL: Final = "simulated/model"
VERSION: Final = "5d" * 32
CONSUMER: Final = "simulated"
EVERYBODY: Final = "everybody"
ONE_LANE: Final = "normal"
START_MS: Final = 1_800_000_000_000
LEASE_S: Final = 10 * 366 * 86400.0  # nobody reaps here
BEAT_MS: Final = 10_000  # a director that is silent for longer than twice that is not counted on
AT_ONCE: Final = 200  # calls on their way together: they leave in one write, and so arrive in their order
SAY_EVERY: Final = 1000

NEVER: Final = -1
REFUSED: Final = -2


class Played(Struct, kw_only=True):
    """`started_ms` of each prediction of the trace, or NEVER or REFUSED; `order`: in which they were started."""

    started_ms: "array[int]"
    order: "array[int]"
    refused: Counter[str]


Ends = tuple[int, int, int, Claim]  # when, a number that tells two of one moment apart, which prediction, its claim


class _Play:
    """One play under way."""

    def __init__(self, scripts: Scripts, trace: Trace, tried: Tried, *, slots: int) -> None:
        self.played = Played(started_ms=array("q", [NEVER]) * len(trace), order=array("q"), refused=Counter())
        self._scripts = scripts
        self._trace = trace
        self._slots = slots
        self._free = slots
        self._queue: QueueName = queue_name(MODEL, VERSION)
        self._is_one_line = tried.fifo
        self._policy = tried.policy
        self._shares: list[Share] = [tried.share_of(name) for name in trace.accounts]
        self._shards = [self._shard(EVERYBODY if tried.fifo else name) for name in trace.accounts]
        self._unsent: list[Coroutine[Any, Any, object]] = []
        self._waiting: dict[PredictionId, int] = {}
        self._ends: list[Ends] = []
        self._came = 0
        self._beat = -BEAT_MS
        self._claims = 0

    @property
    def done(self) -> int:
        """So many were started or refused."""
        return len(self.played.order) + self.played.refused.total()

    async def open(self, tried: Tried) -> None:
        """Make the queue known as it is tried."""
        await self._scripts.register(self._queue, version=VERSION, policy=self._policy)
        await self._scripts.bound(self._queue, mode=tried.mode, max_queued=tried.max_queued)

    async def run(self, say: Callable[[int], None]) -> None:
        said = 0
        while self._came < len(self._trace) or self._ends:
            await self._step()
            if self.done - said >= SAY_EVERY:
                said = self.done
                say(said)
        await self._send()

    async def _step(self) -> None:
        """To the next moment at which anything happens: ends, arrivals, then claims."""
        now = self._next_moment()
        if now - self._beat >= BEAT_MS:
            self._beat = now
            self._unsent.append(self._tell_slots(now))
        while self._ends and self._ends[0][0] == now:
            _, _, which, claim = heapq.heappop(self._ends)
            self._free += 1
            self._unsent.append(self._finish(claim, self._trace.run_ms[which], now))
        while self._came < len(self._trace) and self._trace.at_ms[self._came] == now:
            self._unsent.append(self._enqueue(self._came, now))
            self._came += 1
            if len(self._unsent) >= AT_ONCE:
                await self._send()
        # while nobody could claim, what happens is only noted, and goes out in one write with the next claim
        if self._free and self._waiting:
            await self._claim(now)
        elif len(self._unsent) >= AT_ONCE:
            await self._send()

    def _next_moment(self) -> int:
        moments = [self._ends[0][0]] if self._ends else []
        if self._came < len(self._trace):
            moments.append(self._trace.at_ms[self._came])
        return min(moments)

    async def _claim(self, now: int) -> None:
        """All that there is for the slots that are free. A claim looks at so many at once, and then at no more."""
        why = "bound"
        while why == "bound" and self._free and self._waiting:
            self._claims += 1
            self._unsent.append(
                self._scripts.claim(
                    self._queue,
                    consumer=CONSUMER,
                    nonce=f"n{self._claims}",
                    count=self._free,
                    lease_s=LEASE_S,
                    now_ms=START_MS + now,
                )
            )
            claims = (await self._send())[-1]
            why = claims.why
            for claim in claims:
                self._start(claim, now)

    def _start(self, claim: Claim, now: int) -> None:
        which = self._waiting.pop(claim.id)
        self._free -= 1
        self.played.started_ms[which] = now
        self.played.order.append(which)
        heapq.heappush(self._ends, (now + self._trace.run_ms[which], len(self.played.order), which, claim))

    async def _send(self) -> list[Any]:
        calls, self._unsent = self._unsent, []
        return list(await asyncio.gather(*calls))

    # ── the calls ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _tell_slots(self, now: int) -> Coroutine[Any, Any, object]:
        return self._scripts.extend(
            self._queue, consumer=CONSUMER, lease_s=LEASE_S, claims=[], slots=self._slots, now_ms=START_MS + now
        )

    def _finish(self, claim: Claim, ran_ms: int, now: int) -> Coroutine[Any, Any, object]:
        return self._scripts.finish(
            claim.id, token=claim.token, status=Status.SUCCEEDED, ran_ms=ran_ms, now_ms=START_MS + now
        )

    def _enqueue(self, which: int, now: int) -> Coroutine[Any, Any, object]:
        prediction_id = new_prediction_id(model=MODEL, now_ms=START_MS + now)
        self._waiting[prediction_id] = which
        return self._submit(prediction_id, which, now)

    async def _submit(self, prediction_id: PredictionId, which: int, now: int) -> None:
        account = self._trace.account[which]
        share = self._shares[account]
        try:
            await self._scripts.enqueue(
                prediction_id,
                queue=self._queue,
                account=EVERYBODY if self._is_one_line else self._trace.accounts[account],
                model=MODEL,
                version=VERSION,
                shard=self._shards[account],
                input=b"{}",
                lane=ONE_LANE if self._is_one_line else LANES[self._trace.lane[which]],
                cost=self._trace.cost[which],
                weight=share.weight,
                most_queued=share.max_queued,
                most_running=share.max_running,
                now_ms=START_MS + now,
            )
        except QueueRefused as exc:
            del self._waiting[prediction_id]
            self.played.started_ms[which] = REFUSED
            self.played.refused[exc.code] += 1

    def _shard(self, account: str) -> Sequence[int]:
        return shard(account, streams=self._policy.streams, size=self._policy.size)


async def play(
    redis: Redis, trace: Trace, tried: Tried, *, slots: int, say: Callable[[int], None] = lambda done: None
) -> Played:
    """Play all of it. `redis` is emptied first, so it is one that nobody else uses; `say` hears how many are done.

    Raises BackendUnavailable.
    """
    await redis.flushall()
    gatherer = Gatherer(redis)
    try:
        it = _Play(Scripts(gatherer), trace, tried, slots=slots)
        await it.open(tried)
        await it.run(say)
    finally:
        await gatherer.aclose()
    return it.played
