"""Keep the claims that this director executes, from the claim to its last write, and the progress that each shows.

Heartbeats, cancels and drains reach a run through its `ActiveClaim`: to stop it, or to abandon it if the claim is lost.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Final

from director.broker.replies import Hold
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId, QueueName
from director.core.schema import Claim, NewEvent, Token
from director.core.states import WebhookEvent
from director.core.usage import NOTHING as NOTHING_USED
from director.core.view import OUTPUTS
from director.execution.tracker import Stop, Tracker
from director.runtime import crash
from director.servers.runners.runner import Runner
from director.store.directors import RunFound
from director.webhooks.delivery import Outbox

log = logging.getLogger(__name__)

# A cancel in a run's first milliseconds can get lost on the server, so the second follows soon.
CANCEL_AGAIN_S: Final = (0.1, 0.4, 1.0)
# After this long the server is given up. A drain waits less: it must still write that the claim is released, or a run
# that ignores cancels costs an attempt at each deploy.
CANCEL_WAIT_S: Final = 30.0
DRAIN_WAIT_S: Final = 5.0
# A server that has not answered by then has received the cancel, or hangs: the next cancel may find it awake
CANCEL_ANSWER_S: Final = 1.0
GATHER_S: Final = 0.01
GATHER_MOST_S: Final = 0.1
HAS_TIME: Final = 0.5  # the share of its time up to which a process is not short of it
LOOK_S: Final = 0.25  # between two looks at that
AWAY_S: Final = 1.0


class Cut(Enum):
    """Why a run is not followed to its end although its claim is still ours."""

    NEVER_BEGAN = "never_began"  # it was stopped before its start
    STUCK = "stuck"  # the server ignored every cancel
    LEFT = "left"  # another director follows it on its server


@dataclass(eq=False)
class ActiveClaim:
    """One claim and its run. `is_lost`: the claim is another director's."""

    claim: Claim
    tracker: Tracker
    runner: Runner
    clock: Clock
    is_lost: bool = False
    cut: Cut | None = None
    limit_s: float = 0.0
    _following: asyncio.Task[object] | None = None
    _stopping: asyncio.Task[None] | None = None
    _limit: asyncio.TimerHandle | None = None
    _stop_until: float = math.inf
    _detached: asyncio.Event | None = None
    _is_detached: bool = False
    _is_canceled: bool = False

    @cached_property
    def stop_asked(self) -> asyncio.Event:
        return asyncio.Event()

    def remaining_s(self, limit_s: float) -> float:
        began_at = self.tracker.began_at
        return limit_s if began_at is None else max(0.0, self.limit_s - (self.clock.monotonic() - began_at))

    async def follow(self, following: Coroutine[None, None, None]) -> None:
        """Follow the run until it has ended or was abandoned. From then on the server is asked nothing about it.
        Runs in the caller's task, since a task for each run would cost more than everything else here. Abandoning the
        run cancels that task, and this method takes the cancellation back.
        """
        if self.tracker.stopped is not None and self.tracker.began_at is None:
            self.cut = Cut.NEVER_BEGAN
        if self.is_lost or self.cut is not None:
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
            if self._is_canceled:
                task.uncancel()
            self._detach()
            if task.cancelling() > asked:  # the whole claim is to be abandoned, whatever failed meanwhile
                raise asyncio.CancelledError

    async def wait_for(self, working: asyncio.Task[None]) -> None:
        self._following, self._is_canceled = working, False
        if self.is_lost:
            self._cancel()
        await asyncio.wait({working})

    async def wait_detached(self) -> None:
        """Wait until nothing more is asked about this run."""
        if not self._is_detached:
            self._detached = self._detached or asyncio.Event()
            await self._detached.wait()

    def limit(self, seconds: float) -> None:
        self.limit_s = seconds
        self._limit = asyncio.get_running_loop().call_later(seconds, self.stop, Stop.RUN_LIMIT)

    def stop(self, why: Stop) -> None:
        """Ask the server to stop the run, repeatedly, until the run has ended or the server is given up."""
        if self.tracker.stop(why):
            self.stop_asked.set()
            log.info("stopping a run", extra={"prediction": self.claim.id, "why": why})
        wait_s = DRAIN_WAIT_S if why is Stop.DRAIN else CANCEL_WAIT_S
        self._stop_until = min(self._stop_until, self.clock.monotonic() + wait_s)
        is_running = not (self.is_lost or self._is_detached or self.tracker.is_over)
        if self.tracker.stopped is not None and self._stopping is None and is_running:
            self._stopping = asyncio.get_running_loop().create_task(self._stop())

    def lose(self) -> None:
        if not self.is_lost:
            log.warning("claim lost", extra={"prediction": self.claim.id, "attempt": self.claim.record.attempt})
        self.is_lost = True
        self._cancel()

    def apply_hold(self, hold: Hold) -> None:
        if hold == "lost":
            self.lose()
        elif hold != "held":
            self.stop(Stop(hold))

    async def _stop(self) -> None:
        if self.tracker.began_at is None and self._following is not None:
            # it may wait long for a slot, and the server cannot stop a run that it does not know
            self._cut(Cut.NEVER_BEGAN)
            return
        pauses = iter(CANCEL_AGAIN_S)
        pause = 0.0
        while self.clock.monotonic() < self._stop_until and not self.tracker.is_over:
            is_drain = self.tracker.stopped is Stop.DRAIN
            if is_drain and self.tracker.is_accepted:
                # the server runs it without us, and another director follows it further
                self._cut(Cut.LEFT)
                return
            if not (is_drain and self.runner.capabilities.resumes):  # a run that resumes is accepted soon, then left
                await self._ask_to_stop()
            pause = next(pauses, pause)
            await self.clock.sleep(pause)
        if self.tracker.is_over:  # nothing is left to stop
            return
        log.error("a run does not stop on its server", extra={"prediction": self.claim.id, "server": self.runner.url})
        self._cut(Cut.STUCK)

    async def _ask_to_stop(self) -> None:
        try:
            async with asyncio.timeout(CANCEL_ANSWER_S):
                await self.runner.cancel(self.claim.id)
        except TimeoutError:
            pass
        except Exception:  # a runner may raise anything: the run ends without the server's help
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

    def _cut(self, why: Cut) -> None:
        self.cut = why
        self._cancel()

    def _cancel(self) -> None:
        """Cancel the following task, once: a second cancellation would interrupt the runner's own cancel request."""
        if self._following is not None and not self._is_canceled:
            self._is_canceled = True
            self._following.cancel()


class ActiveClaims:
    def __init__(self) -> None:
        self._claims: dict[PredictionId, ActiveClaim] = {}
        self._stopped: Stop | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._claims)

    def add(self, active: ActiveClaim) -> ActiveClaim | None:
        """Return an older claim of the same prediction: it is lost, whether or not a heartbeat has said so."""
        prediction_id = active.claim.record.id
        if (older := self._claims.get(prediction_id)) is not None:
            older.lose()
        self._claims[prediction_id] = active
        self._empty.clear()
        if self._stopped is not None:
            active.stop(self._stopped)
        return older

    def remove(self, active: ActiveClaim) -> None:
        prediction_id = active.claim.record.id
        if self._claims.get(prediction_id) is active:
            del self._claims[prediction_id]
        if not self._claims:
            self._empty.set()

    async def empty(self) -> None:
        await self._empty.wait()

    def of_queue(self, queue: QueueName) -> list[tuple[PredictionId, Token]]:
        found = [active for active in self._claims.values() if active.claim.record.queue == queue]
        return [(active.claim.id, active.claim.token) for active in found if not active.is_lost]

    def oldest(self, queue: QueueName, *, now_ms: int) -> RunFound | None:
        """Return the run of this queue that began first, of those that have not ended."""
        running = [
            (began_at, active)
            for active in self._claims.values()
            if (began_at := active.tracker.began_at) is not None
            if active.claim.record.queue == queue and not active.tracker.is_over
        ]
        if not running:
            return None
        began_at, active = min(running, key=itemgetter(0))
        since_ms = now_ms - round((active.clock.monotonic() - began_at) * 1000)
        return RunFound(id=active.claim.id, since_ms=since_ms, limit_s=active.limit_s, cost=active.claim.record.cost)

    def by_account(self) -> Mapping[str, int]:
        return Counter(active.claim.record.account for active in self._claims.values())

    def longest_left_s(self, limit_s: float) -> float:
        """Return how long these runs may still take. `limit_s`: the limit of a run that has not begun."""
        return max((active.remaining_s(limit_s) for active in self._claims.values()), default=0.0)

    def find(self, prediction_id: PredictionId, token: Token) -> ActiveClaim | None:
        active = self._claims.get(prediction_id)
        return active if active is not None and active.claim.token == token else None

    def stop_all(self, why: Stop) -> None:
        """Stop the runs of all claims, and of each claim that is added before `resume`."""
        self._stopped = why
        for active in list(self._claims.values()):
            active.stop(why)

    def resume(self) -> None:
        self._stopped = None


def count_wanted_s() -> float:
    """Return for how long this thread has run, or was ready to run and had no processor, as far as the system says."""
    try:
        ran_ns, waited_ns, _ = Path("/proc/thread-self/schedstat").read_text().split()
    except (OSError, ValueError):  # only Linux has it, and in this form
        return time.thread_time()
    return (int(ran_ns) + int(waited_ns)) / 1e9


class Pace:
    """Says how long the events of a run are gathered into one write: `GATHER_S` while the process has time, and up to
    `GATHER_MOST_S` while it has none. `now`: the time. `wanted`: how long this thread has run, or wanted to.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, wanted: Callable[[], float] = count_wanted_s) -> None:
        self._now, self._wanted = now, wanted
        self._since, self._wanted_before = now(), wanted()
        self._busy = 0.0

    def gather_s(self) -> float:
        passed_s = self._now() - self._since
        if passed_s >= LOOK_S:
            wanted = self._wanted()
            self._busy = (wanted - self._wanted_before) / passed_s
            self._since, self._wanted_before = self._since + passed_s, wanted
        lack = min(1.0, max(0.0, (self._busy - HAS_TIME) / (1 - HAS_TIME)))
        return GATHER_S + lack * max(0.0, GATHER_MOST_S - GATHER_S)


@dataclass(eq=False)
class Progress:
    """Writes what a run shows to Redis: events of about 10 ms leave as one `advance`, of more under load (`Pace`).

    Output after a longer pause leaves at once, since a reader may be waiting. What is left unwritten goes into
    `finish`, so that a short run needs no write of its own. `seq`: the number of the last event known to be stored.
    """

    active: ActiveClaim
    scripts: Scripts
    outbox: Outbox | None
    pace: Pace = field(default_factory=Pace)
    _remote: str = ""
    _wrote_at: float = float("-inf")
    _timer: asyncio.TimerHandle | None = None
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.seq = self.active.claim.record.seq
        self._unwritten: list[NewEvent] = []
        self._untold: list[WebhookEvent] = []
        self._written_tokens = ""

    def add(self, events: tuple[NewEvent, ...]) -> None:
        self._unwritten += events
        self._wake(is_urgent=any(kind in OUTPUTS for kind, _ in events))

    def remember(self, remote: str) -> None:
        """Write the server's name for the run at once: until then another director would start the run again."""
        self._remote = remote
        self._wake(is_urgent=True)

    def tell(self, event: WebhookEvent) -> None:
        """Notify the caller once GET shows the event too."""
        if event not in self._untold:
            self._untold.append(event)

    async def close(self) -> tuple[NewEvent, ...]:
        """Stop writing and return the events that belong into the last write. Waits for a write in progress."""
        self._unset()
        if self._task is not None:
            async with self._writing:
                self._task.cancel()
        with contextlib.suppress(BackendUnavailable):
            await self.write_remote()
        if not self.active.is_lost:
            self._tell(self._untold, started_ms=None)
        return tuple(self._unwritten)

    async def write_remote(self) -> None:
        """Write the server's name for the run if Redis does not have it yet: no last write carries it."""
        if self._remote and not self.active.is_lost:
            await self.run_once()

    def drop(self) -> None:
        self._unset()
        if self._task is not None:
            self._task.cancel()

    async def run_once(self) -> Hold:
        """Write all that is unwritten. A write whose answer was lost is not repeated: its numbers tell."""
        events, told = tuple(self._unwritten), tuple(self._untold)
        remote, claim, used = self._remote, self.active.claim, self.active.tracker.count_usage(0)
        tokens = used.packed_tokens
        crash.at("before_advance")
        advanced = await self.scripts.advance(
            claim.id,
            token=claim.token,
            seq=self.seq,
            ran_ms=self.active.tracker.ran_ms(self.active.clock.monotonic()),
            events=events,
            remote=remote,
            used=NOTHING_USED if tokens == self._written_tokens else used,
        )
        crash.at("after_advance")
        self._written_tokens = tokens
        self._remote = "" if self._remote == remote else self._remote
        del self._unwritten[: len(events)], self._untold[: len(told)]
        self.seq = advanced.seq
        self.active.apply_hold(advanced.hold)
        if advanced.hold != "lost":
            self._tell(told, started_ms=advanced.started_ms)
        return advanced.hold

    def _wake(self, *, is_urgent: bool) -> None:
        if self._task is not None:
            self._news.set()
            if is_urgent:
                self._is_urgent.set()
        elif is_urgent:
            self._begin()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._begin)

    def _begin(self) -> None:
        self._unset()
        if not self.active.tracker.ended:  # else the last write carries all: a short run needs no other, and no task
            self._news, self._is_urgent, self._writing = asyncio.Event(), asyncio.Event(), asyncio.Lock()
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _unset(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _run(self) -> None:
        while await self._write():
            await self._news.wait()
            await self._gather()

    async def _write(self) -> bool:
        self._news.clear()
        self._is_urgent.clear()
        self._wrote_at = asyncio.get_running_loop().time()
        try:
            async with self._writing:
                await self.run_once()
        except BackendUnavailable:
            self._news.set()
            await self.active.clock.sleep(AWAY_S)
        except Exception:  # not the run's fault: the last write carries all of it
            log.exception("writing progress failed", extra={"prediction": self.active.claim.id})
            return False
        return True

    async def _gather(self) -> None:
        if not self._is_urgent.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATHER_S):
                    await self._is_urgent.wait()
        left_s = self._wrote_at + self.pace.gather_s() - asyncio.get_running_loop().time()
        if left_s > 0:
            await asyncio.sleep(left_s)

    def _tell(self, events: Sequence[WebhookEvent], *, started_ms: int | None) -> None:
        if self.outbox is not None:
            for event in events:
                self.outbox.tell(event, started_ms=started_ms)
