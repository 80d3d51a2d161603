"""Play hours of a queue in seconds: the real scripts on a real server, with a virtual time for each call."""

import asyncio
import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import count
from typing import Any, Final

from msgspec import Struct, field

from director.core.ids import PredictionId
from director.core.policy import Policy
from director.core.schema import Claim
from director.lab.simulate.play import AT_ONCE, START_MS, VirtualQueue

POLICY: Final = Policy()
ROUND_TRIP_MS: Final = 1  # of a closed load: its next prediction comes after the slot has claimed again


class Tenant(Struct, frozen=True):
    """`name` is the account's name, which decides the shard."""

    name: str
    weight: float = 1.0


class Load(Struct, frozen=True, kw_only=True):
    """The predictions of one tenant: `jobs` at `since_s`. If `is_closed`, each that ends is followed by another."""

    tenant: Tenant
    jobs: int = 1
    seconds: Callable[[], float] = lambda: 1.0
    lane: str = "normal"
    since_s: float = 0.0
    is_closed: bool = False


class Run(Struct, kw_only=True):
    """One prediction and its times, in milliseconds since the start of the play."""

    load: Load
    arrived: int
    ms: int
    started: int | None = None

    @property
    def tenant(self) -> str:
        return self.load.tenant.name


class Played(Struct, kw_only=True):
    """`is_stuck`: predictions wait and nothing more can happen."""

    now: int = 0
    is_stuck: bool = False
    started: list[Run] = field(default_factory=list)
    starts: Counter[str] = field(default_factory=Counter)  # by tenant
    waiting: dict[PredictionId, Run] = field(default_factory=dict)

    def waits_s(self, *, lane: str = "", tenants: Iterable[str] = ()) -> list[float]:
        """Return the wait of each until its start, or until now; infinity if the play is stuck."""
        wanted, end = set(tenants), math.inf if self.is_stuck else self.now
        return [
            ((end if run.started is None else run.started) - run.arrived) / 1000
            for run in (*self.started, *self.waiting.values())
            if run.load.lane == (lane or run.load.lane) and (not wanted or run.tenant in wanted)
        ]

    def shares(self, tenants: Sequence[Tenant]) -> list[float]:
        """Return each tenant's part of the slot seconds that these tenants had until now."""
        served: defaultdict[str, int] = defaultdict(int)
        for run in self.started:
            served[run.tenant] += min(run.ms, self.now - (run.started or 0))
        total = sum(served[tenant.name] for tenant in tenants)
        return [served[tenant.name] / total if total else 0.0 for tenant in tenants]


Happens = tuple[int, int, Load | tuple[Run, Claim], int]


class _Play:
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
        new = [(self._queue.new_id(), run) for run in arrived]
        self.played.waiting.update(new)
        # calls made in one turn of the loop leave in one write, in this order: ends, arrivals, then the claim
        calls: list[Coroutine[Any, Any, object]] = [self._queue.finish(claim, ran_ms=run.ms) for run, claim in ended]
        calls += [
            self._queue.enqueue(which, run.tenant, lane=run.load.lane, weight=run.load.tenant.weight)
            for which, run in new
        ]
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
    """Play until nothing more can happen, or while `lasts` returns True; it is called at each moment."""
    await queue.register()
    await queue.report_slots(slots)
    it = _Play(queue, loads, slots=slots)
    while it.goes_on and lasts(it.played):
        await it.step()
    it.played.is_stuck = bool(it.played.waiting) and not it.goes_on
    return it.played
