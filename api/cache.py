"""Keep what was looked up for a few seconds. Bounded, and forgets by age, or when it is told.

Those who want the same at once share one look. Never keeps a failure: what raised is asked for again by the next.
Where it is told to, it goes on with what it knew while whoever knows better is away.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from director.core.clock import Clock
from director.core.errors import BackendUnavailable

__all__ = ("BELIEVED_S", "Belief", "Cache")

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

# what is missing now was perhaps asked for just before it was made
LONGEST_ABSENCE_S: Final = 1.0
BELIEVED_S: Final = 3600.0

Belief = Callable[[], bool]
"""Is whoever knows better away, so that what was known up to an hour ago holds?"""


class Cache(Generic[Key, Value]):
    """At most `most` values, none older than `ttl_s`; while `believes` says so, none older than an hour."""

    def __init__(self, *, clock: Clock, ttl_s: float, most: int, believes: Belief | None = None) -> None:
        self._clock = clock
        self._believes = believes
        self._ttl_s = ttl_s
        self._most = most
        self._kept: OrderedDict[Key, tuple[float, Value | None]] = OrderedDict()
        self._loading: dict[Key, asyncio.Task[Value | None]] = {}

    async def get(self, key: Key, load: Callable[[], Awaitable[Value | None]]) -> Value | None:
        """The value as it was known lately, else as `load` finds it. None is kept too, but more briefly."""
        kept = self._kept.get(key)
        if kept is not None:
            over_s = self._clock.monotonic() - kept[0]
            if over_s < 0 or (self._believes is not None and over_s < BELIEVED_S and self._believes()):
                return kept[1]
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = asyncio.create_task(self._load(key, load))
            loading.add_done_callback(lambda task: task.cancelled() or task.exception())  # all may have left by then
        # who leaves does not take the others' value along
        return await asyncio.shield(loading)

    def forget(self, key: Key) -> None:
        """Whoever asks next is answered as it is now, not as a look that began before this finds it."""
        self._kept.pop(key, None)
        self._loading.pop(key, None)

    async def _load(self, key: Key, load: Callable[[], Awaitable[Value | None]]) -> Value | None:
        mine = asyncio.current_task()
        try:
            value = await load()
        except BackendUnavailable:
            kept = self._kept.get(key)  # who is away is found out by whoever asks first
            if kept is None or self._believes is None or self._clock.monotonic() - kept[0] >= BELIEVED_S:
                raise
            return kept[1]
        finally:
            is_wanted = self._loading.get(key) is mine
            if is_wanted:
                del self._loading[key]
        if not is_wanted:
            return value
        ttl_s = self._ttl_s if value is not None else min(self._ttl_s, LONGEST_ABSENCE_S)
        self._kept[key] = (self._clock.monotonic() + ttl_s, value)
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return value
