"""Follow predictions for those who read their event streams: from where each of them was, to the end.

Keeps no queue: a page is read from Redis once the one before it was taken, so a slow reader holds one page at most, and
slows nobody. What is larger than a page is told to few at once, since a crowd of slow readers would hold it all.
Never ends a stream as if it were whole when it is not: who is let go before the end can tell, and come again.
Shares the waiters' one subscription, and trusts it as little: everybody looks again every two seconds.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from enum import Enum, auto
from typing import Final

import anyio

from api.predictions.stream_events import KEEP_ALIVE, Mark, Teller
from api.predictions.waiters import Waiters
from director.broker.scripts import Replayed, Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId
from director.runtime.startup import Descriptors

log = logging.getLogger(__name__)

PAGE_EVENTS: Final = 256
PAGE_BYTES: Final = 64 * 1024
LARGE_BYTES: Final = (
    2 * PAGE_BYTES
)  # of what is sent at once: a page is never more, but for what its text is wrapped in
REST_BYTES: Final = 512 * 1024  # more, since the whole output is read for each piece of its rest
PIECE_BYTES: Final = 64 * 1024
SAFETY_S: Final = 2.0
KEEP_ALIVE_S: Final = 10.0
STALL_S: Final = 60.0  # a reader that takes nothing for so long is let go: its page is memory
LOOKS_PER_S: Final = 5_000  # of all readers together: many of them must leave the loop to others
ENDS_AT_ONCE: Final = 4  # a final output may be megabytes, and is held whole while it is taken apart
LARGE_AT_ONCE: Final = 16
LARGE_S: Final = 60.0  # to take one: others wait for the room
SLOWEST_BYTES_S: Final = 64 * 1024  # a reader that takes it at this pace has longer

Send = Callable[[bytes], Awaitable[None]]
Look = tuple[PredictionId, int, bool]


class Next(Enum):
    """What a reader does when it has been told something."""

    GO_ON = auto()
    WAIT = auto()
    TAKE_ROOM = auto()  # nothing was sent: what is next is large
    LEAVE = auto()


class Readers:
    """At most `most` at once, and no new one while the process is short of descriptors."""

    def __init__(
        self, scripts: Scripts, waiters: Waiters, *, clock: Clock, descriptors: Descriptors, most: int
    ) -> None:
        self.scripts = scripts
        self.waiters = waiters
        self.clock = clock
        self.ends = anyio.Semaphore(ENDS_AT_ONCE)
        self.room = anyio.Semaphore(LARGE_AT_ONCE)
        self._descriptors = descriptors
        self._most = most
        self._reading: set[anyio.CancelScope] = set()
        self._looks: dict[Look, asyncio.Task[Replayed | None]] = {}
        self._is_leaving = False

    @property
    def reading(self) -> int:
        return len(self._reading)

    @property
    def is_full(self) -> bool:
        """May nobody begin to read now?"""
        return self._is_leaving or self.reading >= self._most or self._descriptors.are_short

    async def standing(self, prediction_id: PredictionId) -> Replayed | None:
        """How it stands, without an event; None where there is no such prediction. Raises BackendUnavailable."""
        return await self.scripts.replay(prediction_id, after=0, count=0, most_bytes=0)

    async def look(self, prediction_id: PredictionId, after: int, *, whole: bool = False) -> Replayed | None:
        """Its events after this number, but one that is large only where `whole`. Raises BackendUnavailable.

        Those who ask the same in one turn of the loop share the answer, since thousands may read one prediction.
        """
        asked = (prediction_id, after, whole)
        look = self._looks.get(asked)
        if look is None:
            look = self._looks[asked] = asyncio.create_task(self._look(asked))
            look.add_done_callback(lambda task: task.cancelled() or task.exception())  # they may all have left
        # who leaves does not take the answer of the others along
        return await asyncio.shield(look)

    async def read(self, prediction_id: PredictionId, mark: Mark, send: Send, *, is_over: bool = False) -> bool:
        """Send the stream from this mark on, to its end. False where it was let go before that.

        `is_over`: it is terminal already, and will bring no news.
        """
        if self._is_leaving:
            return False
        with self.holding():
            try:
                await Reader(self, prediction_id, mark, send).read(is_over=is_over)
            except TimeoutError:
                log.info("a reader that takes nothing is let go", extra={"prediction": prediction_id})
            else:
                return True
        return False

    @contextmanager
    def holding(self) -> Iterator[anyio.CancelScope]:
        """A place among all who read anything, until the process is to end: what is in this is given up then."""
        with anyio.CancelScope() as scope:
            self._reading.add(scope)
            try:
                yield scope
            finally:
                self._reading.discard(scope)

    def release(self) -> None:
        """The process is to end: let all go, so that they go on elsewhere."""
        self._is_leaving = True
        for scope in self._reading:
            scope.cancel()

    async def _look(self, asked: Look) -> Replayed | None:
        # begins in the turn after the one in which it was made. Whoever comes later asks anew: what is on its way by
        # then may be older than the news he heard
        del self._looks[asked]
        prediction_id, after, whole = asked
        return await self.scripts.replay(
            prediction_id, after=after, count=PAGE_EVENTS, most_bytes=PAGE_BYTES, whole=whole
        )


class Reader:
    """One of them."""

    def __init__(self, readers: Readers, prediction_id: PredictionId, mark: Mark, send: Send) -> None:
        self._readers = readers
        self._id = prediction_id
        self._teller = Teller(mark)
        self._transmit = send
        self._clock = readers.clock
        self._looked = float("-inf")
        self._sent = self._clock.monotonic()
        self._limit: anyio.CancelScope | None = None

    async def read(self, *, is_over: bool) -> None:
        """To the end. Raises TimeoutError when nobody takes what is sent."""
        waiters = self._readers.waiters
        with nullcontext(asyncio.Event()) if is_over else waiters.listening(self._id) as news:
            then = Next.GO_ON
            while then is not Next.LEAVE:
                news.clear()
                try:
                    then = await self._tell_more()
                    if then is Next.TAKE_ROOM:
                        async with self._room():
                            then = await self._tell_more(has_room=True)
                except BackendUnavailable as exc:
                    log.info("could not read on, waiting", extra={"prediction": self._id, "reason": str(exc)})
                    then = Next.WAIT
                if then is Next.WAIT:
                    await self._wait(news)

    async def _tell_more(self, *, has_room: bool = False) -> Next:
        """Send what comes next. Nothing of it is held by whoever waits for more."""
        page = await self._look(whole=has_room)
        if page is not None and page.moved:
            return Next.LEAVE  # who comes again is told where it is
        if page is None or page.is_removed:
            await self._send(self._teller.tell_removed())
            return Next.LEAVE
        if page.has_more and not page.events and not has_room:
            return Next.TAKE_ROOM
        # a log that says it has more and tells nothing would be asked for ever
        has_more, is_over = page.has_more and bool(page.events), page.is_terminal
        told = self._teller.tell(page.events)
        del page
        await self._send(told)
        if self._teller.at_end or (is_over and not has_more):
            return await self._tell_end(has_room=has_room)
        return Next.GO_ON if has_more else Next.WAIT

    async def _tell_end(self, *, has_room: bool) -> Next:
        """Send what the log lacks, a piece at a time, then how it ended."""
        before = self._teller.mark
        async with self._readers.ends:
            stored = await self._readers.scripts.get(self._id, outlook=False)
            if stored is None or stored.input is None:
                told, is_all = self._teller.tell_removed(), True
            elif not stored.record.is_terminal:  # it begins anew
                return Next.GO_ON
            else:
                told, is_all = self._teller.tell_rest(stored.output, stored.logs, most_bytes=REST_BYTES)
                if is_all:
                    told += self._teller.tell_end(stored.record.status, stored.record.error)
            del stored  # it may be large, and sending may take long
        if len(told) > LARGE_BYTES and not has_room:
            self._teller.mark = before
            return Next.TAKE_ROOM
        await self._send(told)
        return Next.LEAVE if is_all else Next.GO_ON

    @asynccontextmanager
    async def _room(self) -> AsyncIterator[None]:
        """Where something large may be held, but not for long."""
        room = self._readers.room
        while True:
            with anyio.move_on_after(KEEP_ALIVE_S):
                await room.acquire()
                break
            await self._send(KEEP_ALIVE)
        try:
            with anyio.fail_after(LARGE_S) as self._limit:
                yield
        finally:
            self._limit = None
            room.release()

    async def _look(self, *, whole: bool) -> Replayed | None:
        """At what came since, but not more often than is good for all."""
        pause = self._looked + self._readers.reading / LOOKS_PER_S - self._clock.monotonic()
        if pause > 0:
            await self._clock.sleep(pause)
        self._looked = self._clock.monotonic()
        return await self._readers.look(self._id, self._teller.mark.seq, whole=whole)

    async def _wait(self, news: asyncio.Event) -> None:
        """Until there is news, or it is time to look in any case. Who hears nothing for long hears a comment."""
        silent_s = self._clock.monotonic() - self._sent
        with anyio.move_on_after(min(SAFETY_S, max(0.0, KEEP_ALIVE_S - silent_s))):
            await news.wait()
        if self._clock.monotonic() - self._sent >= KEEP_ALIVE_S:
            await self._send(KEEP_ALIVE)

    async def _send(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            with anyio.fail_after(STALL_S):
                await self._transmit(data[start : start + PIECE_BYTES])
            if self._limit is not None:
                self._limit.deadline += PIECE_BYTES / SLOWEST_BYTES_S
            self._sent = self._clock.monotonic()
