"""Large forms, and how much a process grows while it takes one in or gives one out.

Never holds such a form itself.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct

__all__ = ("MIB", "Growth", "endless_form", "growth_of")

T = TypeVar("T")

MIB: Final = 1 << 20


class Growth(Struct, frozen=True):
    """By how many bytes a process grew at most, beyond what it had before, while a file went up and down."""

    up: int
    down: int


async def endless_form(size: int) -> AsyncIterator[bytes]:
    """A form of boundary `b` with a file of `size` bytes, a whole number of MiB."""
    yield b'--b\r\ncontent-disposition: form-data; name="content"; filename="big.bin"\r\n\r\n'
    block = os.urandom(MIB)
    for _ in range(size // MIB):
        yield block
    yield b"\r\n--b--\r\n"


async def growth_of(pid: int, call: Callable[[], Awaitable[T]]) -> tuple[T, int]:
    """What the call returns, and how far the process's peak was above what it had before, by the kernel's books."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
    before = _kilobytes(pid, "VmRSS")
    result = await call()
    return result, (_kilobytes(pid, "VmHWM") - before) * 1024


def _kilobytes(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
