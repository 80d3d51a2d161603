"""What this director holds: one `Held` per claim, from the claim to its last write.

Knows who holds what and how to reach a run from outside it: to stop it, or to abandon it when the claim is lost.
"""

import asyncio
import logging
import math
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Final

from director.core.clock import Clock
from director.core.ids import PredictionId, QueueName
from director.core.schema import Claim, Token
from director.execution.ends import Stop
from director.execution.tracker import Tracker
from director.servers.runners.runner import Runner

log = logging.getLogger(__name__)

# A cancel in a run's first milliseconds can get lost on the server, so the second follows soon.
CANCEL_AGAIN_S: Final = (0.1, 0.4, 1.0)
# … and after this long the server is given up. A drain has less patience: it must still write that the claim is
# given back, or a run that heeds nothing costs an attempt at each deploy.
CANCEL_WAIT_S: Final = 30.0
DRAIN_WAIT_S: Final = 5.0
# A server that does not answer has heard it by then, or hangs: the next one may find it awake
CANCEL_ANSWER_S: Final = 1.0


class Held:
    """One claim and the run that it became. `ahead_s`: what it waited here before it was started; `took`: its own
    figures, once it is over.
    """

    def __init__(self, claim: Claim, tracker: Tracker, runner: Runner, clock: Clock) -> None:
        self.claim = claim
        self.tracker = tracker
        self.runner = runner
        self.is_lost = False
        self.stuck = False
        self.unbegun = False
        self.left = False
        self.ahead_s = 0.0
        self.took: dict[str, float] = {}
        self._clock = clock
        self._claimed_at = clock.monotonic()
        self._reading: asyncio.Task[object] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._limit: asyncio.TimerHandle | None = None
        self._stop_until = math.inf
        self._over: asyncio.Event | None = None
        self._older: Held | None = None
        self._let_go = False
        self._is_cut = False

    @cached_property
    def wanted_over(self) -> asyncio.Event:
        """Set once somebody wants it to end."""
        return asyncio.Event()

    @property
    def claimed_ms(self) -> int:
        """How long ago it was claimed."""
        return round((self._clock.monotonic() - self._claimed_at) * 1000)

    async def read(self, reading: Coroutine[None, None, None]) -> None:
        """Follow the run until it has ended or was abandoned; then nobody asks the server about it any more.

        In the task of who calls, since one for each run costs more than all that is done here: what lets go of the run
        cancels that task, and here it goes on.
        """
        self.unbegun = self.tracker.stopped is not None and self.tracker.began_at is None
        if self.is_lost or self.unbegun:
            reading.close()
            self._let_go_of()
            return
        self._reading = task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker: a coroutine runs in one
        asked = task.cancelling()
        try:
            await reading
        except asyncio.CancelledError:
            pass  # whose it was is counted
        finally:
            if self._is_cut:
                task.uncancel()
            self._let_go_of()
            if task.cancelling() > asked:  # it is the whole claim that is to be let go of, whatever failed meanwhile
                raise asyncio.CancelledError

    async def settle(self, working: asyncio.Task[None]) -> None:
        """After `read`: wait for what is still done beside the run. It is let go of when the claim is lost."""
        self._reading, self._is_cut = working, False
        if self.is_lost:
            self._cut()
        await asyncio.wait({working})

    def replace(self, older: "Held") -> None:
        """An older claim of the same prediction was held here: it is lost, whatever the heartbeat knows of it yet."""
        older.lose()
        self._older = older

    async def turn(self) -> None:
        """Wait until no older claim's run is followed: letting go of it cancels by the prediction's id, and so ours."""
        if self._older is not None:
            await self._older._gone()
            self._older = None

    def limit(self, seconds: float) -> None:
        """The run has begun: stop it after this long."""
        self._limit = asyncio.get_running_loop().call_later(seconds, self.stop, Stop.RUN_LIMIT)

    def stop(self, why: Stop) -> None:
        """Ask the server to stop the run, again and again until it has ended or is given up."""
        if self.tracker.stop(why):
            self.wanted_over.set()
            log.info("stopping a run", extra={"prediction": self.claim.id, "why": why})
        wait_s = DRAIN_WAIT_S if why is Stop.DRAIN else CANCEL_WAIT_S
        self._stop_until = min(self._stop_until, self._clock.monotonic() + wait_s)
        is_running = not (self.is_lost or self._let_go or self.tracker.is_over)
        if self.tracker.stopped is not None and self._stopping is None and is_running:
            self._stopping = asyncio.get_running_loop().create_task(self._stop())

    def lose(self) -> None:
        """The claim is another's now: let go of the run and write nothing."""
        if not self.is_lost:
            log.warning("claim lost", extra={"prediction": self.claim.id, "attempt": self.claim.record.attempt})
        self.is_lost = True
        self._cut()

    async def _stop(self) -> None:
        if self.tracker.began_at is None and self._reading is not None:
            # it may wait for a slot for long, and the server cannot stop what it does not know: let go of it
            self.unbegun = True
            self._cut()
            return
        pauses = iter(CANCEL_AGAIN_S)
        pause = 0.0
        while self._clock.monotonic() < self._stop_until:
            is_drain = self.tracker.stopped is Stop.DRAIN
            if is_drain and self.tracker.is_accepted:
                # the server needs nobody for it, and another director follows it further
                self.left = True
                self._cut()
                return
            if not (is_drain and self.runner.capabilities.resumes):  # such a one is accepted soon, and then left
                await self._ask_to_stop()
            pause = next(pauses, pause)
            await self._clock.sleep(pause)
        log.error("a run does not stop on its server", extra={"prediction": self.claim.id, "server": self.runner.url})
        self.stuck = True
        self._cut()

    async def _ask_to_stop(self) -> None:
        try:
            async with asyncio.timeout(CANCEL_ANSWER_S):
                await self.runner.cancel(self.claim.id)
        except TimeoutError:
            pass
        except Exception:
            log.exception("asking a server to stop a run failed", extra={"prediction": self.claim.id})

    def _let_go_of(self) -> None:
        """Nobody asks from here on: this prediction's next run may be on the same server by then."""
        self._let_go = True
        self._reading = None
        for under_way in (self._limit, self._stopping):
            if under_way is not None:
                under_way.cancel()
        if self._over is not None:
            self._over.set()

    async def _gone(self) -> None:
        if not self._let_go:
            self._over = self._over or asyncio.Event()
            await self._over.wait()

    def _cut(self) -> None:
        """Let go of the run, once: asked again, it would not even see to it that the server stops."""
        if self._reading is not None and not self._is_cut:
            self._is_cut = True
            self._reading.cancel()


class Holdings:
    """Every claim of this director that is not settled yet."""

    def __init__(self) -> None:
        self._held: dict[PredictionId, Held] = {}
        self._stopped: Stop | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._held)

    def holding(self, held: Held) -> AbstractContextManager[None]:
        """Heartbeats and cancels find the claim while this lasts."""
        return _Holding(self, held)

    def add(self, held: Held) -> None:
        """From here on they find it."""
        if (older := self._held.get(held.claim.id)) is not None:
            held.replace(older)
        self._held[held.claim.id] = held
        self._empty.clear()
        if self._stopped is not None:
            held.stop(self._stopped)

    def remove(self, held: Held) -> None:
        """From here on they do not."""
        if self._held.get(held.claim.id) is held:  # a newer claim of the same prediction may have come back here
            del self._held[held.claim.id]
        if not self._held:
            self._empty.set()

    async def empty(self) -> None:
        """Wait until nothing is held."""
        await self._empty.wait()

    def claims(self, queue: QueueName) -> list[tuple[PredictionId, Token]]:
        """What to extend of a queue."""
        held_of_it = [held for held in self._held.values() if held.claim.record.queue == queue]
        return [(held.claim.id, held.claim.token) for held in held_of_it if not held.is_lost]

    def find(self, prediction_id: PredictionId, token: Token) -> Held | None:
        """The claim with this token, if it is still held."""
        held = self._held.get(prediction_id)
        return held if held is not None and held.claim.token == token else None

    def stop_all(self, why: Stop) -> None:
        """Ask every run to stop, and each one that a claim under way still brings."""
        self._stopped = why
        for held in list(self._held.values()):
            held.stop(why)


class _Holding(AbstractContextManager[None]):
    def __init__(self, holdings: Holdings, held: Held) -> None:
        self._holdings = holdings
        self._held = held

    def __enter__(self) -> None:
        self._holdings.add(self._held)

    def __exit__(self, *_: object) -> None:
        self._holdings.remove(self._held)
