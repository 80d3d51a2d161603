"""Send event streams to their readers, each from its own position to the end. A page is read once the reader took the
one before, so a slow reader holds one page and delays no other. Small events come with their news, and are not read.
Anything larger is sent to few readers at once, and to fewer of one account, to bound memory. While others wait, a
reader that takes nothing loses its place. A reader that can connect again gives way to accounts that have fewer. The
caller of a call cannot, so it stays, and an account has at most as many of these as it leaves to others. A stream
that stops early never looks whole, so that its reader connects again. Each reader looks after two seconds without
news, or later if there are thousands.
"""

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from enum import Enum, auto
from functools import partial
from itertools import islice
from typing import Final, Protocol

import anyio
from msgspec import Raw

from api.services.holders import Holders
from api.services.stream_events import KEEP_ALIVE, KEEP_ALIVE_S, Mark
from api.services.waiters import News, Waiters
from director.broker.replies import Replayed
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable, QueueRefused
from director.core.ids import PredictionId
from director.core.schema import Event, Stored
from director.runtime.startup import Descriptors

log = logging.getLogger(__name__)
PAGE_EVENTS: Final = 256
PAGE_BYTES: Final = 64 * 1024
LARGE_BYTES: Final = (
    2 * PAGE_BYTES
)  # a larger answer needs a place among the large reads; a page is never larger, apart from the framing
REST_BYTES: Final = 512 * 1024  # more than a page, because the whole output is read again for each piece of the rest
PIECE_BYTES: Final = 64 * 1024
SAFETY_S: Final = 2.0
LOOKS_PER_S: Final = 1_000  # of all readers together, without news
STALL_S: Final = 60.0  # a reader that takes nothing for so long is disconnected: its page is memory
TURNS_PER_S: Final = 5_000  # of all readers together: even many of them must leave time to others
TURNS_AT_ONCE: Final = 50  # after a quiet time
ENDS_AT_ONCE: Final = 64
LARGE_ENDS_AT_ONCE: Final = 4  # a final output may be megabytes, and is in memory whole while it is split
LARGE_AT_ONCE: Final = 16
LARGE_EACH: Final = 4  # of one account
EVICT_S: Final = 5.0  # to take one piece while another reader waits for the place
LARGE_S: Final = 60.0  # to take a large page, if no other reader waits
SLOWEST_BYTES_S: Final = 64 * 1024  # a reader that takes it at this pace gets more time
RETRY_AFTER_S: Final = 5
Send = Callable[[bytes], Awaitable[None]]
Push = Callable[[bytes], bool]
"""Sends a piece at once if the connection takes it without a wait. Returns whether it did."""
Look = tuple[PredictionId, int, bool]
Place = anyio.CancelScope
"""Cancels the reader that has it."""


class Next(Enum):
    GO_ON = auto()
    WAIT = auto()
    READ_LARGE = auto()  # nothing was sent: the next event is large
    LEAVE = auto()  # all was sent
    HANG_UP = auto()  # it goes on elsewhere


class Stop(Exception):
    """Raised by a format whose stream cannot go on."""


class Format(Protocol):
    """How a stream is written. See `Frames` for the members."""

    mark: Mark
    at_end: bool
    silence_s: float

    def events(self, events: Sequence[Event]) -> bytes: ...

    def rest(self, output: Raw | None, logs: str, *, most_bytes: int) -> tuple[bytes, bool]: ...

    def end(self, stored: Stored) -> bytes: ...

    def end_as_removed(self) -> bytes: ...

    async def comment(self) -> bytes: ...


class Turns:
    """The turns of all readers. Only those beyond the rate wait, in order, and `TURNS_AT_ONCE` come together, so that
    readers of one prediction share a look. An equal share for each reader would hold a first token back: it comes a
    millisecond after its reader's first look.
    """

    def __init__(self) -> None:
        self._due = float("-inf")

    def take(self, now: float) -> float:
        """Take the next turn. Returns how many seconds it has to wait."""
        round_s = TURNS_AT_ONCE / TURNS_PER_S
        due = max(self._due, now - round_s)
        self._due = due + 1 / TURNS_PER_S
        return due - now if due <= now else math.ceil(due / round_s) * round_s - now


class Readers:
    """Serve at most `most` readers at once, and no new one while the process is short of file descriptors."""

    def __init__(
        self, scripts: Scripts, waiters: Waiters, *, clock: Clock, descriptors: Descriptors, most: int
    ) -> None:
        self.scripts = scripts
        self.waiters = waiters
        self.clock = clock
        self.ends = anyio.Semaphore(ENDS_AT_ONCE)
        self.large_ends = anyio.Semaphore(LARGE_ENDS_AT_ONCE)
        self.large_reads = LargeReadSemaphore(LARGE_AT_ONCE, each=LARGE_EACH)
        self._descriptors = descriptors
        self._most = most
        self._reading: Holders[Place] = Holders()
        self._looks: dict[Look, asyncio.Task[Replayed | None]] = {}
        self._is_leaving = False
        self.turns = Turns()

    @property
    def reading(self) -> int:
        return len(self._reading)

    @property
    def safety_s(self) -> float:
        """Return how long each reader goes on without news or a look."""
        return max(SAFETY_S, self.reading / LOOKS_PER_S)

    @property
    def is_full(self) -> bool:
        return self._is_leaving or self.reading >= self._most or self._descriptors.are_short

    def make_room(self, account: str) -> None:
        """Make room for one more reader. For an account that has fewer than another one, a reader of that is
        disconnected: it connects again, and goes on where it was. Raises QueueRefused.
        """
        if not self.is_full:
            return
        if self._is_leaving or (scope := self._reading.first_to_leave(account)) is None:
            raise self._refusal()
        self._reading.leave(scope)
        scope.cancel()

    def reserve(self, account: str, *, stays: bool) -> Place:
        """Return a place for a reader whose prediction is filed next. No other reader leaves for it before it is read
        from. One that `stays` keeps it to its end: an account may have such a place while it has fewer than there are
        without one, so half of all if it is alone. Raises QueueRefused.
        """
        others = self._most - self._reading.staying
        if self._is_leaving or (stays and self._reading.count_staying(account) >= others):
            raise self._refusal()
        short = max(self.reading + 1 - self._most, int(self._descriptors.are_short))
        if sum(1 for _ in islice(self._reading.give_way(account), max(0, short))) < short:
            raise self._refusal()
        place = anyio.CancelScope()
        self._reading.enter(account, place, stays=stays)
        return place

    def _refusal(self) -> QueueRefused:
        return QueueRefused("unavailable" if self._is_leaving else "too_many_streams", retry_after_s=RETRY_AFTER_S)

    def leave(self, place: Place) -> None:
        self._reading.leave(place)

    async def look(self, prediction_id: PredictionId, after: int, *, whole: bool = False) -> Replayed | None:
        """Return the events after this number; a large one only if `whole`. Raises BackendUnavailable. Equal calls in
        one turn of the event loop share the answer: thousands may read one prediction.
        """
        asked = (prediction_id, after, whole)
        # A caller that leaves must not cancel the answer for the others. No variable has the look: its error has this
        # frame in its traceback, so each would wait for the garbage collector.
        return await asyncio.shield(self._looks.get(asked) or self._begin(asked))

    async def read(
        self,
        prediction_id: PredictionId,
        frames: Format,
        send: Send,
        *,
        account: str,
        is_over: bool = False,
        news: News | None = None,
        place: Place | None = None,
        stays: bool = False,
    ) -> bool:
        """Send the stream from the mark of `frames` to its end. Returns False if the reader was disconnected before
        that. `is_over`: the prediction is terminal already, so there will be no news. `news`, `place`: what its
        reader has had since before it was filed. If `send` has a `push`, small events go straight from the
        subscription to the connection: that saves a fifth of the API's time for a token, 146 → 117 µs with 40 streams.
        """
        if self._is_leaving:
            return False
        with self.holding(account, place, stays=stays):
            try:
                return await Reader(self, prediction_id, account, frames, send).read(is_over=is_over, news=news)
            except TimeoutError:
                log.info("disconnected a reader that takes nothing", extra={"prediction": prediction_id})
        return False

    @contextmanager
    def holding(self, account: str, reserved: Place | None = None, *, stays: bool = False) -> Iterator[Place]:
        with anyio.CancelScope() if reserved is None else reserved as scope:
            if reserved is None:
                self._reading.enter(account, scope, stays=stays)
            elif (self.reading > self._most or self._descriptors.are_short) and (
                other := self._reading.first_to_leave(account, 0)
            ) is not None:
                self._reading.leave(other)
                other.cancel()
            try:
                yield scope
            finally:
                self._reading.leave(scope)

    def release(self) -> None:
        self._is_leaving = True
        for scope in self._reading.holders:
            scope.cancel()

    def _begin(self, asked: Look) -> "asyncio.Task[Replayed | None]":
        look = self._looks[asked] = asyncio.create_task(self._look(asked))
        look.add_done_callback(lambda task: task.cancelled() or task.exception())  # all callers may have left
        return look

    async def _look(self, asked: Look) -> Replayed | None:
        # a later caller starts another: an answer that is on its way may be older than the news that the caller had
        del self._looks[asked]
        prediction_id, after, whole = asked
        return await self.scripts.replay(
            prediction_id, after=after, count=PAGE_EVENTS, most_bytes=PAGE_BYTES, whole=whole
        )


class Reader:
    def __init__(self, readers: Readers, prediction_id: PredictionId, account: str, frames: Format, send: Send) -> None:
        self._readers = readers
        self.account: Final = account
        self._id = prediction_id
        self._frames = frames
        self._transmit = send
        self._push_piece: Push | None = getattr(send, "push", None)
        self._clock = readers.clock
        self._sent = self._clock.monotonic()
        self._limit: anyio.CancelScope | None = None
        self._piece: asyncio.Timeout | None = None

    async def read(self, *, is_over: bool, news: News | None = None) -> bool:
        """Send the stream to its end. Returns False if it goes on at another server. Raises TimeoutError if the client
        takes nothing.
        """
        listens = self._readers.waiters.listening(self._id) if news is None and not is_over else None
        with listens or nullcontext(news or News()) as heard:
            then = Next.GO_ON
            if news is not None:  # nothing has happened that it would not hear of
                await self._wait(heard)
            while then not in (Next.LEAVE, Next.HANG_UP):
                await self._pace()
                events = heard.take()
                try:
                    then = Next.WAIT if then is Next.WAIT and await self._send_on(events) else await self._send_more()
                    if then is Next.READ_LARGE:
                        async with self._hold_large_read():
                            then = await self._send_more(may_be_large=True)
                except BackendUnavailable as exc:
                    log.info("could not read on, trying again", extra={"prediction": self._id, "reason": str(exc)})
                    then, heard.events = Next.WAIT, None
                if then is Next.WAIT:
                    await self._wait(heard)
        return then is Next.LEAVE

    async def _send_on(self, events: list[Event] | None) -> bool:
        """Send events that came with the news. Returns False if the log has to be read: none came, one is missing, or
        all are older than the mark. So are those of a revived prediction, whose numbers begin at 1 here, and those
        after a failover that lost events.
        """
        seq = self._frames.mark.seq
        if not events or not events[0].seq - 1 <= seq <= events[-1].seq:
            return False
        await self._send(self._frames.events([event for event in events if event.seq > seq]))
        return True

    async def _send_more(self, *, may_be_large: bool = False) -> Next:
        """Send what comes next. No page is held while the reader waits for more."""
        page = await self._readers.look(self._id, self._frames.mark.seq, whole=may_be_large)
        if page is not None and page.moved:
            return Next.HANG_UP  # a reader that connects again gets the new place
        if page is None or (page.is_removed and not page.is_terminal):
            await self._send(self._frames.end_as_removed())
            return Next.LEAVE
        if page.has_more and not page.events and not may_be_large:
            return Next.READ_LARGE
        # a log that claims more and returns nothing would be read in an endless loop
        has_more, is_over = page.has_more and bool(page.events), page.is_terminal
        data = self._frames.events(page.events)
        del page
        await self._send(data)
        if self._frames.at_end or (is_over and not has_more):  # the output may outlive the log
            return await self._send_end(may_be_large=may_be_large)
        return Next.GO_ON if has_more else Next.WAIT

    async def _send_end(self, *, may_be_large: bool) -> Next:
        before = self._frames.mark
        async with self._readers.ends:
            stored = await self._readers.scripts.get(self._id, outlook=False, whole=False)
        size = stored.left_out if stored is not None else 0
        if size and not may_be_large:  # not read here: 24 readers of 6 MB kept the end of a small stream for 2.3 s
            return Next.READ_LARGE
        async with self._readers.large_ends if size else nullcontext():
            if size:
                stored = await self._readers.scripts.get(self._id, outlook=False, size=size)
            if stored is None or stored.input is None:
                data, is_all = self._frames.end_as_removed(), True
            elif not stored.record.is_terminal:  # it starts again
                return Next.GO_ON
            else:
                data, is_all = self._frames.rest(stored.output, stored.logs, most_bytes=REST_BYTES)
                if is_all:
                    data += self._frames.end(stored)
            del stored  # it may be large, and sending may take long
        if len(data) > LARGE_BYTES and not may_be_large:
            self._frames.mark = before
            return Next.READ_LARGE
        await self._send(data)
        return Next.LEAVE if is_all else Next.GO_ON

    @asynccontextmanager
    async def _hold_large_read(self) -> AsyncIterator[None]:
        """Wait until a large page may be held, among the few at once, and hold the place for a limited time."""
        async with self._readers.large_reads.hold(self, meanwhile=partial(self._send, KEEP_ALIVE)):
            try:
                with anyio.fail_after(LARGE_S) as self._limit:
                    yield
            finally:
                self._limit = None

    def hurry(self) -> None:
        """Give the client little time for the piece that it is taking, because another reader waits."""
        if self._piece is not None and (until := self._piece.when()) is not None:
            self._piece.reschedule(min(until, asyncio.get_running_loop().time() + EVICT_S))

    async def _pace(self) -> None:
        if (pause_s := self._readers.turns.take(self._clock.monotonic())) > 0:
            await self._clock.sleep(pause_s)

    def _push(self, events: Sequence[Event]) -> bool:
        """Send the events that follow, without waking this reader's task."""
        before = self._frames.mark
        if self._push_piece is None or events[0].seq != before.seq + 1 or any(one.kind != "output" for one in events):
            return False
        try:
            is_pushed = self._push_piece(self._frames.events(events))
        except Stop:  # the reader's task finds it too
            is_pushed = False
        if not is_pushed:
            self._frames.mark = before
            return False
        self._sent = self._clock.monotonic()
        return True

    async def _wait(self, news: News) -> None:
        news.push = None if self._push_piece is None else self._push
        was_sent = float("-inf")
        try:
            while self._sent > was_sent and not news.is_set():  # what was pushed meanwhile is no silence
                was_sent = self._sent
                left_s = max(0.0, self._frames.silence_s - (self._clock.monotonic() - was_sent))
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(self._readers.safety_s, left_s)):
                        await news.wait()
        finally:
            news.push = None
        if self._clock.monotonic() - self._sent >= self._frames.silence_s:
            await self._send(await self._frames.comment())

    async def _send(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            is_wanted = self._limit is not None and self._readers.large_reads.are_wanted_of(self)
            patience_s = EVICT_S if is_wanted else STALL_S
            async with asyncio.timeout(patience_s) as self._piece:  # a scope of anyio takes three times the calls
                await self._transmit(data[start : start + PIECE_BYTES])
            self._piece = None
            if self._limit is not None:
                self._limit.deadline += PIECE_BYTES / SLOWEST_BYTES_S
            self._sent = self._clock.monotonic()


class LargeReadSemaphore:
    """Let `most` readers read large data at once, and `each` of one account. A free place goes to the account
    that has the fewest. A reader that waits hurries those that it waits for: a stalled one cannot hold it up for long.
    """

    def __init__(self, most: int, *, each: int) -> None:
        self._most = most
        self._each = each
        self._waiting: dict[str, deque[tuple[Reader, asyncio.Future[None]]]] = {}
        self.holders: Final[set[Reader]] = set()

    def are_wanted_of(self, holder: Reader) -> bool:
        return holder.account in self._waiting or (bool(self._waiting) and len(self.holders) >= self._most)

    @asynccontextmanager
    async def hold(self, reader: Reader, *, meanwhile: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Wait for a place and hold it. `meanwhile` is awaited each KEEP_ALIVE_S of the wait."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(reader.account, deque()).append((reader, granted))
        try:
            self._grant()
            if not granted.done():
                self._hurry_for(reader)
            while not granted.done():
                await asyncio.wait([granted], timeout=KEEP_ALIVE_S)
                if not granted.done():
                    await meanwhile()
            yield
        finally:
            if reader in self.holders:
                self.holders.discard(reader)
            else:
                self._take_off((reader, granted))
            self._grant()

    def _grant(self) -> None:
        while len(self.holders) < self._most:
            held = Counter(holder.account for holder in self.holders)
            account = min((each for each in self._waiting if held[each] < self._each), key=held.__getitem__, default="")
            if not account:
                return
            reader, granted = first = self._waiting[account][0]
            self._take_off(first)
            self.holders.add(reader)
            granted.set_result(None)

    def _take_off(self, waiter: tuple[Reader, asyncio.Future[None]]) -> None:
        queue = self._waiting[waiter[0].account]
        queue.remove(waiter)
        if not queue:
            del self._waiting[waiter[0].account]

    def _hurry_for(self, reader: Reader) -> None:
        for holder in self.holders:
            if holder.account == reader.account or len(self.holders) >= self._most:
                holder.hurry()
