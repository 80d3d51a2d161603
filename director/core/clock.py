"""Read the time. Only this module asks the machine; tests pass their own clock. The Redis server's clock judges leases
and deadlines; this one paces loops and times runs.
"""

import time
from typing import Protocol

import anyio


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970."""

    def monotonic(self) -> float:
        """Seconds that never go back, for durations."""

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)
