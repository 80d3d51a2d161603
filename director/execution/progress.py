"""Write what a run shows to Redis, gathered: events of about 10 ms leave as one `advance`.

Output that comes after a longer pause leaves at once, since a reader may be waiting. There is one `Progress` per
claim. The answers say whether the claim still stands. What is left unwritten goes into `finish`, so that a short run
needs no write of its own.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Final

from director.broker.replies import Hold
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.schema import NewEvent
from director.core.states import WebhookEvent
from director.execution.active_claims import ActiveClaim
from director.runtime import crash
from director.webhooks.outbox import Outbox

log = logging.getLogger(__name__)

GATHER_S: Final = 0.01
AWAY_S: Final = 1.0


class Progress:
    """The events of one claim on their way to Redis. `seq` is the number of the last event known to be stored."""

    def __init__(self, active: ActiveClaim, scripts: Scripts, clock: Clock, outbox: Outbox | None) -> None:
        self.seq = active.claim.record.seq
        self._active = active
        self._scripts = scripts
        self._clock = clock
        self._outbox = outbox
        self._unwritten: list[NewEvent] = []
        self._remote = ""
        self._untold: list[WebhookEvent] = []
        self._wrote_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    # made when first used: most runs are short and never write

    @cached_property
    def _news(self) -> asyncio.Event:
        return asyncio.Event()

    @cached_property
    def _is_urgent(self) -> asyncio.Event:
        return asyncio.Event()

    @cached_property
    def _writing(self) -> asyncio.Lock:
        return asyncio.Lock()

    def add(self, events: tuple[NewEvent, ...]) -> None:
        """Write these events soon, output at once. The run has begun."""
        self._unwritten += events
        self._wake(is_urgent=any(kind == "output" for kind, _ in events))

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
        if self._remote and not self._active.is_lost:  # the last write does not carry it
            with contextlib.suppress(BackendUnavailable):
                await self.run_once()
        if not self._active.is_lost:
            self._tell(self._untold, started_ms=None)
        return tuple(self._unwritten)

    def drop(self) -> None:
        """Write nothing more, and cut a write in progress."""
        self._unset()
        if self._task is not None:
            self._task.cancel()

    async def run_once(self) -> Hold:
        """Write all that is unwritten. A write whose answer was lost is not repeated: its numbers tell."""
        events, told = tuple(self._unwritten), tuple(self._untold)
        remote, claim = self._remote, self._active.claim
        crash.at("before_advance")
        advanced = await self._scripts.advance(
            claim.id,
            token=claim.token,
            seq=self.seq,
            ran_ms=self._active.tracker.ran_ms(self._clock.monotonic()),
            events=events,
            remote=remote,
        )
        crash.at("after_advance")
        self._remote = "" if self._remote == remote else self._remote
        del self._unwritten[: len(events)], self._untold[: len(told)]
        self.seq = advanced.seq
        self._active.apply_hold(advanced.hold)
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
        if not self._active.tracker.ended:  # else the last write carries all: a short run needs no other, and no task
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
        """Write once. False when further writes are of no use."""
        self._news.clear()
        self._is_urgent.clear()
        self._wrote_at = asyncio.get_running_loop().time()
        try:
            async with self._writing:
                await self.run_once()
        except BackendUnavailable:
            self._news.set()
            await self._clock.sleep(AWAY_S)
        except Exception:  # not the run's fault: the last write carries all of it
            log.exception("writing progress failed", extra={"prediction": self._active.claim.id})
            return False
        return True

    async def _gather(self) -> None:
        """Wait `GATHER_S` for more events; with output, only until `GATHER_S` after the last write."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                await self._is_urgent.wait()
                await asyncio.sleep(self._wrote_at + GATHER_S - asyncio.get_running_loop().time())

    def _tell(self, events: Sequence[WebhookEvent], *, started_ms: int | None) -> None:
        if self._outbox is not None:
            for event in events:
                self._outbox.tell(event, started_ms=started_ms)
