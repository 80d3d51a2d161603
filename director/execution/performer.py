"""Do what the tracker of one claim wants done, in order, and tell it what came of that.

Progress is written and told at once. What takes time, storing files and asking whether an output may be released,
is done one after the other beside the run.
Decides nothing, and never ends a prediction: the end is kept in `end` for whoever settles it.
"""

import asyncio
import contextlib
import logging
from collections import deque
from functools import cached_property
from typing import Final, assert_never

from director.broker.scripts import Hold, Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.schema import NewEvent
from director.core.states import WebhookEvent
from director.execution.ends import Finish, GiveBack, Judged, Stop
from director.execution.holdings import Held
from director.execution.moderation import Moderator
from director.execution.storing import Kept, Storing
from director.execution.tracker import Ask, Halt, Happening, Remember, Tell, Write
from director.execution.uploads import Upload, Uploaded
from director.files.store import FileName
from director.runtime import crash
from director.webhooks.outbox import Outbox

# Write what a run shows into Redis, gathered: events of about 10 ms leave as one `advance`. Output that comes after a
# quieter while leaves at once, since somebody may be reading.
#
# One per claim. Knows how the claim stands by the answers. Never ends a prediction: what is left unwritten goes into
# `finish`, so that a short run needs no write of its own.

log = logging.getLogger(__name__)

GATHER_S: Final = 0.01
AWAY_S: Final = 1.0


class Progress:
    """The events of one claim on their way to Redis. `seq` is the last one known to be there."""

    def __init__(self, held: Held, scripts: Scripts, clock: Clock, outbox: Outbox | None) -> None:
        self.seq = held.claim.record.seq
        self._held = held
        self._scripts = scripts
        self._clock = clock
        self._outbox = outbox
        self._unwritten: list[NewEvent] = []
        self._remote = ""
        self._untold: list[WebhookEvent] = []
        self._wrote_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    # of those that write on the way: what they need is made when one does

    @cached_property
    def _news(self) -> asyncio.Event:
        return asyncio.Event()

    @cached_property
    def _is_awaited(self) -> asyncio.Event:
        return asyncio.Event()

    @cached_property
    def _writing(self) -> asyncio.Lock:
        return asyncio.Lock()

    def add(self, events: tuple[NewEvent, ...]) -> None:
        """The run has begun, and showed these."""
        self._unwritten += events
        self._wake(is_awaited=any(kind == "output" for kind, _ in events))

    def remember(self, remote: str) -> None:
        """The server runs it under this name: to be written at once, since until then it would be started again."""
        self._remote = remote
        self._wake(is_awaited=True)

    def tell(self, event: WebhookEvent) -> None:
        """Tell the caller, once GET shows it too."""
        if event not in self._untold:
            self._untold.append(event)

    async def close(self) -> tuple[NewEvent, ...]:
        """Stop writing; what is left belongs into the last write. Waits for a write that is under way."""
        self._unset()
        if self._task is not None:
            async with self._writing:
                self._task.cancel()
        if self._remote and not self._held.is_lost:  # no last write has it
            with contextlib.suppress(BackendUnavailable):
                await self.run_once()
        if not self._held.is_lost:
            self._tell(self._untold, started_ms=None)
        return tuple(self._unwritten)

    def drop(self) -> None:
        """Write nothing more, not even what is under way."""
        self._unset()
        if self._task is not None:
            self._task.cancel()

    async def run_once(self) -> Hold:
        """Write all that is unwritten. A write whose answer was lost is known by its numbers, and not written twice."""
        events, told = tuple(self._unwritten), tuple(self._untold)
        remote, claim = self._remote, self._held.claim
        crash.at("before_advance")
        advanced = await self._scripts.advance(
            claim.id,
            token=claim.token,
            seq=self.seq,
            ran_ms=self._held.tracker.ran_ms(self._clock.monotonic()),
            events=events,
            remote=remote,
        )
        crash.at("after_advance")
        self._remote = "" if self._remote == remote else self._remote
        del self._unwritten[: len(events)], self._untold[: len(told)]
        self.seq = advanced.seq
        heed(self._held, advanced.hold)
        if advanced.hold != "lost":
            self._tell(told, started_ms=advanced.started_ms)
        return advanced.hold

    def _wake(self, *, is_awaited: bool) -> None:
        if self._task is not None:
            self._news.set()
            if is_awaited:
                self._is_awaited.set()
        elif is_awaited:
            self._begin()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._begin)

    def _begin(self) -> None:
        self._unset()
        if not self._held.tracker.ended:  # else the last write has it: a run that is short needs no other, and no task
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
        """False where there is no use in another one."""
        self._news.clear()
        self._is_awaited.clear()
        self._wrote_at = asyncio.get_running_loop().time()
        try:
            async with self._writing:
                await self.run_once()
        except BackendUnavailable:
            self._news.set()
            await self._clock.sleep(AWAY_S)
        except Exception:  # not the run's fault: the last write has all of it
            log.exception("writing progress failed", extra={"prediction": self._held.claim.id})
            return False
        return True

    async def _gather(self) -> None:
        """Let more come: GATHER_S, but with output only as much as is left of it since the last write."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                await self._is_awaited.wait()
                await asyncio.sleep(self._wrote_at + GATHER_S - asyncio.get_running_loop().time())

    def _tell(self, events: tuple[WebhookEvent, ...] | list[WebhookEvent], *, started_ms: int | None) -> None:
        if self._outbox is not None:
            for event in events:
                self._outbox.tell(event, started_ms=started_ms)


def heed(held: Held, hold: Hold) -> None:
    """Do what an answer about a claim asks for."""
    match hold:
        case "lost":
            held.lose()
        case "user":
            held.stop(Stop.USER)
        case "deadline":
            held.stop(Stop.DEADLINE)
        case "held":
            pass


MIB: Final = 1024 * 1024
# Of files that wait to be stored: beyond it the run is not followed until some are
MOST_AHEAD: Final = 64 * MIB


class Performer:
    """One claim's. Its tracker is not to want what there is nobody for.

    `run_limit_s`: how long after its beginning somebody who may release the output is asked for.
    """

    def __init__(
        self,
        held: Held,
        progress: Progress,
        clock: Clock,
        *,
        storing: Storing | None,
        moderator: Moderator | None,
        run_limit_s: float,
    ) -> None:
        self.end: Finish | GiveBack | None = None
        self._held = held
        self._progress = progress
        self._clock = clock
        self._storing = storing
        self._moderator = moderator
        self._run_limit_s = run_limit_s
        self._known: dict[FileName, Kept] = {}
        self._waiting: deque[Upload | Ask] = deque()
        self._ahead = 0
        self._has_files = False
        self._task: asyncio.Task[None] | None = None

    @cached_property
    def _caught_up(self) -> asyncio.Event:
        return asyncio.Event()

    def feed(self, event: Happening) -> None:
        """This happened just now."""
        for effect in self._held.tracker.apply(event, self._clock.monotonic()):
            match effect:
                case Write():
                    self._progress.add(effect.events)
                case Remember():
                    self._progress.remember(effect.remote)
                case Tell():
                    self._progress.tell(effect.event)
                case Halt():
                    self._held.stop(effect.why)
                case Upload():
                    self._ahead += effect.size
                    self._add(effect)
                case Ask():
                    self._add(effect)
                case Finish() | GiveBack():
                    self.end = effect
                case _:
                    assert_never(effect)

    async def room(self) -> None:
        """Wait until the store has caught up enough for the run to be followed further."""
        while self._ahead > MOST_AHEAD and self._task is not None and not self._task.done():
            self._caught_up.clear()
            await self._caught_up.wait()

    async def done(self) -> None:
        """Wait until nothing is left to do beside the run. It is let go of when the claim is lost."""
        if self._task is not None:
            await self._held.settle(self._task)

    def drop(self) -> None:
        """Do nothing more, not even what is under way."""
        if self._task is not None:
            self._task.cancel()

    @property
    def has_files(self) -> bool:
        """Did it store any, or begin to?"""
        return self._has_files

    def _add(self, effect: Upload | Ask) -> None:
        self._waiting.append(effect)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._waiting:
                effect = self._waiting.popleft()
                self.feed(await (self._upload(effect) if isinstance(effect, Upload) else self._ask(effect)))
        except Exception:  # then there is no end, and the claim is left to its lease
            log.exception("work beside a run failed", extra={"prediction": self._held.claim.id})
        finally:
            self._caught_up.set()

    async def _upload(self, upload: Upload) -> Uploaded:
        assert self._storing is not None  # noqa: S101 - for the type checker: see the class
        self._has_files = True
        urls = await self._storing.store(self._held.claim.record, upload.files, self._known)
        self._ahead -= upload.size
        self._caught_up.set()
        return Uploaded(upload.number, urls)

    async def _ask(self, ask: Ask) -> Judged:
        assert self._moderator is not None  # noqa: S101 - for the type checker: see the class
        began_at = self._held.tracker.began_at
        assert began_at is not None  # noqa: S101 - for the type checker: it has an output
        return await self._moderator.judge(
            self._held.claim.record,
            ask.output,
            until_s=began_at + self._run_limit_s,
            cut=self._held.wanted_over,
        )
