"""Repeat calls while Redis or the file store is away. A keeper that loses its batch cancels them."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from director.core.errors import BackendUnavailable

Reply = TypeVar("Reply")
PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 15.0


async def with_patience(call: Callable[[], Awaitable[Reply]]) -> Reply:
    """Call until Redis and the file store answer, at a slower and slower pace."""
    pause_s = PAUSE_S
    while True:
        try:
            return await call()
        except BackendUnavailable:
            await asyncio.sleep(pause_s * (0.5 + random.random()))  # noqa: S311 - a spread
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
