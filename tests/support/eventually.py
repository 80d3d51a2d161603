"""Wait for a condition instead of sleeping, and report the last look on failure."""

import inspect
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar, overload

import anyio
import anyio.lowlevel

Seen = TypeVar("Seen")

EVERY_S = 0.01
LIMIT_S = 20.0  # a busy machine may take many times as long


@overload
async def eventually(
    look: Callable[[], Awaitable[Seen]], what: str, *, until: Callable[[Seen], object] = bool, limit_s: float = LIMIT_S
) -> Seen: ...


@overload
async def eventually(
    look: Callable[[], Seen], what: str, *, until: Callable[[Seen], object] = bool, limit_s: float = LIMIT_S
) -> Seen: ...


async def eventually(
    look: Callable[[], Awaitable[Seen] | Seen],
    what: str,
    *,
    until: Callable[[Seen], object] = bool,
    limit_s: float = LIMIT_S,
) -> Seen:
    """Return what `look` gives once `until` holds for it. Raises AssertionError with `what` after `limit_s`."""
    give_up = anyio.current_time() + limit_s
    while True:
        found = look()
        seen = await found if inspect.isawaitable(found) else found
        if until(seen):
            return seen
        if anyio.current_time() > give_up:
            raise AssertionError(f"{what}: not in {limit_s:g} s. Last seen: {seen!r}")
        await anyio.sleep(EVERY_S)


def wait_until(
    look: Callable[[], object],
    what: str | Callable[[], str],
    *,
    limit_s: float = LIMIT_S,
    every_s: float = EVERY_S,
) -> None:
    """Wait for the condition where there is no loop. `what` may be a call that tells what is seen instead."""
    give_up = time.monotonic() + limit_s
    while not look():
        if time.monotonic() > give_up:
            raise AssertionError(f"not in {limit_s:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(every_s)


async def every(seconds: float, times: float = math.inf) -> AsyncIterator[int]:
    """Count from 0 at a pace, the first at once: for loads, and for what others do as often."""
    number = 0
    while number < times:
        yield number
        number += 1
        await anyio.sleep(seconds)


async def until_time(at_s: float) -> None:
    """Wait until `time.monotonic()` is this, for loads that come at a rate."""
    await anyio.sleep(max(0.0, at_s - time.monotonic()))


async def turns(count: int = 1) -> None:
    """Let every task that is ready run, `count` times. No time passes."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()
