"""Keep the claims that this director executes: one `ActiveClaim` each, from the claim to its last write.

Heartbeats, cancels and drains reach a run through it: to stop the run, or to abandon it when the claim is lost.
"""

import asyncio
import logging
import math
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Final

from director.broker.replies import Hold
from director.core.clock import Clock
from director.core.ids import PredictionId, QueueName
from director.core.schema import Claim, Token
from director.execution.ends import Stop
from director.execution.tracker import Tracker
from director.servers.runners.runner import Runner

log = logging.getLogger(__name__)

# A cancel in a run's first milliseconds can get lost on the server, so the second follows soon.
CANCEL_AGAIN_S: Final = (0.1, 0.4, 1.0)
# After this long the server is given up. A drain waits less: it must still write that the claim is released, or a run
# that ignores cancels costs an attempt at each deploy.
CANCEL_WAIT_S: Final = 30.0
DRAIN_WAIT_S: Final = 5.0
# A server that has not answered by then has received the cancel, or hangs: the next cancel may find it awake
CANCEL_ANSWER_S: Final = 1.0


class ActiveClaim:
    """One claim and its run. The flags say why following ended early: `is_lost`, the claim is another director's;
    `is_stuck`, the server ignored every cancel; `never_began`, it was stopped before its start; `is_left`, another
    director follows it on its server.
    """

    def __init__(self, claim: Claim, tracker: Tracker, runner: Runner, clock: Clock) -> None:
        self.claim = claim
        self.tracker = tracker
        self.runner = runner
        self.is_lost = False
        self.is_stuck = False
        self.never_began = False
        self.is_left = False
        self._clock = clock
        self._claimed_at = clock.monotonic()
        self._following: asyncio.Task[object] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._limit: asyncio.TimerHandle | None = None
        self._stop_until = math.inf
        self._detached: asyncio.Event | None = None
        self._older: ActiveClaim | None = None
        self._is_detached = False
        self._is_cut = False

    @cached_property
    def stop_asked(self) -> asyncio.Event:
        """Set once the run was asked to stop."""
        return asyncio.Event()

    @property
    def claimed_ms(self) -> int:
        """Milliseconds since the claim, by this process's clock."""
        return round((self._clock.monotonic() - self._claimed_at) * 1000)

    async def follow(self, following: Coroutine[None, None, None]) -> None:
        """Follow the run until it has ended or was abandoned. From then on the server is asked nothing about it.

        Runs in the caller's task, since a task for each run would cost more than everything else here. Abandoning the
        run cancels that task, and this method takes the cancellation back.
        """
        self.never_began = self.tracker.stopped is not None and self.tracker.began_at is None
        if self.is_lost or self.never_began:
            following.close()
            self._detach()
            return
        self._following = task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker: a coroutine runs in one
        asked = task.cancelling()
        try:
            await following
        except asyncio.CancelledError:
            pass  # the counts below tell our own cancellation from the caller's
        finally:
            if self._is_cut:
                task.uncancel()
            self._detach()
            if task.cancelling() > asked:  # the whole claim is to be abandoned, whatever failed meanwhile
                raise asyncio.CancelledError

    async def wait_for(self, working: asyncio.Task[None]) -> None:
        """After `follow`: wait for work beside the run. Losing the claim cancels the work."""
        self._following, self._is_cut = working, False
        if self.is_lost:
            self._cut()
        await asyncio.wait({working})

    def replace(self, older: "ActiveClaim") -> None:
        """Declare an older claim of the same prediction lost, whether or not a heartbeat has said so."""
        older.lose()
        self._older = older

    async def wait_for_older(self) -> None:
        """Wait until an older claim's run is abandoned: it is canceled by the prediction's id, which is also ours."""
        if self._older is not None:
            await self._older._wait_detached()
            self._older = None

    def limit(self, seconds: float) -> None:
        """Stop the run `seconds` from now."""
        self._limit = asyncio.get_running_loop().call_later(seconds, self.stop, Stop.RUN_LIMIT)

    def stop(self, why: Stop) -> None:
        """Ask the server to stop the run, repeatedly, until the run has ended or the server is given up."""
        if self.tracker.stop(why):
            self.stop_asked.set()
            log.info("stopping a run", extra={"prediction": self.claim.id, "why": why})
        wait_s = DRAIN_WAIT_S if why is Stop.DRAIN else CANCEL_WAIT_S
        self._stop_until = min(self._stop_until, self._clock.monotonic() + wait_s)
        is_running = not (self.is_lost or self._is_detached or self.tracker.is_over)
        if self.tracker.stopped is not None and self._stopping is None and is_running:
            self._stopping = asyncio.get_running_loop().create_task(self._stop())

    def lose(self) -> None:
        """Abandon the run and write nothing: another director has the claim now."""
        if not self.is_lost:
            log.warning("claim lost", extra={"prediction": self.claim.id, "attempt": self.claim.record.attempt})
        self.is_lost = True
        self._cut()

    def apply_hold(self, hold: Hold) -> None:
        """Do what Redis answered about the claim."""
        match hold:
            case "lost":
                self.lose()
            case "user":
                self.stop(Stop.USER)
            case "deadline":
                self.stop(Stop.DEADLINE)
            case "held":
                pass

    async def _stop(self) -> None:
        if self.tracker.began_at is None and self._following is not None:
            # it may wait long for a slot, and the server cannot stop a run that it does not know
            self.never_began = True
            self._cut()
            return
        pauses = iter(CANCEL_AGAIN_S)
        pause = 0.0
        while self._clock.monotonic() < self._stop_until:
            is_drain = self.tracker.stopped is Stop.DRAIN
            if is_drain and self.tracker.is_accepted:
                # the server runs it without us, and another director follows it further
                self.is_left = True
                self._cut()
                return
            if not (is_drain and self.runner.capabilities.resumes):  # a run that resumes is accepted soon, then left
                await self._ask_to_stop()
            pause = next(pauses, pause)
            await self._clock.sleep(pause)
        log.error("a run does not stop on its server", extra={"prediction": self.claim.id, "server": self.runner.url})
        self.is_stuck = True
        self._cut()

    async def _ask_to_stop(self) -> None:
        try:
            async with asyncio.timeout(CANCEL_ANSWER_S):
                await self.runner.cancel(self.claim.id)
        except TimeoutError:
            pass
        except Exception:
            log.exception("asking a server to stop a run failed", extra={"prediction": self.claim.id})

    def _detach(self) -> None:
        """Ask the server nothing more: this prediction's next run may be on the same server by then."""
        self._is_detached = True
        self._following = None
        for under_way in (self._limit, self._stopping):
            if under_way is not None:
                under_way.cancel()
        if self._detached is not None:
            self._detached.set()

    async def _wait_detached(self) -> None:
        if not self._is_detached:
            self._detached = self._detached or asyncio.Event()
            await self._detached.wait()

    def _cut(self) -> None:
        """Cancel the following task, once: a second cancellation would interrupt the runner's own cancel request."""
        if self._following is not None and not self._is_cut:
            self._is_cut = True
            self._following.cancel()


class ActiveClaims:
    """Every claim of this director that is not settled yet."""

    def __init__(self) -> None:
        self._claims: dict[PredictionId, ActiveClaim] = {}
        self._stopped: Stop | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._claims)

    def added(self, active: ActiveClaim) -> AbstractContextManager[None]:
        """Let heartbeats, cancels and drains find the claim while the context lasts."""
        return _Added(self, active)

    def add(self, active: ActiveClaim) -> None:
        """Add a claim. An older claim of the same prediction counts as lost."""
        if (older := self._claims.get(active.claim.id)) is not None:
            active.replace(older)
        self._claims[active.claim.id] = active
        self._empty.clear()
        if self._stopped is not None:
            active.stop(self._stopped)

    def remove(self, active: ActiveClaim) -> None:
        """Remove a claim, unless a newer claim of the same prediction has replaced it."""
        if self._claims.get(active.claim.id) is active:
            del self._claims[active.claim.id]
        if not self._claims:
            self._empty.set()

    async def empty(self) -> None:
        """Wait until no claim is left."""
        await self._empty.wait()

    def of_queue(self, queue: QueueName) -> list[tuple[PredictionId, Token]]:
        """Return the claims of a queue whose leases are to be extended."""
        found = [active for active in self._claims.values() if active.claim.record.queue == queue]
        return [(active.claim.id, active.claim.token) for active in found if not active.is_lost]

    def find(self, prediction_id: PredictionId, token: Token) -> ActiveClaim | None:
        """Return the claim with this fencing token, or None if it is settled or replaced."""
        active = self._claims.get(prediction_id)
        return active if active is not None and active.claim.token == token else None

    def stop_all(self, why: Stop) -> None:
        """Ask every run to stop, and the run of every claim that is added later."""
        self._stopped = why
        for active in list(self._claims.values()):
            active.stop(why)


class _Added(AbstractContextManager[None]):
    def __init__(self, claims: ActiveClaims, active: ActiveClaim) -> None:
        self._claims = claims
        self._active = active

    def __enter__(self) -> None:
        self._claims.add(self._active)

    def __exit__(self, *_: object) -> None:
        self._claims.remove(self._active)
