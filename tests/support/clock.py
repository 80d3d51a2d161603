"""A clock that stands still until the test moves it."""

import anyio
import anyio.lowlevel


class FakeClock:
    """A clock whose two times move together. A sleeper wakes as soon as the test has moved the clock that far."""

    def __init__(self, *, now_ms: int = 1_800_000_000_000) -> None:
        self._now_s = 0.0
        self._began_ms = now_ms
        self._moved = anyio.Event()

    def now_ms(self) -> int:
        return self._began_ms + int(self._now_s * 1000)

    def monotonic(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        until_s = self._now_s + seconds
        await anyio.lowlevel.checkpoint()
        while self._now_s < until_s:
            await self._moved.wait()

    def pass_time(self, seconds: float) -> None:
        self._now_s += seconds
        moved, self._moved = self._moved, anyio.Event()
        moved.set()
