"""Permits → claims → executors: ask the queue for as much as can run now, or within a moment.

Holds the permits before it asks, so nothing is claimed that has to wait here; but where more waits in the queue than
there are slots, and runs are short, a few are claimed ahead, for the slots that are free next. How much of the permits
one claim may use is decided in `portion.py`. Queues that are read beside its own, as that of an older version, have
their share of the permits. Never looks into a prediction.
"""

import asyncio
import contextlib
import logging
import random
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct
from redis import exceptions

from director.broker.scripts import Claims, Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable, UnknownQueue
from director.core.ids import QueueName
from director.core.schema import Claim
from director.execution.bell import LEAST_S, LONGEST_S, Bell
from director.execution.ends import CLAIMED_AHEAD
from director.execution.executor import Executor
from director.runtime import crash
from director.servers.server import Permit, Server
from director.servers.servers import Servers

# How much the next claim may bring, and what should come first: slots, the cost of a batch, and what is warm.
#
# Pure. Costs in flight together never pass the batch's cost, but for a single one that is larger alone. Where a server
# takes several in one request, one claim fills one of them, and the cost is that of one request. What a server ran
# last is asked for again, so that it need not load other weights, but never so often that others are kept waiting.

MOST_SKIPS: Final = 8  # in a row, of older ones for warm ones
# While Redis carries one claim out, what the last one brought is begun here, and others are heard there
MOST_AT_ONCE: Final = 16


class Portion(Struct, frozen=True, kw_only=True):
    """What one claim asks for, as `Scripts.claim` takes it."""

    count: int
    budget: float | None = None
    alone: bool = True
    warm: str = ""


class Portions:
    """What runs on the permits, and what follows from it for the next claim.

    `batch_cost`: most that may run at once by cost, 0 for no bound; `batch_size`: by number, 0 for as many as there are
    slots.
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

    def next(self, permits: Sequence[Permit]) -> Portion | None:
        """What to ask for with these permits free; None while what runs leaves no room.

        What is warm is that of the first one's server, and only for servers that are warm for the same.
        """
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
        return Portion(count=count, budget=budget, alone=not running, warm=warm)

    def take(self, portion: Portion, claims: Sequence[Claim], permits: Sequence[Permit]) -> list[Permit]:
        """What was asked for has come: the permit that each claim runs on, of those that were free."""
        taken = self._assigned(claims, permits)
        self._taken += [(permit, claim.record.cost) for claim, permit in zip(claims, taken, strict=True)]
        for claim, permit in zip(claims, taken, strict=True):
            key = claim.record.affinity
            self._keyed += key != ""
            self._hits += key != "" and key == self._key(permit)
            self._skips = self._skips + 1 if key != "" and key == portion.warm else 0
            self._warm[permit.server] = (permit.since, key)
        if self._cost and claims:
            self._fills += 1
            self._filled += min(1.0, sum(cost for _, cost in self._taken) / self._cost)
        return taken

    @property
    def is_bounded(self) -> bool:
        """By more than slots?"""
        return bool(self._cost or self._size)

    @property
    def is_full(self) -> bool:
        """Does what runs leave no room for another, whatever it costs?"""
        costs = [cost for seat, cost in self._running() if seat.batch is None]
        return 0 < self._size <= len(costs) or 0 < self._cost <= sum(costs)

    @property
    def has_more_room(self) -> bool:
        """Did anything end that ran when `next` was asked last?"""
        return len(self._running()) < self._asked_beside

    @property
    def figures(self) -> dict[str, str]:
        """For people: how often the key was that of the server's run before; how full a batch was after a claim."""
        shares = {"warm_hit_ratio": (self._hits, self._keyed), "batch_fill": (self._filled, self._fills)}
        return {name: f"{part / whole:.3f}" for name, (part, whole) in shares.items() if whole}

    def _assigned(self, claims: Sequence[Claim], permits: Sequence[Permit]) -> list[Permit]:
        """On the server that runs it already, or on one that is warm for it, if there is one. The others in order."""
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
        """What its server ran last, since it was started."""
        since, key = self._warm.get(permit.server, ("", ""))
        return key if since == permit.since else ""

    def _running(self) -> list[tuple[Permit, float]]:
        return [(permit, cost) for permit, cost in self._taken if permit.taken]


def _runs_already(claim: Claim, permit: Permit) -> bool:
    return claim.record.remote != "" and permit.server.runner.knows(claim.record.remote)


def _together(permits: Sequence[Permit]) -> list[Permit]:
    """Those that one claim is for: all of them, or the places of one batch."""
    batch = permits[0].batch if permits else None
    return [permit for permit in permits if (permit.place is None if batch is None else permit.batch is batch)]


log = logging.getLogger(__name__)

AWAY_S: Final = 1.0
# Of a claim that waits at the server: a machine that vanishes takes so many along for a lease, which others could have
MOST_AT_BELL: Final = 4

Send = Callable[[bytes], Awaitable[Any]]
Waited = TypeVar("Waited")


class Consumer:
    """Claims until it is told to stop, from its own queue and from others of its model.

    `register` makes its own queue known again where Redis forgot it.

    `gather_s`: what comes to a queue that was empty waits so long for company, to go in one request.
    """

    def __init__(
        self,
        *,
        queue: QueueName,
        also: Sequence[QueueName] = (),
        name: str,
        scripts: Scripts,
        servers: Servers,
        executor: Executor,
        bell: Bell,
        clock: Clock,
        lease_s: float,
        register: Callable[[], Awaitable[object]],
        portions: Portions,
        gather_s: float = 0,
    ) -> None:
        self._queue = queue
        self._turns = deque((queue, *also))
        self._strange: set[QueueName] = set()
        self._name = name
        self._scripts = scripts
        self._servers = servers
        self._executor = executor
        self._bell = bell
        self._clock = clock
        self._lease_s = lease_s
        self._register = register
        self._portions = portions
        self._gather_s = gather_s
        self._is_full = self._has_more = self._is_ahead = self._is_empty = False
        self._runs: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._at_rest = False
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Claim and run, until `stop`."""
        self._task = asyncio.current_task()
        try:
            while not self._stopping:
                try:
                    await self._claim_or_rest()
                except Exception:  # a fault in one claim must not end every run of this director
                    log.exception("claiming broke", extra={"queue": self._queue})
                    await self._resting(self._clock.sleep(AWAY_S))
        except asyncio.CancelledError:
            if not self._stopping:  # canceled by whoever owns the task, not by stop
                raise
        finally:
            self._over.set()

    def stop(self) -> None:
        """Claim nothing more. A claim that is under way is not cut: what it brings still runs."""
        self._stopping = True
        if self._at_rest and self._task is not None:
            self._task.cancel()

    async def run_once(self) -> int:
        """Wait for a permit, then claim as many predictions as there is room for and start them; how many.

        Each queue is asked in turn for its share of the permits, and the next time another one goes first.
        """
        self._is_full = self._is_empty = False
        # queues that take turns would not by what is claimed ahead
        ahead = self._has_more and not self._portions.is_bounded and len(self._turns) == 1
        permits = await self._resting(self._servers.permits.wait(ahead=ahead))
        self._is_ahead = not any(permit.has_slot for permit in permits)
        self._has_more = False
        started = emptied = 0
        try:
            self._turns.rotate(-1)
            for asked, queue in enumerate(self._turns):
                share = -(-len(permits) // (len(self._turns) - asked))
                fills_batch = permits[0].batch is not None
                claims = await self._fill(queue, permits, len(permits) if fills_batch else share)
                started += len(claims)
                emptied += claims.why == "empty"
                if not permits or self._stopping or (started and fills_batch):
                    break
            self._has_more = not permits
            # what comes after such an answer rings, so there is nothing to ask again for
            self._is_empty = emptied == len(self._turns) and bool(permits) and not self._is_ahead
            return started
        finally:
            self._servers.permits.release(*permits)

    async def _fill(self, queue: QueueName, permits: list[Permit], share: int) -> Claims:
        """Claim for so many of the permits; what came, whose permits are not among them any more."""
        portion = self._portions.next(permits[:share])
        claims = await self._ask(queue, portion) if portion else Claims(why="budget")
        self._is_full = self._is_full or claims.why == "budget"
        if portion:
            self._begin(portion, claims, permits, share)
        return claims

    def _begin(self, portion: Portion, claims: Sequence[Claim], permits: list[Permit], share: int) -> None:
        if claims:
            crash.at("after_claim")
        for claim, permit in zip(claims, self._portions.take(portion, claims, permits[:share]), strict=True):
            permits.remove(permit)
            self._start(claim, permit)

    async def _claim_or_rest(self) -> None:
        # a claim that dies with its director, which may be before it was heard of here, must not cost an attempt
        carries = self._bell.carries and self._servers.permits.may_wait and not self._portions.is_bounded
        carries = carries and not self._servers.permits.take_batches()
        if self._is_empty and carries:
            await self._claim_at_bell()
            return
        started = await self._claimed()
        # what comes while every slot is taken is for a director that has a free one: its bell is not heard.
        # A full batch has no use for it either: the next look at the room says so, and asks Redis nothing.
        goes_on = started and (not self._is_empty or self._portions.is_full)
        if self._is_ahead or goes_on or (self._is_empty and carries):
            return
        await self._resting(self._room() if self._is_full else self._rung())

    async def _claim_at_bell(self) -> None:
        """Wait for what comes, with a claim of a few that the server carries out when the bell has rung.

        No permit is held meanwhile: what has none when it comes is given back, uncounted.
        """
        self._is_empty = False
        free = self._servers.permits.take(MOST_AT_BELL)
        portion = self._portions.next(free) if free else None
        self._servers.permits.release(*free)
        if portion is None:
            return
        nonce = secrets.token_hex(16)
        try:
            claims = await self._resting(self._ask_once(self._queue, portion, nonce, send=self._bell.carry))
        except UnknownQueue:  # the next claim makes it known again
            return
        except exceptions.RedisError as exc:  # it may have been carried out, and is then answered again
            log.info("a claim at the bell was lost, asking again", extra={"error": type(exc).__name__})
            claims = await self._claim(self._queue, portion, nonce)
            if not claims:  # a bell that cannot be waited at must not be asked as fast as it says so
                await self._resting(self._clock.sleep(AWAY_S))
        except asyncio.CancelledError:
            if self._stopping:
                await self._run_what_came(nonce)
            raise
        await self._begin_or_give_back(portion, claims)
        self._is_empty = claims.why == "empty"

    async def _run_what_came(self, nonce: str) -> None:
        """Stopped at the bell, which may have rung by then: run what that brought, and ask for nothing more."""
        nothing = Portion(count=0)
        try:
            claims = await self._ask_once(self._queue, nothing, nonce)
        except (BackendUnavailable, UnknownQueue):  # what it may have claimed comes back by its lease
            return
        await self._begin_or_give_back(nothing, claims)

    async def _begin_or_give_back(self, portion: Portion, claims: Claims) -> None:
        permits = self._servers.permits.take(len(claims))
        run, left = claims[: len(permits)], claims[len(permits) :]
        self._begin(portion, run, permits, len(permits))
        for claim in left:
            with contextlib.suppress(BackendUnavailable):  # then its lease gives it back
                await self._scripts.release(claim.id, token=claim.token, spent=False, code=CLAIMED_AHEAD)
            log.warning("claim given back", extra={"prediction": claim.id, "spent": False, "code": CLAIMED_AHEAD})

    async def over(self) -> None:
        """After `stop`: wait until no claim is under way, and what was claimed last has started."""
        await self._over.wait()
        await asyncio.sleep(0)

    async def finished(self) -> None:
        """After `stop`: wait until every run is settled, webhooks and all."""
        await self.over()
        while self._runs:
            await asyncio.wait(self._runs)

    async def abandon(self) -> None:
        """Let go of every run that is left: its claim stays with its lease, and nothing of it outlives the director."""
        runs = set(self._runs)
        for run in runs:
            run.cancel()
        if runs:
            await asyncio.wait(runs)

    async def _room(self) -> None:
        """Wait until something that ran beside the last claim has ended, or as long as at the bell.

        Not at the bell itself: what would ring for us is for another director, who may have room for it.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(random.uniform(LEAST_S, LONGEST_S)):  # noqa: S311 - spreads load, guards nothing
                while not self._portions.has_more_room:
                    await self._servers.permits.changed()

    async def _rung(self) -> None:
        if await self._bell.wait() and self._servers.permits.take_batches():
            await self._clock.sleep(self._gather_s)

    async def _resting(self, wait: Awaitable[Waited]) -> Waited:
        self._at_rest = True
        try:
            return await wait
        finally:
            self._at_rest = False

    async def _claimed(self) -> int:
        """`run_once`, also where Redis was emptied under us and has to be told of the queue again."""
        try:
            return await self.run_once()
        except UnknownQueue:
            log.error("redis does not know the queue, registering it again", extra={"queue": self._queue})
        try:
            await self._register()
        except BackendUnavailable as exc:
            log.warning("registering a model failed", extra={"error": str(exc)})
            await self._resting(self._clock.sleep(AWAY_S))
        return 0

    async def _ask(self, queue: QueueName, portion: Portion) -> Claims:
        """What there is. Another one's queue may come and go, and nobody but its own directors makes it."""
        try:
            claims = await self._claim(queue, portion)
        except UnknownQueue:
            if queue == self._queue:
                raise
            if queue not in self._strange:
                log.error("a queue that is to be read too is not known", extra={"queue": queue})
            self._strange.add(queue)
            return Claims()
        self._strange.discard(queue)
        return claims

    async def _claim(self, queue: QueueName, portion: Portion, nonce: str = "") -> Claims:
        """The nonce stays until an answer came, and the permits too: a claim whose reply was lost is answered again."""
        nonce = nonce or secrets.token_hex(16)
        while True:
            try:
                return await self._ask_once(queue, portion, nonce)
            except BackendUnavailable as exc:
                log.warning("claiming failed", extra={"queue": queue, "error": str(exc)})
                if self._stopping:  # what it may have claimed comes back by its lease
                    return Claims()
                await self._resting(self._clock.sleep(AWAY_S))

    async def _ask_once(self, queue: QueueName, portion: Portion, nonce: str, *, send: Send | None = None) -> Claims:
        return await self._scripts.claim(
            queue,
            consumer=self._name,
            nonce=nonce,
            count=portion.count,
            lease_s=self._lease_s,
            budget=portion.budget,
            alone=portion.alone,
            warm=portion.warm,
            send=send,
        )

    def _start(self, claim: Claim, permit: Permit) -> None:
        run = asyncio.get_running_loop().create_task(self._executor.execute(claim, permit))
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)
