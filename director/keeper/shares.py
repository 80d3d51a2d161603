"""Share the courier's places among receivers: so many attempts at once per host, and a line behind them with an end.

A host that keeps silent fills its own share and no more. Knows hosts by name only, and never sends anything.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from msgspec import Struct, field

__all__ = ("PLACES", "PLACES_PER_HOST", "Shares")

PLACES: Final = 256
PLACES_PER_HOST: Final = 8
# Long enough that a quick receiver has always somebody in line until the next round begins
LONGEST_LINE: Final = 248


class _Host(Struct, eq=False):
    """`count`: who has a place or stands in line for one."""

    count: int = 0
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PLACES_PER_HOST))


class Shares:
    """Who has a place, and who stands in line. A host is forgotten with its last one."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host] = {}

    @property
    def room(self) -> int:
        """Places that are free. Whoever stands in line takes none: it waits for one of its host's."""
        return PLACES - sum(min(host.count, PLACES_PER_HOST) for host in self._hosts.values())

    @property
    def are_empty(self) -> bool:
        """Is nobody left?"""
        return not self._hosts

    def join(self, name: str) -> bool:
        """Stand in the line of a host; False where it is full. Whoever joined has to `leave`."""
        host = self._hosts.setdefault(name, _Host())
        if host.count >= PLACES_PER_HOST + LONGEST_LINE:
            return False
        host.count += 1
        return True

    def leave(self, name: str) -> None:
        """Out of the line, or out of the place."""
        host = self._hosts[name]
        host.count -= 1
        if not host.count:
            del self._hosts[name]

    @asynccontextmanager
    async def place(self, name: str) -> AsyncGenerator[None]:
        """Wait in line for a place of this host."""
        async with self._hosts[name].places:
            yield
