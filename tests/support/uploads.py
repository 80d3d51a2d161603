"""Make large forms, and measure how much a process grows while it receives or sends one."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct

T = TypeVar("T")

MIB: Final = 1 << 20


class Growth(Struct, frozen=True):
    up: int
    down: int


async def endless_form(size: int) -> AsyncIterator[bytes]:
    """Yield a form of boundary `b` with a file of `size` bytes, a whole number of MiB."""
    yield b'--b\r\ncontent-disposition: form-data; name="content"; filename="big.bin"\r\n\r\n'
    block = os.urandom(MIB)
    for _ in range(size // MIB):
        yield block
    yield b"\r\n--b--\r\n"


async def growth_of(pid: int, call: Callable[[], Awaitable[T]]) -> tuple[T, int]:
    """Return the call's result and how far the process's peak exceeded its former size, by the kernel's figures."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # restart the peak
    before = _kilobytes(pid, "VmRSS")
    result = await call()
    return result, (_kilobytes(pid, "VmHWM") - before) * 1024


def _kilobytes(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
