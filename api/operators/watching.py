"""What goes on in the whole service, for all operators who watch: one snapshot each few seconds, read once for all.

Nobody watches, nothing is read. Whoever has taken a snapshot is given the newest one next: what came between is
skipped, and nothing is queued for anybody. Reads a slice at a time, and rests a hundred times as long as it read, so
that the service itself is not what Redis is busy with.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from director.core.clock import Clock
from director.core.director_view import DirectorView, director_view
from director.core.directors import Directors
from director.core.errors import BackendUnavailable
from director.core.owed import Owed
from director.core.queue_view import QueueView, view_of
from director.core.queues import Queues
from director.core.view import iso

__all__ = ("Away", "OwedCount", "Snapshot", "Told", "Watching")

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_QUEUES: Final = 1_000
MOST_DIRECTORS: Final = 1_000
SLICE: Final = 25  # queues of one write: about a millisecond of the server, which serves others too
BREATH_S: Final = 0.01
REST: Final = 100  # times as long as it took
SHORTEST_S: Final = 1.0
LONGEST_S: Final = 5.0
REMEMBERED: Final = 10  # of what took so long, the least is what Redis took at most: the rest was this process


class OwedCount(Struct, frozen=True, kw_only=True):
    """Webhooks that are owed; `late`: due, and nobody tried."""

    count: int
    late: int


class Snapshot(Struct, frozen=True, kw_only=True):
    """All of it within a moment. `more_queues`, `more_directors`: how many were left out, the last by name."""

    at: str
    queues: Sequence[QueueView]
    more_queues: int
    directors: Sequence[DirectorView]
    more_directors: int
    owed: OwedCount


class Away(Struct, frozen=True, kw_only=True):
    """Nothing can be seen now; what was seen last may be old."""

    at: str
    reason: str


class Told(Struct, frozen=True):
    """One event as it goes over the wire, and its number."""

    number: int
    data: bytes


class Watching:
    """All who watch."""

    def __init__(self, queues: Queues, directors: Directors, owed: Owed, clock: Clock) -> None:
        self._queues = queues
        self._directors = directors
        self._owed = owed
        self._clock = clock
        self._watchers = 0
        self._reading: asyncio.Task[None] | None = None
        self._last = Told(0, b"")
        self._news = asyncio.Event()
        self._took: deque[float] = deque(maxlen=REMEMBERED)
        self._spent_s = 0.0

    @contextmanager
    def watcher(self) -> Iterator[None]:
        """One who watches."""
        self._watchers += 1
        if self._reading is None:
            self._last = Told(self._last.number, b"")  # it may be of yesterday
            self._reading = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers:
                self.release()

    async def after(self, number: int) -> Told:
        """The newest event, once there is one that is newer than that of this number."""
        while self._last.number <= number or not self._last.data:
            await self._news.wait()
        return self._last

    def release(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def run_once(self) -> float:
        """One look, told to all; for how long to rest after it."""
        at, self._spent_s = iso(self._clock.now_ms()), 0.0
        try:
            snapshot = await self._look(at)
        except BackendUnavailable as exc:
            self._tell("away", Away(at=at, reason=str(exc)))
            return SHORTEST_S
        self._tell("snapshot", snapshot)
        self._took.append(self._spent_s)
        return min(max(SHORTEST_S, REST * min(self._took)), LONGEST_S)

    async def _run(self) -> None:
        while True:
            try:
                rest_s = await self.run_once()
            except Exception:
                log.exception("looking at the service failed")
                rest_s = LONGEST_S
            await self._clock.sleep(rest_s)

    async def _look(self, at: str) -> Snapshot:
        names = await self._timed(self._queues.all())
        seen, queues = names[:MOST_QUEUES], list[QueueView]()
        for start in range(0, len(seen), SLICE):
            found = await self._timed(self._queues.stats_of(seen[start : start + SLICE]))
            queues += [view_of(*one) for one in found]
            await self._clock.sleep(BREATH_S)
        directors = await self._timed(self._directors.of(seen))
        count, late = await self._timed(self._owed.count())
        return Snapshot(
            at=at,
            queues=queues,
            more_queues=len(names) - len(seen),
            directors=[director_view(one) for one in directors[:MOST_DIRECTORS]],
            more_directors=max(0, len(directors) - MOST_DIRECTORS),
            owed=OwedCount(count=count, late=late),
        )

    async def _timed(self, asked: Awaitable[T]) -> T:
        began = self._clock.monotonic()
        answer = await asked
        self._spent_s += self._clock.monotonic() - began
        return answer

    def _tell(self, event: str, what: Snapshot | Away) -> None:
        data = b"event: %b\ndata: %b\n\n" % (event.encode(), msgspec.json.encode(what))
        self._last = Told(self._last.number + 1, data)
        news, self._news = self._news, asyncio.Event()
        news.set()
