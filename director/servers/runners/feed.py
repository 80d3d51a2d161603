"""Carry the events of one run from the code that follows it to the executor.

A `Reporter` calls back at once. A `Feed` queues events for a reader: the server is read eagerly, since it drops what is
not read in time, and the reader takes its own time. Neither holds much more than `read_ahead` bytes, reports `Began`
twice, or lets anything through after `Ended`.
"""

import asyncio
from collections import deque
from typing import Final

from director.servers.runners.runner import (
    Accepted,
    Began,
    Ended,
    Hear,
    Logged,
    Measured,
    Outcome,
    Produced,
    Received,
    Restarted,
    RunEvent,
    Unreceived,
)

BEGAN_AFTER_S: Final = 0.03  # a refusal takes a millisecond: a server that is silent for this long has begun the run
EVENT_BYTES: Final = 200  # the memory of an event beside its data

# ends that only a run that began can have
RAN: Final = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELED})


Progress = Accepted | Produced | Received | Unreceived | Logged | Measured | Restarted


class Reporter:
    """Reports the events of one run to `hear` at once."""

    def __init__(self, hear: Hear) -> None:
        self._hear = hear
        self._began = False
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_begun(self) -> bool:
        """True once the run was reported as begun."""
        return self._began

    def sent(self) -> None:
        """Note that the request has left. Unless the server answers within 30 ms, the run has begun."""
        self.answered()
        self._timer = asyncio.get_running_loop().call_later(BEGAN_AFTER_S, self.begin)

    def answered(self) -> None:
        """Note that the server answered: from here on its silence says nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def mute(self) -> None:
        """Report nothing more, even where the request goes on for other runs."""
        self.answered()
        self._ended = True

    def begin(self) -> None:
        """Report that the run has begun, unless that was reported."""
        if not self._began:
            self._began = True
            self._put(Began(), 0)

    def add(self, event: Progress, *, size: int = 0) -> None:
        """Report progress of `size` bytes."""
        self.begin()
        self._put(event, size)

    def end(self, ended: Ended) -> None:
        """Report the end. Some ends show that the run began, which is then reported first."""
        self.answered()
        if ended.outcome in RAN:
            self.begin()
        self._put(ended, 0)
        self._ended = True

    def _put(self, event: RunEvent, size: int) -> None:
        if not self._ended:
            self._hear(event)


class Feed(Reporter):
    """Queues events between one writer and one reader."""

    def __init__(self, *, read_ahead: int) -> None:
        super().__init__(lambda event: None)
        self._read_ahead = read_ahead
        self._events: deque[tuple[RunEvent, int]] = deque()
        self._held = 0
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()

    async def room(self) -> None:
        """Wait until the reader has caught up enough to read the server further."""
        while self._held > self._read_ahead:
            self._taken.clear()
            await self._taken.wait()

    async def next(self) -> RunEvent:
        """Wait for the next event."""
        while not self._events:
            self._arrived.clear()
            await self._arrived.wait()
        event, size = self._events.popleft()
        self._held -= size
        self._taken.set()
        return event

    def _put(self, event: RunEvent, size: int) -> None:
        if self._ended:
            return
        size += EVENT_BYTES
        self._held += size
        self._events.append((event, size))
        self._arrived.set()
