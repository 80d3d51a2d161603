"""Claim predictions for free slots, and start an executor for each claim.

Permits are taken before the queue is asked, so that no claim waits in this process, except a few predictions claimed
ahead where the queue is long and runs are short. Each queue that is read gets its share of the permits.
"""

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, TypeVar

from msgspec import Struct
from redis import exceptions

from director.broker.news import Wakeup, pause_s
from director.broker.replies import Claims
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable, UnknownQueue
from director.core.ids import QueueName
from director.core.schema import Claim
from director.execution.executor import Executor
from director.execution.tracker import CLAIMED_AHEAD
from director.runtime import crash
from director.servers.servers import Permit, Server, Servers

log = logging.getLogger(__name__)

MOST_SKIPS: Final = 8  # older predictions in a row that warm ones may overtake
# Bounded: while Redis carries out one claim, this process starts what the last one brought, and Redis serves others
MOST_AT_ONCE: Final = 16
AWAY_S: Final = 1.0
# Bounded: if this machine vanishes, the claims of a call that waited in Redis are lost to others for a lease
MOST_BEHIND_WAKEUP: Final = 4

Send = Callable[[bytes], Awaitable[Any]]
Waited = TypeVar("Waited")


class ClaimRequest(Struct, frozen=True, kw_only=True):
    count: int
    budget: float | None = None
    alone: bool = True
    warm: str = ""


class ClaimPlanner:
    """Decides how much the next claim may bring, and which affinity should come first. Pure.

    The costs of all runs never exceed `batch_cost` (0: no bound), except that of one larger run alone. `batch_size`
    bounds their number (0: the slots). A claim for a batching server fills one request. The affinity that a server ran
    last is asked for again, so that it need not load other weights, at most `MOST_SKIPS` times while older ones wait.
    """

    def __init__(self, *, batch_cost: float = 0, batch_size: int = 0) -> None:
        self._cost = batch_cost
        self._size = batch_size
        self._taken: list[tuple[Permit, float]] = []
        self._asked_beside = 0
        self._warm: dict[Server, tuple[str, str]] = {}
        self._skips = 0
        self._hits = self._keyed = 0
        self._fills = self._filled = 0.0

    def next(self, permits: Sequence[Permit]) -> ClaimRequest | None:
        """Return what to ask for while these permits are free, or None while the runs leave no room."""
        permits = _together(permits)
        self._taken = self._running() if permits[0].batch is None else []
        self._asked_beside = running = len(self._taken)
        count = min(len(permits), self._size - running) if self._size else len(permits)
        count = min(count, MOST_AT_ONCE) if permits[0].batch is None else count
        budget = self._cost - sum(cost for _, cost in self._taken) if self._cost else None
        if count < 1 or (budget is not None and budget <= 0 and running):
            return None
        warm = self._key(permits[0]) if self._skips < MOST_SKIPS else ""
        if warm:
            count = min(count, MOST_SKIPS - self._skips, sum(self._key(permit) == warm for permit in permits))
        return ClaimRequest(count=count, budget=budget, alone=not running, warm=warm)

    def take(self, request: ClaimRequest, claims: Sequence[Claim], permits: Sequence[Permit]) -> list[Permit]:
        """Note the claims that a request brought. Returns the permit for each claim, out of the free ones."""
        taken = self._assign(claims, permits)
        self._taken += [(permit, claim.record.cost) for claim, permit in zip(claims, taken, strict=True)]
        for claim, permit in zip(claims, taken, strict=True):
            key = claim.record.affinity
            self._keyed += key != ""
            self._hits += key != "" and key == self._key(permit)
            self._skips = self._skips + 1 if key != "" and key == request.warm else 0
            self._warm[permit.server] = (permit.since, key)
        if self._cost and claims:
            self._fills += 1
            self._filled += min(1.0, sum(cost for _, cost in self._taken) / self._cost)
        return taken

    @property
    def is_bounded(self) -> bool:
        return bool(self._cost or self._size)

    @property
    def is_full(self) -> bool:
        costs = [cost for permit, cost in self._running() if permit.batch is None]
        return 0 < self._size <= len(costs) or 0 < self._cost <= sum(costs)

    @property
    def has_more_room(self) -> bool:
        return len(self._running()) < self._asked_beside

    @property
    def figures(self) -> dict[str, str]:
        shares = {"warm_hit_ratio": (self._hits, self._keyed), "batch_fill": (self._filled, self._fills)}
        return {name: f"{part / whole:.3f}" for name, (part, whole) in shares.items() if whole}

    def _assign(self, claims: Sequence[Claim], permits: Sequence[Permit]) -> list[Permit]:
        free = _together(permits)
        assigned: dict[int, Permit] = {}
        for suits in (_runs_already, self._is_warm):
            for at, claim in enumerate(claims):
                if not (claim.record.remote or claim.record.affinity):  # any permit is as good
                    continue
                if at not in assigned and (permit := next((permit for permit in free if suits(claim, permit)), None)):
                    free.remove(permit)
                    assigned[at] = permit
        return [assigned[at] if at in assigned else free.pop(0) for at in range(len(claims))]

    def _is_warm(self, claim: Claim, permit: Permit) -> bool:
        return claim.record.affinity != "" and claim.record.affinity == self._key(permit)

    def _key(self, permit: Permit) -> str:
        since, key = self._warm.get(permit.server, ("", ""))
        return key if since == permit.since else ""

    def _running(self) -> list[tuple[Permit, float]]:
        return [(permit, cost) for permit, cost in self._taken if permit.taken]


def _runs_already(claim: Claim, permit: Permit) -> bool:
    return claim.record.remote != "" and permit.server.runner.knows(claim.record.remote)


def _together(permits: Sequence[Permit]) -> list[Permit]:
    batch = permits[0].batch if permits else None
    return [permit for permit in permits if (permit.place is None if batch is None else permit.batch is batch)]


class Next(Enum):
    CLAIM = auto()
    CLAIM_AHEAD = auto()  # every permit was used and more may wait: also ask for permits that wait for a slot
    CLAIM_BEHIND_WAKEUP = auto()
    AWAIT_ROOM = auto()
    AWAIT_WAKEUP = auto()
    REGISTER = auto()


class StoppableLoop:
    """Lets `stop` cancel the task of a loop only while it waits. A call in progress is not canceled."""

    def __init__(self) -> None:
        self.is_stopping = False
        self.over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_waiting = False

    def begin(self) -> None:
        self._task = asyncio.current_task()

    def stop(self) -> None:
        """Cancel the task if it waits. Else it ends itself: it asks `is_stopping` before each step."""
        self.is_stopping = True
        if self._is_waiting and self._task is not None:
            self._task.cancel()

    async def wait(self, wait: Awaitable[Waited]) -> Waited:
        self._is_waiting = True
        try:
            return await wait
        finally:
            self._is_waiting = False


@dataclass(eq=False, kw_only=True)
class Consumer:
    """Claims until `stop`, from `queues`: the first is its own, which `register` brings back after Redis has lost it.
    `gather_s`: how long the first prediction in an empty queue waits for others that can go in the same request.
    """

    queues: Sequence[QueueName]
    name: str
    scripts: Scripts
    servers: Servers
    executor: Executor
    wakeup: Wakeup
    clock: Clock
    lease_s: float
    register: Callable[[], Awaitable[object]]
    planner: ClaimPlanner
    gather_s: float = 0

    def __post_init__(self) -> None:
        self._turns = deque(self.queues)
        self._unknown: set[QueueName] = set()
        self._runs: set[asyncio.Task[None]] = set()
        self._loop = StoppableLoop()

    async def run(self) -> None:
        self._loop.begin()
        step = Next.CLAIM
        try:
            while not self._loop.is_stopping:
                try:
                    match step:
                        case Next.CLAIM | Next.CLAIM_AHEAD:
                            step = await self.run_once(ahead=step is Next.CLAIM_AHEAD)
                        case Next.CLAIM_BEHIND_WAKEUP:
                            step = await self._claim_behind_wakeup()
                        case Next.AWAIT_ROOM:
                            step = await self._loop.wait(self._await_room())
                        case Next.AWAIT_WAKEUP:
                            step = await self._loop.wait(self._await_wakeup())
                        case Next.REGISTER:
                            step = await self._register_again()
                except UnknownQueue:
                    step = Next.REGISTER
                except Exception:  # a fault in one claim must not end every run of this director
                    log.exception("claiming broke", extra={"queue": self.queues[0]})
                    await self._loop.wait(self.clock.sleep(AWAY_S))
                    step = Next.CLAIM
        except asyncio.CancelledError:
            if not self._loop.is_stopping:  # canceled by the owner of the task, not by stop
                raise
        finally:
            self._loop.over.set()
        await self.wakeup.close()

    def stop(self) -> None:
        """Claim nothing more. A claim call in progress is not cut: what it brings still runs."""
        self._loop.stop()

    async def run_once(self, *, ahead: bool = False) -> Next:
        """Wait for a permit, claim from each queue in turn, and start what came. Returns the next step.
        Raises UnknownQueue. `ahead`: where runs are short, claim also for permits that wait for a slot.
        """
        # claims ahead would upset the turns of several queues
        ahead = ahead and not self.planner.is_bounded and len(self._turns) == 1
        most = MOST_AT_ONCE * len(self._turns)  # more, without batches, would be made and released for nothing
        permits = await self._loop.wait(self.servers.permits.wait(most, ahead=ahead))
        has_slots = any(permit.has_slot for permit in permits)
        started, why = 0, list[str]()
        try:
            self._turns.rotate(-1)
            for asked, queue in enumerate(self._turns):
                share = -(-len(permits) // (len(self._turns) - asked))
                fills_batch = permits[0].batch is not None
                claims = await self._fill(queue, permits, len(permits) if fills_batch else share)
                started += len(claims)
                why.append(claims.why)
                if not permits or self._loop.is_stopping or (started and fills_batch):
                    break
            # a later prediction sends a wakeup, so a queue that is empty need not be asked again
            is_empty = why.count("empty") == len(self._turns) and bool(permits) and has_slots
            if not permits:
                return Next.CLAIM_AHEAD
            if is_empty and self._may_claim_behind_wakeup():
                return Next.CLAIM_BEHIND_WAKEUP
            # While every slot is taken, a new prediction is for a director with a free slot; a full batch asks nothing
            if not has_slots or (started and (not is_empty or self.planner.is_full)):
                return Next.CLAIM
            return Next.AWAIT_ROOM if "budget" in why else Next.AWAIT_WAKEUP
        finally:
            self.servers.permits.release(*permits)

    def _may_claim_behind_wakeup(self) -> bool:
        # a director may die before it receives this claim, which must then not cost an attempt: see `may_wait`
        servers = self.servers
        if not self.wakeup.carries or not servers.permits.may_wait or servers.may_rest:
            return False
        return not self.planner.is_bounded and not servers.permits.take_batches()

    async def _fill(self, queue: QueueName, permits: list[Permit], share: int) -> Claims:
        request = self.planner.next(permits[:share])
        claims = await self._ask(queue, request) if request else Claims(why="budget")
        if request:
            self._begin(request, claims, permits, share)
        return claims

    def _begin(self, request: ClaimRequest, claims: Sequence[Claim], permits: list[Permit], share: int) -> None:
        if claims:
            crash.at("after_claim")
        for claim, permit in zip(claims, self.planner.take(request, claims, permits[:share]), strict=True):
            permits.remove(permit)
            run = asyncio.get_running_loop().create_task(self.executor.execute(claim, permit))
            self._runs.add(run)
            run.add_done_callback(self._runs.discard)

    async def _claim_behind_wakeup(self) -> Next:
        """Send a claim for a few that Redis carries out when the wakeup comes. No permit is held meanwhile: a claim
        that finds none free is released, without counting as an attempt.
        """
        free = self.servers.permits.take(MOST_BEHIND_WAKEUP)
        request = self.planner.next(free) if free else None
        self.servers.permits.release(*free)
        if request is None:
            return Next.CLAIM
        nonce, queue = secrets.token_urlsafe(12), self.queues[0]
        try:
            claims = await self._loop.wait(self._ask_once(queue, request, nonce, send=self.wakeup.carry))
        except exceptions.RedisError as exc:  # if Redis carried it out, it answers the same again
            log.info("a claim behind the wakeup was lost, asking again", extra={"error": type(exc).__name__})
            claims = await self._claim(queue, request, nonce)
            if not claims:  # a wait that fails at once must not be repeated at once
                await self._loop.wait(self.clock.sleep(AWAY_S))
        except asyncio.CancelledError:
            if self._loop.is_stopping:
                await self._run_what_came(nonce)
            raise
        await self._begin_or_release(request, claims)
        await asyncio.sleep(0)  # the runs begin first: to ask again takes 0.1 ms
        is_empty = claims.why == "empty" and self._may_claim_behind_wakeup()
        return Next.CLAIM_BEHIND_WAKEUP if is_empty else Next.CLAIM

    async def _run_what_came(self, nonce: str) -> None:
        nothing = ClaimRequest(count=0)
        try:
            claims = await self._ask_once(self.queues[0], nothing, nonce)
        except (BackendUnavailable, UnknownQueue):  # claims that it made are recovered after their lease
            return
        await self._begin_or_release(nothing, claims)

    async def _begin_or_release(self, request: ClaimRequest, claims: Claims) -> None:
        permits = self.servers.permits.take(len(claims))
        run, left = claims[: len(permits)], claims[len(permits) :]
        self._begin(request, run, permits, len(permits))
        for claim in left:
            with contextlib.suppress(BackendUnavailable):  # then it is recovered after its lease
                await self.scripts.release(claim.id, token=claim.token, spent=False, code=CLAIMED_AHEAD)
            log.warning("claim given back", extra={"prediction": claim.id, "spent": False, "code": CLAIMED_AHEAD})

    async def over(self) -> None:
        """After `stop`: wait until no claim call is in progress and the last claims have started."""
        await self._loop.over.wait()
        await asyncio.sleep(0)

    async def wait_until_finished(self) -> None:
        """After `stop`: wait until every run is settled and its webhooks are delivered or left to the courier."""
        await self.over()
        while self._runs:
            await asyncio.wait(self._runs)

    async def abandon(self) -> None:
        """Cancel every run that is left and leave its claim to the lease. No task outlives this call."""
        runs = set(self._runs)
        for run in runs:
            run.cancel()
        if runs:
            await asyncio.wait(runs)

    async def _await_room(self) -> Next:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s()):
                while not self.planner.has_more_room:
                    await self.servers.permits.wait_for_change()
        return Next.CLAIM

    async def _await_wakeup(self) -> Next:
        if await self.wakeup.wait() and self.servers.permits.take_batches():
            await self.clock.sleep(self.gather_s)
        return Next.CLAIM

    async def _register_again(self) -> Next:
        log.error("redis does not know the queue, registering it again", extra={"queue": self.queues[0]})
        try:
            await self.register()
        except BackendUnavailable as exc:
            log.warning("registering a model failed", extra={"error": str(exc)})
            await self._loop.wait(self.clock.sleep(AWAY_S))
        return Next.AWAIT_WAKEUP

    async def _ask(self, queue: QueueName, request: ClaimRequest) -> Claims:
        """Claim, or return no claims if another version's queue is unknown: only its own directors register it."""
        try:
            claims = await self._claim(queue, request)
        except UnknownQueue:
            if queue == self.queues[0]:
                raise
            if queue not in self._unknown:
                log.error("a queue that is to be read too is not known", extra={"queue": queue})
            self._unknown.add(queue)
            return Claims()
        self._unknown.discard(queue)
        return claims

    async def _claim(self, queue: QueueName, request: ClaimRequest, nonce: str = "") -> Claims:
        """Ask until an answer comes, with the same nonce: a claim whose answer was lost is answered again."""
        nonce = nonce or secrets.token_urlsafe(12)
        while True:
            try:
                return await self._ask_once(queue, request, nonce)
            except BackendUnavailable as exc:
                log.warning("claiming failed", extra={"queue": queue, "error": str(exc)})
                if self._loop.is_stopping:  # claims that it made are recovered after their lease
                    return Claims()
                await self._loop.wait(self.clock.sleep(AWAY_S))

    async def _ask_once(
        self, queue: QueueName, request: ClaimRequest, nonce: str, *, send: Send | None = None
    ) -> Claims:
        return await self.scripts.claim(
            queue,
            consumer=self.name,
            nonce=nonce,
            count=request.count,
            lease_s=self.lease_s,
            budget=request.budget,
            alone=request.alone,
            warm=request.warm,
            send=send,
        )
