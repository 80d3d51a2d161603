"""Hold responses until their prediction is terminal, with one subscription for the whole process. A prediction is filed
with the name of the process that waits, which gets its ending published with all that the response needs. A
prediction's own channel is subscribed to only by requests that read its events, or wait for another request's
prediction. Its messages are hints to look, at a bounded pace, and small events come with theirs. Every waiter looks
every two seconds, and less often where thousands wait, so a lost message costs time and never an answer. A caller that
can look again gives way to accounts that have fewer. That of a call of OpenAI's API cannot, so it stays: see `reserve`.
"""

import asyncio
import logging
import math
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Final, Protocol

from redis.asyncio import Redis
from redis.exceptions import RedisError

from api.services.holders import Holders
from director.broker import keys
from director.broker.news import Subscription
from director.broker.replies import parse_news
from director.core.clock import Clock
from director.core.errors import BackendUnavailable, QueueRefused
from director.core.ids import PredictionId
from director.core.schema import Event, Stored
from director.store.predictions import Ending, parse_message

log = logging.getLogger(__name__)
SAFETY_S: Final = 2.0
LOOKS_PER_S: Final = 1_000  # of all waits together
RETRY_AFTER_S: Final = 5
PAUSE_S: Final = 0.5  # before a lost subscription is replaced
# A model may write hundreds of events a second. A prediction that ends quickly must not wait for its turn.
GAP_S: Final = 0.05
BURST: Final = 4
MOST_EVENTS: Final = 32  # events that wait for a reader who is slow to take them; beyond it the log is read
# of the inputs of all held requests; the rest of a request takes about as much again
MOST_BYTES: Final = 128 << 20
HasEnded = Callable[[PredictionId], Awaitable[bool]]


class Read(Protocol):
    """Returns a prediction as it is now. Unless `whole`, large data is left out: see `Stored.left_out`."""

    def __call__(self, prediction_id: PredictionId, /, *, whole: bool) -> Awaitable[Stored | None]: ...


class News(asyncio.Event):
    """Set when something may have happened to a prediction. `events`: those that came with the news, without a gap.
    None if the log has to be read. `push` sends events at once if their reader only waits for some, and returns whether
    it did: then there is no news.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] | None = None
        self.push: Callable[[Sequence[Event]], bool] | None = None

    def take(self) -> list[Event] | None:
        """Return the events since the last call. The first call returns None."""
        events, self.events = self.events, []
        self.clear()
        return events

    def add(self, events: Sequence[Event]) -> None:
        """Take in news. Without `events` the log has to be read."""
        if events and self.events == [] and self.push is not None and self.push(events):
            return
        if not events or self.events is None or len(self.events) >= MOST_EVENTS:
            self.events = None
        else:
            self.events += events
        self.set()


class Wait:
    """One caller's wait. Create it before its prediction is filed, so that no ending is missed. Leave it once."""

    def __init__(self) -> None:
        self.news = News()
        self.ending: Ending | None = None
        self.is_over = False
        self.whole = True
        self.look: asyncio.Timeout | None = None  # of the look that is under way
        self.account: str | None = None  # of a wait that stays
        self._place: dict[PredictionId, Wait] = {}
        self._id: PredictionId | None = None

    def enter(self, place: "dict[PredictionId, Wait]", prediction_id: PredictionId) -> None:
        self.leave()
        self._place, self._id = place, prediction_id
        place[prediction_id] = self

    def leave(self) -> None:
        if self._id is not None:
            self._place.pop(self._id, None)

    def stop(self, _: object = None) -> None:
        """End the wait at once, because its client has left or the process ends."""
        self.is_over = True
        self.news.set()
        if self.look is not None and not self.look.expired():
            self.look.reschedule(0)


class Waiters:
    """Hold at most `most` waits at once. `has_ended` is cheap."""

    def __init__(self, redis: Redis, *, has_ended: HasEnded, read: Read, clock: Clock, most: int) -> None:
        self._has_ended = has_ended
        self._read = read
        self._clock = clock
        self._most = most
        self._name = secrets.token_hex(4)
        self._ends = keys.ends_channel(self._name)
        self._expected: dict[PredictionId, Wait] = {}
        self._listeners: dict[str, set[News]] = {}
        self._subscription = Subscription(redis, self._ends, on_message=self._hear, on_active=self._wake)
        self._held: Holders[Wait] = Holders()
        self._weights: dict[Wait, int] = {}
        self._weight = 0
        self._staying: Counter[str] = Counter()  # bytes of the waits that stay, by account
        self._is_leaving = False
        self._told = ""  # the logged reason why the subscription does not work

    @property
    def waiting(self) -> int:
        return len(self._held)

    @property
    def safety_s(self) -> float:
        """Return how long each wait goes on without a look."""
        return max(SAFETY_S, self.waiting / LOOKS_PER_S)

    def make_room(self, account: str, weight: int = 0) -> bool:
        """Return whether there is room for one more wait. For an account that holds less than another one, waits of
        that end early: as many as it needs, or no wait.
        """
        leaving = self._find_room(account, weight)
        self._end(leaving or ())
        return leaving is not None

    def reserve(self, prediction_id: PredictionId, wait: Wait, account: str, weight: int) -> str:
        """Register a wait for a prediction that is filed next, which stays until `leave`. Returns the name to file as
        its `waiter`. No other wait ends for it before `wait_for_end`. An account may have as many, and as many bytes,
        as are left without these: half if it is alone. Raises QueueRefused.
        """
        if self._is_leaving:
            raise QueueRefused("unavailable", retry_after_s=RETRY_AFTER_S)
        most, most_bytes = self._most - self._held.staying, MOST_BYTES - self._staying.total()
        if (
            self._held.count_staying(account) >= most
            or self._staying[account] + weight > most_bytes
            or self._find_room(account, weight) is None
        ):
            raise QueueRefused("too_many_calls", retry_after_s=RETRY_AFTER_S)
        self._enter(account, wait, weight, stays=True)
        return self.expect(prediction_id, wait)

    def give_back(self, wait: Wait) -> None:
        """Free what `reserve` took. Safe to repeat."""
        self._leave(wait)
        wait.leave()

    def _find_room(self, account: str, weight: int, *, is_held: bool = False) -> list[Wait] | None:
        """Return the waits that have to end for one more, or None if that is not enough. `is_held`: it is counted."""
        count, total, leaving = self.waiting, self._weight, list[Wait]()
        if not is_held:
            count, total = count + 1, total + weight
        others = self._held.give_way(account, 0 if is_held else self._part(weight))
        while count > self._most or total > MOST_BYTES:
            wait = next(others, None)
            if wait is None:
                return None
            leaving.append(wait)
            count, total = count - 1, total - self._weights[wait]
        return leaving

    def _end(self, waits: Iterable[Wait]) -> None:
        for wait in waits:
            self._leave(wait)
            wait.stop()

    def _enter(self, account: str, wait: Wait, weight: int, *, stays: bool) -> None:
        self._held.enter(account, wait, self._part(weight), stays=stays)
        self._weights[wait] = weight
        self._weight += weight
        if stays:
            wait.account = account
            self._staying[account] += weight

    def _part(self, weight: int) -> float:
        return 1 / self._most + weight / MOST_BYTES

    def _leave(self, wait: Wait) -> None:
        self._held.leave(wait)
        weight = self._weights.pop(wait, 0)
        self._weight -= weight
        if wait.account is not None:
            self._staying[wait.account] -= weight
            if not self._staying[wait.account]:
                del self._staying[wait.account]
            wait.account = None

    def expect(self, prediction_id: PredictionId, wait: Wait) -> str:
        """Register a wait for a prediction that is filed next. Returns the name to file as its `waiter`."""
        wait.enter(self._expected, prediction_id)
        return self._name

    async def wait_for_end(
        self,
        prediction_id: PredictionId,
        *,
        seconds: float,
        account: str = "",
        weight: int = 0,
        wait: Wait | None = None,
        gone: "asyncio.Future[None] | None" = None,
        whole: bool = True,
        stays: bool = False,
    ) -> Ending | Stored | None:
        """Return how the prediction ended, or the terminal prediction. None if it is not terminal after `seconds`.
        `account`: whose wait it is. `wait`: what this request registered when it filed the prediction. `gone` is done
        when the client has left. `stays`: it ends for no other wait. Unless `whole`, large data is left out of the
        prediction.
        """
        if self._is_leaving:
            return None
        is_ours = wait is not None and self._expected.get(prediction_id) is wait  # else another request filed it
        held = wait if wait is not None and is_ours else Wait()
        held.whole = whole
        until = asyncio.get_running_loop().time() + seconds
        is_reserved = held in self._held
        if is_reserved:
            self._end(self._find_room(account, weight, is_held=True) or ())
        else:
            self._enter(account, held, weight, stays=stays)
        if gone is not None:
            gone.add_done_callback(held.stop)
        try:
            with nullcontext() if is_ours else self.listening(prediction_id, held.news):
                return await self._watch(prediction_id, held, until)
        finally:
            if gone is not None:
                gone.remove_done_callback(held.stop)
            if not is_reserved:
                self._leave(held)

    @contextmanager
    def listening(self, prediction_id: PredictionId, news: News | None = None) -> Iterator[News]:
        """Yield an event that is set when something may have happened, and once when the subscription is active. The
        listener clears it before each look. Then it misses only what a lost connection loses.
        """
        channel = keys.channel(prediction_id)
        news = news or News()
        self._listeners.setdefault(channel, set()).add(news)
        self._subscription.add(channel)
        try:
            yield news
        finally:
            self._listeners[channel].discard(news)
            if not self._listeners[channel]:
                del self._listeners[channel]
                self._subscription.remove(channel)

    def release(self) -> None:
        self._is_leaving = True
        for held in self._held.holders:
            held.stop()

    async def run(self) -> None:
        while True:
            try:
                await self.run_once()
            except* (RedisError, OSError) as group:
                self._tell(", ".join(type(exc).__name__ for exc in group.exceptions))
            except* Exception:
                log.exception("subscription failed, subscribing again")
            await self._clock.sleep(PAUSE_S)

    async def run_once(self) -> None:
        """Serve one connection until it is lost. All waiters are woken once it has subscribed for them."""
        await self._subscription.run_once()

    async def _watch(self, prediction_id: PredictionId, held: Wait, until: float) -> Ending | Stored | None:
        loop = asyncio.get_running_loop()
        due = -math.inf  # of the next look: one per GAP_S on average, and BURST at once after a quiet time
        while not held.is_over:
            # the first news of a channel is that the subscription is active: the next look sees what ended before
            # `asyncio.timeout` takes 8 µs
            safety = loop.call_at(min(until, loop.time() + self.safety_s), held.news.set)
            await held.news.wait()
            safety.cancel()
            if held.ending is not None:
                return held.ending
            if held.is_over or loop.time() >= until:
                break
            now = self._clock.monotonic()
            due = max(due, now - BURST * GAP_S) + GAP_S
            with suppress(TimeoutError):
                try:
                    async with asyncio.timeout_at(until) as held.look:
                        if (stored := await self._look(prediction_id, held, due - now)) is not None:
                            return stored
                finally:
                    held.look = None
        return None

    async def _look(self, prediction_id: PredictionId, held: Wait, in_s: float) -> Stored | None:
        """Return the prediction if it is terminal."""
        if in_s > 0:
            await self._clock.sleep(in_s)
        held.news.clear()
        try:
            stored = await self._read(prediction_id, whole=held.whole) if await self._has_ended(prediction_id) else None
        except BackendUnavailable as exc:
            log.info("could not read a prediction, trying again", extra={"reason": str(exc)})
            return None
        return stored if stored is not None and stored.record.is_terminal else None

    def _hear(self, channel: bytes, data: bytes) -> None:
        name = channel.decode()
        if name != self._ends:
            self._wake(name, data)
            return
        prediction_id, ending = parse_message(data)
        if (wait := self._expected.get(prediction_id)) is not None:
            wait.ending = ending
            wait.news.set()

    def _tell(self, reason: str) -> None:
        if reason != self._told or self._subscription.was_active:
            log.warning("subscription lost, subscribing again", extra={"reason": reason})
            self._told = reason

    def _wake(self, channel: str, data: bytes = b"") -> None:
        events = parse_news(data) if data else ()
        for news in self._listeners.get(channel, ()):
            news.add(events)
        if channel == self._ends:  # it is active again: look for what was published meanwhile
            for wait in self._expected.values():
                wait.news.set()
