"""Play a queue's hours in seconds: the real scripts on a real server, with the time of each call walked by hand.

Slots are counted, not run: whoever is free claims at once, and what was claimed ends when its time has passed. Nothing
waits, and the same loads are the same play but for the ids.
"""

import asyncio
import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import count
from typing import Any, Final

from msgspec import Struct, field

from director.broker.scripts import Scripts
from director.core.ids import PredictionId, QueueName, new_prediction_id, queue_name
from director.core.policy import Policy, shard
from director.core.schema import Claim
from director.core.states import Status

VERSION: Final = "be" * 32
INPUT: Final = b'{"text":"hello"}'
POLICY: Final = Policy()
START_MS: Final = 1_800_000_000_000
LEASE_S: Final = 3600.0  # nobody reaps here
CONSUMER: Final = "bench"
AT_ONCE: Final = 200  # calls on their way together: they leave in one write, and so arrive in their order
ROUND_TRIP_MS: Final = 1  # who sends the next when one has ended comes after the slot has claimed again


class Tenant(Struct, frozen=True):
    """`name` is the account's, so it decides the shard."""

    name: str
    weight: float = 1.0


class Load(Struct, frozen=True, kw_only=True):
    """What one tenant sends: `jobs` at `since_s`, and while `is_closed` one more for each that ended."""

    tenant: Tenant
    jobs: int = 1
    seconds: Callable[[], float] = lambda: 1.0
    lane: str = "normal"
    since_s: float = 0.0
    is_closed: bool = False


class Run(Struct, kw_only=True):
    """One prediction and what became of it, in milliseconds from the beginning of the play."""

    load: Load
    arrived: int
    ms: int
    started: int | None = None

    @property
    def tenant(self) -> str:
        return self.load.tenant.name


class Played(Struct, kw_only=True):
    """What has happened so far: what was started, in this order, and what still waits.

    `is_stuck`: something waits and nothing will ever happen again.
    """

    now: int = 0
    is_stuck: bool = False
    started: list[Run] = field(default_factory=list)
    starts: Counter[str] = field(default_factory=Counter)  # by tenant
    waiting: dict[PredictionId, Run] = field(default_factory=dict)

    def waits_s(self, *, lane: str = "", tenants: Iterable[str] = ()) -> list[float]:
        """How long each waited until it was started, or until now; for ever where nothing will start it."""
        wanted, end = set(tenants), math.inf if self.is_stuck else self.now
        return [
            ((end if run.started is None else run.started) - run.arrived) / 1000
            for run in (*self.started, *self.waiting.values())
            if run.load.lane == (lane or run.load.lane) and (not wanted or run.tenant in wanted)
        ]

    def shares(self, tenants: Sequence[Tenant]) -> list[float]:
        """Of the seconds that these tenants were served until now: the part of each."""
        served: defaultdict[str, int] = defaultdict(int)
        for run in self.started:
            served[run.tenant] += min(run.ms, self.now - (run.started or 0))
        total = sum(served[tenant.name] for tenant in tenants)
        return [served[tenant.name] / total if total else 0.0 for tenant in tenants]


class VirtualQueue:
    """One queue through the typed calls; `now_ms` is the time of every call."""

    def __init__(self, scripts: Scripts, model: str) -> None:
        self._scripts = scripts
        self._model = model
        self._nonces = count()
        self.name: QueueName = queue_name(model, VERSION)
        self.now_ms = START_MS

    async def open(self, *, slots: int) -> None:
        """Make it known, with a director that has so many slots."""
        await self._scripts.register(self.name, version=VERSION, policy=POLICY)
        await self._scripts.extend(
            self.name, consumer=CONSUMER, lease_s=LEASE_S, claims=[], slots=slots, now_ms=self.now_ms
        )

    def new_id(self) -> PredictionId:
        return new_prediction_id(model=self._model, now_ms=self.now_ms)

    async def enqueue(self, prediction_id: PredictionId, tenant: Tenant, lane: str = "normal", url: str = "") -> None:
        await self._scripts.enqueue(
            prediction_id,
            queue=self.name,
            account=tenant.name,
            model=self._model,
            version=VERSION,
            shard=shard(tenant.name, streams=POLICY.streams, size=POLICY.size),
            input=INPUT,
            lane=lane,
            url=url,
            weight=tenant.weight,
            now_ms=self.now_ms,
        )

    async def claim(self, most: int = 1) -> list[Claim]:
        return await self._scripts.claim(
            self.name,
            consumer=CONSUMER,
            nonce=f"n{next(self._nonces)}",
            count=most,
            lease_s=LEASE_S,
            now_ms=self.now_ms,
        )

    async def finish(self, claim: Claim, *, ran_ms: int) -> None:
        await self._scripts.finish(
            claim.id, token=claim.token, status=Status.SUCCEEDED, output=b"1", ran_ms=ran_ms, now_ms=self.now_ms
        )


Happens = tuple[int, int, Load | tuple[Run, Claim], int]


class _Play:
    """One play under way."""

    def __init__(self, queue: VirtualQueue, loads: Sequence[Load], *, slots: int) -> None:
        self.played = Played()
        self._queue = queue
        self._free = slots
        self._numbers = count()
        self._coming: list[Happens] = []
        for load in loads:
            self._arrive(round(load.since_s * 1000), load, load.jobs)

    def _arrive(self, at: int, load: Load, jobs: int) -> None:
        heapq.heappush(self._coming, (at, next(self._numbers), load, jobs))

    @property
    def goes_on(self) -> bool:
        return bool(self._coming)

    async def step(self) -> None:
        """To the next moment at which anything happens: ends, arrivals, then claims."""
        now = self._coming[0][0]
        self.played.now, self._queue.now_ms = now, START_MS + now
        ended: list[tuple[Run, Claim]] = []
        arrived: list[Run] = []
        while self._coming and self._coming[0][0] == now:
            _, _, what, jobs = heapq.heappop(self._coming)
            if isinstance(what, Load):
                arrived += (Run(load=what, arrived=now, ms=max(1, round(what.seconds() * 1000))) for _ in range(jobs))
            else:
                ended.append(what)
        self._free += len(ended)
        for run, _ in ended:
            if run.load.is_closed:
                self._arrive(now + ROUND_TRIP_MS, run.load, 1)
        filed = [(self._queue.new_id(), run) for run in arrived]
        self.played.waiting.update(filed)
        # made in one turn of the loop they leave in one write: what ends comes before what arrives, then the claim
        calls: list[Coroutine[Any, Any, object]] = [self._queue.finish(claim, ran_ms=run.ms) for run, claim in ended]
        calls += [self._queue.enqueue(which, run.load.tenant, run.load.lane) for which, run in filed]
        while len(calls) > AT_ONCE:
            await asyncio.gather(*calls[:AT_ONCE])
            del calls[:AT_ONCE]
        if self._free and self.played.waiting:
            _, claims = await asyncio.gather(asyncio.gather(*calls), self._queue.claim(self._free))
            self._start(claims)
        else:
            await asyncio.gather(*calls)

    def _start(self, claims: Sequence[Claim]) -> None:
        now = self.played.now
        for claim in claims:
            run = self.played.waiting.pop(claim.id)
            run.started = now
            self._free -= 1
            self.played.started.append(run)
            self.played.starts[run.tenant] += 1
            heapq.heappush(self._coming, (now + run.ms, next(self._numbers), (run, claim), 0))


async def play(
    queue: VirtualQueue, loads: Sequence[Load], *, slots: int, lasts: Callable[[Played], bool] = lambda _: True
) -> Played:
    """Until nothing more can happen, or as long as it `lasts`, which is asked at each moment."""
    await queue.open(slots=slots)
    it = _Play(queue, loads, slots=slots)
    while it.goes_on and lasts(it.played):
        await it.step()
    it.played.is_stuck = bool(it.played.waiting) and not it.goes_on
    return it.played
