"""Hold responses until their prediction has ended: one subscription for the whole process, however many wait.

Subscribes to a prediction's channel only while somebody waits for it, or listens to it in another room. Never trusts a
message for more than a hint: whoever is woken looks whether it has ended, at a bounded pace, and every two seconds in
any case, so that a lost message or connection costs time and never an answer. Never reads a prediction before it has
ended: its progress is nothing to who waits for its end. Ends nothing: who leaves takes only the own wait along.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import anyio
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from director.core import keys
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId
from director.core.redis_client import text
from director.core.schema import Stored

__all__ = ("Waiters",)

log = logging.getLogger(__name__)

SAFETY_S: Final = 2.0
PAUSE_S: Final = 0.5  # before a lost subscription is made again
SILENCE_S: Final = 10.0  # after it the connection is asked whether it lives

# A model may write hundreds of events a second. One that ends quickly must not be made to wait for its turn.
GAP_S: Final = 0.05
BURST: Final = 4

# of inputs, which are answered again after the wait; what a request takes beside is about as much again
MOST_BYTES: Final = 128 << 20

HasEnded = Callable[[PredictionId], Awaitable[bool]]
Read = Callable[[PredictionId], Awaitable[Stored | None]]


class Waiters:
    """At most `most` waits at once; `has_ended` is cheap, `read` gives a prediction as it is now."""

    def __init__(self, redis: Redis, *, has_ended: HasEnded, read: Read, clock: Clock, most: int) -> None:
        self._redis = redis
        self._has_ended = has_ended
        self._read = read
        self._clock = clock
        self._most = most
        self._listeners: dict[str, set[asyncio.Event]] = {}
        self._changed: set[str] = set()  # channels that somebody came to or left
        self._has_changed = asyncio.Event()
        self._held: set[anyio.CancelScope] = set()
        self._weight = 0
        self._is_leaving = False
        self._told = ""  # of what is wrong with the subscription

    @property
    def waiting(self) -> int:
        return len(self._held)

    def has_room(self, weight: int = 0) -> bool:
        """For one more wait, during which so many bytes are held?"""
        return self.waiting < self._most and self._weight + weight <= MOST_BYTES

    async def ended(self, prediction_id: PredictionId, *, seconds: float, weight: int = 0) -> Stored | None:
        """The prediction once it is terminal; None when it is not, `seconds` from now."""
        if self._is_leaving:
            return None
        with self.listening(prediction_id) as news, anyio.move_on_after(seconds) as scope:
            self._held.add(scope)
            self._weight += weight
            try:
                return await self._watch(prediction_id, news)
            finally:
                self._held.discard(scope)
                self._weight -= weight
        return None

    @contextmanager
    def listening(self, prediction_id: PredictionId) -> Iterator[asyncio.Event]:
        """Set when something may have happened to it, and once when the subscription stands.

        The listener clears it before it looks, and then misses nothing but what a lost connection swallows.
        """
        channel = keys.channel(prediction_id)
        news = asyncio.Event()
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
        for scope in self._held:
            scope.cancel()

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
        finally:
            with anyio.CancelScope(shield=True):
                await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _watch(self, prediction_id: PredictionId, news: asyncio.Event) -> Stored:
        pace = _Pace(self._clock)
        while True:
            # the first news is that the subscription stands: what ended before that is seen by the look after it
            with anyio.move_on_after(SAFETY_S):
                await news.wait()
            await pace.turn()
            news.clear()
            try:
                stored = await self._read(prediction_id) if await self._has_ended(prediction_id) else None
            except BackendUnavailable as exc:
                log.info("could not look at a prediction, waiting on", extra={"reason": str(exc)})
                continue
            if stored is not None and stored.record.is_terminal:
                return stored

    def _change(self, channel: str) -> None:
        self._changed.add(channel)
        self._has_changed.set()

    async def _subscribe(self, pubsub: PubSub) -> None:
        """Follow who comes and goes; those of one moment share a command."""
        subscribed: set[str] = set()
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
        is_asked = False
        while True:
            message: dict[str, Any] | None = await pubsub.get_message(timeout=SILENCE_S)
            if message is not None:
                is_asked = False
                self._told = ""
                if message["type"] in ("message", "subscribe"):
                    self._wake(text(message["channel"]))
            elif is_asked:
                raise RedisConnectionError("no answer to a ping")
            else:
                is_asked = True
                await pubsub.ping()

    def _tell(self, reason: str) -> None:
        """Once, and not every half a second for as long as it lasts."""
        if reason != self._told:
            log.warning("subscription lost, making it again", extra={"reason": reason})
            self._told = reason

    def _wake(self, channel: str) -> None:
        for news in self._listeners.get(channel, ()):
            news.set()


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
