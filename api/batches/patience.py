"""Repeat calls while Redis or the file store is away. A keeper that loses its batch cancels them. Say when bytes that
are missing are gone.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import FileId

Reply = TypeVar("Reply")
PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 15.0
GONE_S: Final = 3600.0  # for which the bytes of a recorded file are missing until they count as gone


async def with_patience(call: Callable[[], Awaitable[Reply]]) -> Reply:
    """Call until Redis and the file store answer, at a slower and slower pace."""
    pause_s = PAUSE_S
    while True:
        try:
            return await call()
        except BackendUnavailable:
            await asyncio.sleep(pause_s * (0.5 + random.random()))  # noqa: S311 - a spread
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)


class Missing:
    """Since when the file store has not the bytes of files that have a record. It may have them again: a volume that is
    not mounted, or another store for a while.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s: dict[FileId, float] = {}

    def forget(self, file_id: FileId) -> None:
        self._since_s.pop(file_id, None)

    def is_gone(self, file_id: FileId) -> bool:
        """Note that the bytes are missing, and return whether they have been for so long that they count as gone."""
        now_s = self._clock.monotonic()
        return now_s - self._since_s.setdefault(file_id, now_s) >= GONE_S
