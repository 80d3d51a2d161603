"""What time it is. The only room that asks the machine; tests hand in a clock of their own.

Leases and deadlines are judged by the Redis server's clock, never by this one, which paces loops and times runs.
"""

import time
from typing import Protocol

import anyio


class Clock(Protocol):
    """Time as the rooms see it."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Seconds that only ever grow, for durations."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)
