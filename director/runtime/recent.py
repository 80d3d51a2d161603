"""Share the result of a look among all that ask within a second: callers without a token ask as often as they like."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from director.core.clock import Clock

T = TypeVar("T")

FRESH_S: Final = 1.0


class Recent(Generic[T]):
    """Looks at most once in FRESH_S, one look at a time. An error of `look` is shared like a result."""

    def __init__(self, look: Callable[[], Coroutine[Any, Any, T]], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._task: asyncio.Task[T] | None = None
        self._looked_at = 0.0

    async def get(self) -> T:
        now = self._clock.monotonic()
        if self._task is None or (self._task.done() and now - self._looked_at >= FRESH_S):
            self._task, self._looked_at = asyncio.create_task(self._look()), now
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())  # all may have left
        return await asyncio.shield(self._task)
