"""Simulate the claims of one lane on a virtual clock: the fair-share scheme beside simpler ones on the same load.

The simulation uses no Redis and no waiting; only the load is random. It mirrors the rules of the scripts
(lua/lib/share.lua), not their keys. The tests decide what is fair enough.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Protocol

from director.core.policy import shard

__all__ = (
    "SHARD",
    "STREAMS",
    "Fifo",
    "Job",
    "Load",
    "Run",
    "Scheme",
    "Shards",
    "Tenant",
    "Turns",
    "Window",
    "play",
)

STREAMS: Final = 16
SHARD: Final = 2
RECENT: Final = 50  # runs that the estimate of the service time remembers, as in finish.lua
UNKNOWN_S: Final = 1.0  # the charge before any run has ended


@dataclass(frozen=True, eq=False)
class Tenant:
    """A tenant. `name` is the account's name and decides the shard: another name is another salt."""

    name: str
    weight: float = 1.0
    most_running: int | None = None


@dataclass(eq=False)
class Job:
    """One prediction and its times."""

    tenant: Tenant
    seconds: float
    arrived: float
    started: float = 0.0
    refilled: bool = False
    charged: float | None = None

    @property
    def waited(self) -> float:
        return self.started - self.arrived

    @property
    def ended(self) -> float:
        return self.started + self.seconds


class Scheme(Protocol):
    """A rule for the next prediction. It learns how long a run took only at its end."""

    def enqueue(self, job: Job) -> None: ...

    def claim(self) -> Job | None: ...

    def finish(self, job: Job) -> None: ...


class Fifo:
    """One queue in order of arrival."""

    def __init__(self) -> None:
        self._line: deque[Job] = deque()

    def enqueue(self, job: Job) -> None:
        self._line.append(job)

    def claim(self) -> Job | None:
        return self._line.popleft() if self._line else None

    def finish(self, job: Job) -> None: ...


class Shards:
    """Shuffle sharding alone: the shortest stream of the tenant's shard; claims rotate over streams with work."""

    def __init__(self) -> None:
        self._streams: list[deque[Job]] = [deque() for _ in range(STREAMS)]
        self._shards: dict[Tenant, list[deque[Job]]] = {}
        self._next = 0

    def enqueue(self, job: Job) -> None:
        if job.tenant not in self._shards:
            numbers = shard(job.tenant.name, streams=STREAMS, size=SHARD)
            self._shards[job.tenant] = [self._streams[number] for number in numbers]
        min(self._shards[job.tenant], key=len).append(job)

    def claim(self) -> Job | None:
        for step in range(STREAMS):
            number = (self._next + step) % STREAMS
            stream = self._streams[number]
            if stream:
                self._next = (number + 1) % STREAMS
                return stream.popleft()
        return None

    def finish(self, job: Job) -> None: ...


class SortedSet:
    """A sorted set as in Redis: members by score, equal ones by name."""

    def __init__(self) -> None:
        self._scores: dict[Tenant, float] = {}
        # also former versions of changed entries: they are skipped later
        self._heap: list[tuple[float, str, Tenant]] = []

    def __bool__(self) -> bool:
        return bool(self._scores)

    def __contains__(self, tenant: Tenant) -> bool:
        return tenant in self._scores

    def __setitem__(self, tenant: Tenant, score: float) -> None:
        self._scores[tenant] = score
        heapq.heappush(self._heap, (score, tenant.name, tenant))

    def __getitem__(self, tenant: Tenant) -> float:
        return self._scores[tenant]

    def pop(self, tenant: Tenant) -> float:
        return self._scores.pop(tenant)

    def least(self) -> Tenant | None:
        while self._heap:
            score, _, tenant = self._heap[0]
            if self._scores.get(tenant) == score:
                return tenant
            heapq.heappop(self._heap)
        return None


class FairShare:
    """Streams as the ready tier, backlogs behind them, and virtual time that picks the next tenant."""

    def __init__(self) -> None:
        self._streams = Shards()
        self._backlogs: defaultdict[Tenant, deque[Job]] = defaultdict(deque)
        self._backlogged = 0
        self._ready: Counter[Tenant] = Counter()
        self._standing = 0  # in the streams
        self._window = 0  # of these, out of a backlog
        self._running: Counter[Tenant] = Counter()
        self._vtime = SortedSet()  # tenants that have a backlog and may enter
        self._debt: dict[Tenant, float] = {}  # of the others; the scripts trim it to what is ahead of the clock
        self._clock = 0.0
        self._runs, self._mean_s = 0, UNKNOWN_S

    # ── what differs between the two below ────────────────────────────────────────────────────────────────────────

    def _goes_direct(self, tenant: Tenant) -> bool:
        raise NotImplementedError

    def _room(self) -> int:
        raise NotImplementedError

    # ── in and out ────────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, job: Job) -> None:
        tenant = job.tenant
        if self._goes_direct(tenant) and self._may_enter(tenant):
            if self._vtime:
                job.charged = self._mean_s
                self._owe(tenant, job.charged)
            self._put(job)
            return
        self._backlogs[tenant].append(job)
        self._backlogged += 1
        if self._may_enter(tenant):
            self._join(tenant)

    def claim(self) -> Job | None:
        self._refill(self._room())
        job = self._streams.claim()
        if job:
            self._ready[job.tenant] -= 1
            self._standing -= 1
            self._window -= job.refilled
            self._running[job.tenant] += 1
        return job

    def finish(self, job: Job) -> None:
        tenant = job.tenant
        self._running[tenant] -= 1
        if job.charged is not None:
            self._owe(tenant, job.seconds - job.charged)
        self._runs = min(RECENT, self._runs + 1)
        self._mean_s += (job.seconds - self._mean_s) / self._runs
        if self._backlogs[tenant] and self._may_enter(tenant):
            self._join(tenant)

    def _put(self, job: Job) -> None:
        self._ready[job.tenant] += 1
        self._standing += 1
        self._window += job.refilled
        self._streams.enqueue(job)

    def _may_enter(self, tenant: Tenant) -> bool:
        return tenant.most_running is None or self._ready[tenant] + self._running[tenant] < tenant.most_running

    def _refill(self, room: int) -> None:
        while room > 0 and (tenant := self._vtime.least()):
            job = self._backlogs[tenant].popleft()
            # before the charge: a new tenant starts level with the one whose turn it is
            self._clock = self._vtime[tenant]
            job.refilled, job.charged = True, self._mean_s
            self._vtime[tenant] += job.charged / tenant.weight
            self._put(job)
            self._backlogged -= 1
            room -= 1
            if not self._backlogs[tenant] or not self._may_enter(tenant):
                self._part(tenant)

    # ── virtual time ──────────────────────────────────────────────────────────────────────────────────────────────

    def _join(self, tenant: Tenant) -> None:
        if tenant not in self._vtime:
            self._vtime[tenant] = max(self._debt.pop(tenant, 0.0), self._clock)

    def _part(self, tenant: Tenant) -> None:
        self._debt[tenant] = self._vtime.pop(tenant)
        if not self._vtime:  # no tenant waits for a turn: what was served so far is forgotten
            self._debt.clear()
            self._clock = 0.0

    def _owe(self, tenant: Tenant, seconds: float) -> None:
        if not self._vtime:
            return
        if tenant in self._vtime:
            self._vtime[tenant] += seconds / tenant.weight
        else:
            self._debt[tenant] = max(self._debt.get(tenant, 0.0), self._clock) + seconds / tenant.weight


class Turns(FairShare):
    """The scheme of the scripts: a claim that finds no entry admits one. So a turn is given only to a free slot."""

    def _goes_direct(self, tenant: Tenant) -> bool:
        return not self._backlogged and not self._standing

    def _room(self) -> int:
        return 0 if self._standing else 1


class Window(FairShare):
    """A deeper ready tier: `size` entries of backlogs are admitted before the claims, two of a tenant directly."""

    DIRECT: Final = 2

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self._size = size

    def _goes_direct(self, tenant: Tenant) -> bool:
        return not self._backlogs[tenant] and self._ready[tenant] < self.DIRECT

    def _room(self) -> int:
        return self._size - self._window


@dataclass(frozen=True)
class Load:
    """The load of one tenant: `jobs` at `since`, and if `closed` another one for each that ended."""

    tenant: Tenant
    jobs: int = 1
    seconds: Callable[[], float] = lambda: 1.0
    since: float = 0.0
    closed: bool = False


@dataclass
class Run:
    """The jobs in order of their start, and the time that slots were idle while jobs waited."""

    started: list[Job] = field(default_factory=list)
    idle_s: float = 0.0

    def of(self, *tenants: Tenant) -> list[Job]:
        wanted = set(tenants)
        return [job for job in self.started if job.tenant in wanted]

    def worst_wait_s(self, *tenants: Tenant) -> float:
        return max(job.waited for job in self.of(*tenants))

    def shares(self, tenants: Sequence[Tenant], *, since: float, until: float) -> list[float]:
        """Return each tenant's part of the seconds that these tenants were served in this time."""
        served = dict.fromkeys(tenants, 0.0)
        for job in self.of(*tenants):
            served[job.tenant] += max(0.0, min(until, job.ended) - max(since, job.started))
        return [seconds / sum(served.values()) for seconds in served.values()]


ROUND_TRIP_S: Final = 0.001  # who sends the next when one ended comes after the slot has claimed again


def play(scheme: Scheme, *loads: Load, slots: int = 1, until: float = float("inf")) -> Run:
    """Play until no job is left or until that time. A free slot claims at once; ends come before claims."""
    run, numbers, sent_by = Run(), count(), dict[Job, Load]()
    events: list[tuple[float, int, Load | Job, int]] = [(load.since, next(numbers), load, load.jobs) for load in loads]
    heapq.heapify(events)
    free, waiting, last = slots, 0, 0.0
    while events and events[0][0] <= until:
        now = events[0][0]
        run.idle_s += (now - last) * min(free, waiting)
        last = now
        while events and events[0][0] == now:
            _, _, what, jobs = heapq.heappop(events)
            if isinstance(what, Job):
                scheme.finish(what)
                free += 1
                if sent_by[what].closed:
                    heapq.heappush(events, (now + ROUND_TRIP_S, next(numbers), sent_by[what], 1))
                continue
            waiting += jobs
            for _ in range(jobs):
                job = Job(what.tenant, what.seconds(), arrived=now)
                sent_by[job] = what
                scheme.enqueue(job)
        while free and (claimed := scheme.claim()):
            free -= 1
            waiting -= 1
            claimed.started = now
            run.started.append(claimed)
            heapq.heappush(events, (claimed.ended, next(numbers), claimed, 0))
    return run
