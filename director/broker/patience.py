"""A time-out for a connection on which bytes may still move: it counts from the last look at which some had.

A time-out for a whole exchange must know how large that is. 24 outputs of 8 MB take 5 s on a link of 40 MB/s: with a
time-out of 3 s none was known to be written after 45 s, and 1,341 MB were sent. One timer stands for a block, as in
`asyncio.timeout`, and the connection is looked at only when it goes off.
"""

import asyncio
from types import TracebackType
from typing import Final, Protocol

__all__ = ("AT_ONCE_BYTES", "Patience", "Watched")

# The socket takes this much without a wait, so the time-out for it begins when it is sent
AT_ONCE_BYTES: Final = 64 * 1024
# The last bytes that left us may still be on the way, in the buffers of kernels and proxies: up to 4 MiB on Linux
SLOWEST_BYTES_S: Final = 2 << 20
BUFFERED_BYTES: Final = 8 << 20


class Watched(Protocol):
    """A connection that counts what moves on it."""

    @property
    def reads(self) -> int:
        """How often some bytes came."""

    @property
    def unsent(self) -> int:
        """Bytes that are still to leave this process."""


class Patience:
    """Raises TimeoutError from its block when nothing has moved on a connection for `limit_s`.

    A connection that hangs from the start is noticed after `limit_s`, one that moved before within twice that time.
    `sending`: bytes that the block is about to send. A large part of them may be in buffers that cannot be seen from
    here, and gets the time that it takes there.
    """

    __slots__ = ("_canceling", "_connection", "_is_over", "_limit_s", "_moved", "_task", "_timer")

    def __init__(self, connection: Watched, limit_s: float, *, sending: int = 0) -> None:
        self._connection = connection
        self._limit_s = limit_s
        self._moved = (connection.reads, 0)
        if sending > AT_ONCE_BYTES:
            self._limit_s += min(sending, BUFFERED_BYTES) / SLOWEST_BYTES_S
            self._moved = (connection.reads, sending)
        self._is_over = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        self._task, self._canceling = task, task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._look)

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None) -> None:
        self._timer.cancel()
        if self._is_over and self._task.uncancel() <= self._canceling and kind is asyncio.CancelledError:
            raise TimeoutError from exc

    def _look(self) -> None:
        moved = (self._connection.reads, self._connection.unsent)
        if moved == self._moved:
            self._is_over = True
            self._task.cancel()
            return
        self._moved = moved
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._look)
