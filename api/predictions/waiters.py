"""Hold responses until their prediction has ended: one subscription for the whole process, however many wait.

What is filed to be waited for names this process, and whatever ends it tells it here, with all that is answered. A
prediction's own channel is subscribed to only while somebody waits for what another request filed, or listens in
another room. Its messages are hints: whoever is woken looks whether it has ended, at a bounded pace. Everybody looks
every two seconds in any case, so that a lost message or connection costs time and never an answer. Where an end was
found that nobody told, which is how a director of the former release ends it, the channels are listened to as well for
a while. Never reads a prediction before it has ended: its progress is nothing to who waits for its end. Ends nothing:
who leaves takes only the own wait along.
"""

import asyncio
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final

import anyio
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from director.broker import keys
from director.broker.redis_client import text
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId
from director.core.schema import Stored
from director.store.endings import Ending, heard

log = logging.getLogger(__name__)

SAFETY_S: Final = 2.0
UNTOLD_S: Final = 60.0  # so long the channels are listened to, after an end that was not told
PAUSE_S: Final = 0.5  # before a lost subscription is made again
SILENCE_S: Final = 10.0  # after it the connection is asked whether it lives

# A model may write hundreds of events a second. One that ends quickly must not be made to wait for its turn.
GAP_S: Final = 0.05
BURST: Final = 4

# of inputs, which are answered again after the wait; what a request takes beside is about as much again
MOST_BYTES: Final = 128 << 20

HasEnded = Callable[[PredictionId], Awaitable[bool]]
Read = Callable[[PredictionId], Awaitable[Stored | None]]


class Wait:
    """That of one caller, from before its prediction is filed: no end comes too early for it. Leave it once."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.ending: Ending | None = None
        self.is_told = False
        self._place: dict[PredictionId, Wait] = {}
        self._id: PredictionId | None = None

    def enter(self, place: "dict[PredictionId, Wait]", prediction_id: PredictionId) -> None:
        """It is for this prediction from now on, and for none before."""
        self.leave()
        self._place, self._id = place, prediction_id
        place[prediction_id] = self

    def leave(self) -> None:
        """Nothing more is to be heard."""
        if self._id is not None:
            self._place.pop(self._id, None)


class Waiters:
    """At most `most` waits at once; `has_ended` is cheap, `read` gives a prediction as it is now."""

    def __init__(self, redis: Redis, *, has_ended: HasEnded, read: Read, clock: Clock, most: int) -> None:
        self._redis = redis
        self._has_ended = has_ended
        self._read = read
        self._clock = clock
        self._most = most
        self._name = secrets.token_hex(4)
        self._ends = keys.ends_channel(self._name)
        self._expected: dict[PredictionId, Wait] = {}
        self._listeners: dict[str, set[asyncio.Event]] = {}
        self._changed: set[str] = set()  # channels that somebody came to or left
        self._has_changed = asyncio.Event()
        self._held: set[asyncio.Timeout] = set()
        self._weight = 0
        self._is_leaving = False
        self._is_silent = True
        self._listens_until = -math.inf
        self._told = ""  # of what is wrong with the subscription

    @property
    def waiting(self) -> int:
        return len(self._held)

    def has_room(self, weight: int = 0) -> bool:
        """For one more wait, during which so many bytes are held?"""
        return self.waiting < self._most and self._weight + weight <= MOST_BYTES

    def expect(self, prediction_id: PredictionId, wait: Wait) -> str:
        """It is filed now, and then waited for: what to name as its `waiter`."""
        wait.enter(self._expected, prediction_id)
        return self._name

    async def ended(
        self,
        prediction_id: PredictionId,
        *,
        seconds: float,
        weight: int = 0,
        wait: Wait | None = None,
        gone: "asyncio.Future[None] | None" = None,
    ) -> Ending | Stored | None:
        """How the prediction ended, or what it is, once it is terminal; None when it is not, `seconds` from now.

        `wait`: with which it was filed, where it was by this request; `gone` is done when who waits has left.
        """
        if self._is_leaving:
            return None
        if wait is None or self._expected.get(prediction_id) is not wait:  # it is another request's
            wait = None
        news = asyncio.Event() if wait is None else wait.news
        is_told = wait is not None and self._clock.monotonic() >= self._listens_until
        with suppress(TimeoutError), nullcontext(news) if is_told else self.listening(prediction_id, news):
            async with asyncio.timeout(seconds) as limit:
                with self._holding(limit, weight, gone):
                    return await self._watch(prediction_id, news, wait)
        return None

    @contextmanager
    def _holding(self, limit: asyncio.Timeout, weight: int, gone: "asyncio.Future[None] | None") -> Iterator[None]:
        def leave(_: object) -> None:
            if limit in self._held:  # its end may have come in the same moment
                _end(limit)

        self._held.add(limit)
        self._weight += weight
        if gone is not None:
            gone.add_done_callback(leave)
        try:
            yield
        finally:
            if gone is not None:
                gone.remove_done_callback(leave)
            self._held.discard(limit)
            self._weight -= weight

    @contextmanager
    def listening(self, prediction_id: PredictionId, news: asyncio.Event | None = None) -> Iterator[asyncio.Event]:
        """Set when something may have happened to it, and once when the subscription stands.

        The listener clears it before it looks, and then misses nothing but what a lost connection swallows.
        """
        channel = keys.channel(prediction_id)
        news = news or asyncio.Event()
        self._listeners.setdefault(channel, set()).add(news)
        self._change(channel)
        try:
            yield news
        finally:
            self._listeners[channel].discard(news)
            if not self._listeners[channel]:
                del self._listeners[channel]
                self._change(channel)

    def release(self) -> None:
        """The process is to end: whoever waits now or later has waited long enough."""
        self._is_leaving = True
        for limit in self._held:
            _end(limit)

    async def run(self) -> None:
        """Keep one subscription, and make it again when it is lost."""
        while True:
            try:
                await self.run_once()
            except* (RedisError, OSError) as group:
                self._tell(", ".join(type(exc).__name__ for exc in group.exceptions))
            except* Exception:
                log.exception("subscription failed, making it again")
            await self._clock.sleep(PAUSE_S)

    async def run_once(self) -> None:
        """One connection, until it is lost. All who wait are woken once it has subscribed for them."""
        pubsub = self._redis.pubsub()
        try:
            await pubsub.connect()  # type: ignore[no-untyped-call]
            self._changed.update(self._listeners)
            self._has_changed.set()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._subscribe, pubsub)
                tasks.start_soon(self._listen, pubsub)
                tasks.start_soon(self._ask_where_it_is_silent, pubsub)
        finally:
            with anyio.CancelScope(shield=True):
                await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _watch(self, prediction_id: PredictionId, news: asyncio.Event, wait: Wait | None) -> Ending | Stored:
        pace = _Pace(self._clock)
        while True:
            # the first news of a channel is that the subscription stands: what ended before is seen by the next look
            with suppress(TimeoutError):
                async with asyncio.timeout(SAFETY_S):
                    await news.wait()
            if wait is not None and wait.ending is not None:
                return wait.ending
            await pace.turn()
            news.clear()
            try:
                stored = await self._read(prediction_id) if await self._has_ended(prediction_id) else None
            except BackendUnavailable as exc:
                log.info("could not look at a prediction, waiting on", extra={"reason": str(exc)})
                continue
            if stored is not None and stored.record.is_terminal:
                if wait is not None and not wait.is_told:
                    self._listens_until = self._clock.monotonic() + UNTOLD_S
                return stored

    def _change(self, channel: str) -> None:
        self._changed.add(channel)
        self._has_changed.set()

    async def _subscribe(self, pubsub: PubSub) -> None:
        """Follow who comes and goes; those of one moment share a command."""
        subscribed: set[str] = set()
        await pubsub.subscribe(self._ends)
        while True:
            await self._has_changed.wait()
            self._has_changed.clear()
            changed, self._changed = self._changed, set()
            wanted = {channel for channel in changed if channel in self._listeners}
            if left := (changed - wanted) & subscribed:
                await pubsub.unsubscribe(*left)
            if new := wanted - subscribed:
                await pubsub.subscribe(*new)
            for channel in wanted & subscribed:
                self._wake(channel)
            subscribed = (subscribed | new) - left

    async def _listen(self, pubsub: PubSub) -> None:
        connection: Any = pubsub.connection
        while True:
            # of `get_message` only what is needed: it is on the way of every answer
            said = await connection.read_response(timeout=math.inf, push_request=True)
            self._is_silent, self._told = False, ""
            if said[0] == b"message":
                self._hear(said[1], said[2])
            elif (message := await pubsub.handle_message(said)) is not None and message["type"] == "subscribe":  # type: ignore[no-untyped-call]
                self._wake(text(message["channel"]))

    async def _ask_where_it_is_silent(self, pubsub: PubSub) -> None:
        is_asked = False
        while True:
            self._is_silent = True
            await asyncio.sleep(SILENCE_S)
            if self._is_silent and is_asked:
                raise RedisConnectionError("no answer to a ping")
            is_asked = self._is_silent
            if is_asked:
                await pubsub.ping()

    def _hear(self, channel: bytes, data: bytes) -> None:
        name = channel.decode()
        if name != self._ends:
            self._wake(name)
            return
        prediction_id, ending = heard(data)
        if (wait := self._expected.get(prediction_id)) is not None:
            wait.ending, wait.is_told = ending, True
            wait.news.set()

    def _tell(self, reason: str) -> None:
        """Once, and not every half a second for as long as it lasts."""
        if reason != self._told:
            log.warning("subscription lost, making it again", extra={"reason": reason})
            self._told = reason

    def _wake(self, channel: str) -> None:
        for news in self._listeners.get(channel, ()):
            news.set()
        if channel == self._ends:  # it stands again: what was told meanwhile is to be looked at
            for wait in self._expected.values():
                wait.news.set()


def _end(limit: asyncio.Timeout) -> None:
    """Now, if it was not to be now."""
    if not limit.expired():
        limit.reschedule(0)


class _Pace:
    """At most one turn in GAP_S on average; after a quiet while, BURST of them at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due = clock.monotonic() - BURST * GAP_S

    async def turn(self) -> None:
        now = self._clock.monotonic()
        self._due = max(self._due, now - BURST * GAP_S) + GAP_S
        if self._due > now:
            await self._clock.sleep(self._due - now)
