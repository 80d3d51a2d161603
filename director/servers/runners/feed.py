"""The events of one run, on their way from who follows it to whoever hears or reads them.

Where there is a reader, the server is followed eagerly, since it drops what is not read in time; the reader takes its
own. Never holds much more than `read_ahead` bytes, never says `Began` twice, and lets nothing through after `Ended`.
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

BEGAN_AFTER_S: Final = 0.03  # a refusal takes a millisecond: who is silent for this long has begun
EVENT_BYTES: Final = 200  # what an event costs in memory beside its data

RAN: Final = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELED})  # ends that only a run can have


Progress = Accepted | Produced | Received | Unreceived | Logged | Measured | Restarted


class Voice:
    """What is said of one run. This one says it at once."""

    def __init__(self, hear: Hear) -> None:
        self._hear = hear
        self._began = False
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_begun(self) -> bool:
        """Was it told, or seen, that the run began?"""
        return self._began

    def sent(self) -> None:
        """The request has left. Unless it is answered soon, the run has begun."""
        self.answered()
        self._timer = asyncio.get_running_loop().call_later(BEGAN_AFTER_S, self.begin)

    def answered(self) -> None:
        """The server said something: from here on its words count, not its silence."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def hush(self) -> None:
        """Nobody hears any more, not even where its request goes on for others."""
        self.answered()
        self._ended = True

    def begin(self) -> None:
        """The run has begun, if that was not known."""
        if not self._began:
            self._began = True
            self._put(Began(), 0)

    def add(self, event: Progress, *, size: int = 0) -> None:
        """More progress, `size` bytes of it."""
        self.begin()
        self._put(event, size)

    def end(self, ended: Ended) -> None:
        """The end. A run that ended by itself must have begun, so that is told first."""
        self.answered()
        if ended.outcome in RAN:
            self.begin()
        self._put(ended, 0)
        self._ended = True

    def _put(self, event: RunEvent, size: int) -> None:
        if not self._ended:
            self._hear(event)


class Feed(Voice):
    """One writer, and one reader who takes each event when there is time."""

    def __init__(self, *, read_ahead: int) -> None:
        super().__init__(lambda event: None)
        self._read_ahead = read_ahead
        self._events: deque[tuple[RunEvent, int]] = deque()
        self._held = 0
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()

    async def room(self) -> None:
        """Wait until the reader has caught up enough for the server to be read further."""
        while self._held > self._read_ahead:
            self._taken.clear()
            await self._taken.wait()

    async def next(self) -> RunEvent:
        """The next event, when there is one."""
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
