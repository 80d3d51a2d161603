"""Ever longer pauses between tries, until there was enough of them.

Never decides what is tried.
"""

import asyncio
from itertools import chain, repeat
from typing import Final

__all__ = ("Patience",)

PAUSES_S: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1)
LONGEST_S: Final = 0.25


class Patience:
    """Starts to wear off at the first pause."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._until: float | None = None
        self._pauses = chain(PAUSES_S, repeat(LONGEST_S))

    async def pause(self) -> bool:
        """Wait a little longer than the last time. False, at once, when patience is at its end."""
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + self._limit_s
        if now >= self._until:
            return False
        await asyncio.sleep(min(next(self._pauses), self._until - now))
        return True
