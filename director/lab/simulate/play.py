"""Play a trace under a policy: call the queue's own scripts on a server in memory, with a virtual time for each call.
Slots are only counted: a free slot claims at once, and a claim ends when its run time has passed. A play never
waits, and the same trace and policy give the same result.
"""

import asyncio
import heapq
import tomllib
from array import array
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker.gatherer import Gatherer
from director.broker.replies import Admission, Claims
from director.broker.scripts import Scripts
from director.core.account_limits import Count
from director.core.errors import QueueRefused, SettingsError
from director.core.ids import LANES, PredictionId, QueueName, new_prediction_id, queue_name
from director.core.policy import MAX_STREAMS, NONE, Lane, Objective, Policy, shard
from director.core.schema import Claim, NewPrediction
from director.core.states import Status
from director.lab.simulate.trace import Trace

VERSION: Final = "5d" * 32
CONSUMER: Final = "simulated"
INPUT: Final = b'{"text":"hello"}'
START_MS: Final = 1_800_000_000_000
LEASE_S: Final = 10 * 366 * 86400.0  # longer than any play: no reaper runs here
AT_ONCE: Final = 200  # calls started together leave in one write, so they arrive in their order
MODEL: Final = "simulated/model"
EVERYBODY: Final = "everybody"
ONE_LANE: Final = "normal"
HEARTBEAT_MS: Final = 10_000  # a director that is silent for more than twice as long does not count as alive
SAY_EVERY: Final = 1000

NEVER: Final = -1
REFUSED: Final = -2

EVERY_OTHER: Final = "*"
MOST_NAME: Final = 14  # characters; a column of the table has no more room


class Share(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    weight: Annotated[float, Meta(ge=0.001, le=1000)] = 1.0
    max_running: Count | None = None
    max_queued: Count | None = None


class TriedPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`mode` and `max_queued` mean what they mean to `director queues bound`. `accounts`: by name, and `*` for all
    others. `fifo` is one line for all; a real queue has no such policy, it is there to compare with.
    """

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
        """The policy that a director would register. Nothing reads an ended prediction, so it expires at once."""
        streams, size = (1, 1) if self.fifo else (self.streams, self.size)
        return Policy(streams=streams, size=size, objectives=self.objectives, data_ttl_s=1, record_ttl_s=1)

    def share_of(self, account: str) -> Share:
        return self.accounts.get(account) or self.accounts.get(EVERY_OTHER) or Share()


FAIR: Final = TriedPolicy(name="fair")
FIFO: Final = TriedPolicy(name="fifo", fifo=True)
NAMED: Final = {each.name: each for each in (FAIR, FIFO)}


def try_policy(text: str) -> TriedPolicy:
    """Return `fair` (a queue's defaults), `fifo` (one line for all), or the policy in a TOML file. Raises
    SettingsError.
    """
    if text in NAMED:
        return NAMED[text]
    path = Path(text)
    try:
        given: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        read = msgspec.convert(given, TriedPolicy)
    except OSError as exc:
        known = " and ".join(NAMED)
        raise SettingsError(f"{text} cannot be read: {exc.strerror}. A policy is a file, or {known}.") from exc
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as exc:
        raise SettingsError(f"{text}: {exc}.") from exc
    if (read.mode == "bounded") != (read.max_queued is not None):
        raise SettingsError(f'{text}: `max_queued` goes with mode "bounded", and only with it.')
    if read.size > read.streams:
        raise SettingsError(f"{text}: a shard of {read.size} streams does not fit into {read.streams}.")
    if read.fifo and read.accounts:
        why = "`fifo` is one line for all, in which accounts have no limits. Leave out `accounts`."
        raise SettingsError(f"{text}: {why}")
    return replace(read, name=(read.name or path.stem)[:MOST_NAME])


class VirtualQueue:
    """One queue on a server of its own. The caller sets `now_ms`. A method takes the time when it is called, not when
    its coroutine is awaited: calls may be kept and sent later.
    """

    def __init__(self, scripts: Scripts, model: str, policy: Policy) -> None:
        self.name: QueueName = queue_name(model, VERSION)
        self.now_ms = START_MS
        self._scripts = scripts
        self._model = model
        self._policy = policy
        self._nonces = count()

    async def register(self) -> None:
        await self._scripts.register(self.name, version=VERSION, policy=self._policy)

    def report_slots(self, slots: int) -> Coroutine[Any, Any, object]:
        return self._scripts.extend(
            self.name, consumer=CONSUMER, lease_s=LEASE_S, claims=[], slots=slots, now_ms=self.now_ms
        )

    def new_id(self) -> PredictionId:
        return new_prediction_id(model=self._model, now_ms=self.now_ms)

    def enqueue(self, prediction_id: PredictionId, account: str, **options: Any) -> Coroutine[Any, Any, object]:
        streams = shard(account, streams=self._policy.streams, size=self._policy.size)
        new = NewPrediction(
            id=prediction_id,
            queue=self.name,
            account=account,
            model=self._model,
            version=VERSION,
            shard=",".join(map(str, streams)),
            input=INPUT,
            **options,
        )
        return self._scripts.enqueue(new, now_ms=self.now_ms)

    def claim(self, most: int = 1) -> Coroutine[Any, Any, Claims]:
        return self._scripts.claim(
            self.name,
            consumer=CONSUMER,
            nonce=f"n{next(self._nonces)}",
            count=most,
            lease_s=LEASE_S,
            now_ms=self.now_ms,
        )

    def finish(self, claim: Claim, *, ran_ms: int) -> Coroutine[Any, Any, object]:
        return self._scripts.finish(
            claim.id,
            queue=self.name,
            token=claim.token,
            status=Status.SUCCEEDED,
            output=b"1",
            ran_ms=ran_ms,
            now_ms=self.now_ms,
        )


class PlayResult(Struct, kw_only=True):
    """`started_ms`: of each prediction, or NEVER or REFUSED. `order`: as started. `refused`: count by code."""

    started_ms: "array[int]"
    order: "array[int]"
    refused: Counter[str]


# the time of a run's end, a number that orders the ends of one moment, the prediction's number, its claim
End = tuple[int, int, int, Claim]


class _Play:
    def __init__(self, scripts: Scripts, trace: Trace, tried: TriedPolicy, *, slots: int) -> None:
        self.result = PlayResult(started_ms=array("q", [NEVER]) * len(trace), order=array("q"), refused=Counter())
        self._scripts = scripts
        self._trace = trace
        self._tried = tried
        self._slots = slots
        self._free = slots
        self._queue = VirtualQueue(scripts, MODEL, tried.policy)
        self._shares: list[Share] = [tried.share_of(name) for name in trace.accounts]
        self._unsent: list[Coroutine[Any, Any, object]] = []
        self._waiting: dict[PredictionId, int] = {}
        self._ends: list[End] = []
        self._arrived = 0
        self._heartbeat = -HEARTBEAT_MS

    @property
    def done(self) -> int:
        return len(self.result.order) + self.result.refused.total()

    async def run(self, say: Callable[[int], None]) -> None:
        await self._queue.register()
        await self._scripts.bound(self._queue.name, mode=self._tried.mode, max_queued=self._tried.max_queued)
        said = 0
        while self._arrived < len(self._trace) or self._ends:
            await self._step()
            if self.done - said >= SAY_EVERY:
                said = self.done
                say(said)
        await self._send()

    async def _step(self) -> None:
        """Move to the next moment at which something happens: first ends, then arrivals, then claims."""
        moments = [self._ends[0][0]] if self._ends else []
        now = min([*moments, *self._trace.at_ms[self._arrived : self._arrived + 1]])
        self._queue.now_ms = START_MS + now
        if now - self._heartbeat >= HEARTBEAT_MS:
            self._heartbeat = now
            self._unsent.append(self._queue.report_slots(self._slots))
        while self._ends and self._ends[0][0] == now:
            _, _, number, claim = heapq.heappop(self._ends)
            self._free += 1
            self._unsent.append(self._queue.finish(claim, ran_ms=self._trace.run_ms[number]))
        while self._arrived < len(self._trace) and self._trace.at_ms[self._arrived] == now:
            self._unsent.append(self._enqueue(self._arrived))
            self._arrived += 1
            if len(self._unsent) >= AT_ONCE:
                await self._send()
        # while no slot is free, calls are only kept: they leave in one write with the next claim
        if self._free and self._waiting:
            await self._claim(now)
        elif len(self._unsent) >= AT_ONCE:
            await self._send()

    async def _claim(self, now: int) -> None:
        """Fill the free slots. One claim looks at a limited number of entries, so repeat it while that ended it."""
        why = "bound"
        while why == "bound" and self._free and self._waiting:
            self._unsent.append(self._queue.claim(self._free))
            claims = (await self._send())[-1]
            why = claims.why
            for claim in claims:
                number = self._waiting.pop(claim.id)
                self._free -= 1
                self.result.started_ms[number] = now
                self.result.order.append(number)
                heapq.heappush(self._ends, (now + self._trace.run_ms[number], len(self.result.order), number, claim))

    async def _send(self) -> list[Any]:
        calls, self._unsent = self._unsent, []
        return list(await asyncio.gather(*calls))

    def _enqueue(self, number: int) -> Coroutine[Any, Any, None]:
        account = self._trace.account[number]
        share, is_one_line = self._shares[account], self._tried.fifo
        prediction_id = self._queue.new_id()
        self._waiting[prediction_id] = number
        call = self._queue.enqueue(
            prediction_id,
            EVERYBODY if is_one_line else self._trace.accounts[account],
            lane=ONE_LANE if is_one_line else LANES[self._trace.lane[number]],
            cost=self._trace.cost[number],
            weight=share.weight,
            most_queued=share.max_queued,
            most_running=share.max_running,
        )
        return self._accept(call, prediction_id, number)

    async def _accept(self, call: Coroutine[Any, Any, object], prediction_id: PredictionId, number: int) -> None:
        try:
            await call
        except QueueRefused as exc:
            del self._waiting[prediction_id]
            self.result.started_ms[number] = REFUSED
            self.result.refused[exc.code] += 1


async def play(
    redis: Redis, trace: Trace, tried: TriedPolicy, *, slots: int, say: Callable[[int], None] = lambda done: None
) -> PlayResult:
    """`redis` is emptied first. `say` gets the number done, every thousand. Raises BackendUnavailable."""
    await redis.flushall()
    gatherer = Gatherer(redis)
    try:
        running = _Play(Scripts(gatherer), trace, tried, slots=slots)
        await running.run(say)
    finally:
        await gatherer.aclose()
    return running.result
