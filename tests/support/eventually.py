"""Wait for what has to become true, instead of sleeping and hoping.

Looks again and again, returns what it saw as soon as it is as it should be, and says what it saw last when it never is.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

import anyio

__all__ = ("eventually",)

Seen = TypeVar("Seen")

EVERY_S = 0.01
LIMIT_S = 20.0  # a busy machine may take many times what it takes alone


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
    """What `look` gives once `until` holds for it. `what` names it for whoever reads the failure."""
    give_up = anyio.current_time() + limit_s
    while True:
        found = look()
        seen = await found if inspect.isawaitable(found) else found
        if until(seen):
            return seen
        if anyio.current_time() > give_up:
            raise AssertionError(f"{what}: not in {limit_s:g} s. Last seen: {seen!r}")
        await anyio.sleep(EVERY_S)
