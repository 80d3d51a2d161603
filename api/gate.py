"""Accept nothing until the server behind us was found good enough, and say at any time how it stands.

Looks again by itself while Redis is away. A server that would lose what it accepts is not waited for: whoever started
us is told, and the gate stays shut.
"""

import logging
from collections.abc import Callable
from typing import Final

import anyio
from redis.asyncio import Redis

from director.broker.durability import Server, check
from director.broker.rights import check_rights
from director.core.clock import Clock
from director.core.errors import BackendUnavailable, UnsafeBackend
from director.core.settings import CommonSettings

log = logging.getLogger(__name__)

PAUSE_S: Final = 1.0


class Gate:
    """`on_unsafe` hears of a server that is too weak, once. `is_up`: it was good when it was last looked at."""

    def __init__(
        self, redis: Redis, settings: CommonSettings, *, clock: Clock, on_unsafe: Callable[[UnsafeBackend], None]
    ) -> None:
        self._redis = redis
        self._settings = settings
        self._clock = clock
        self._on_unsafe = on_unsafe
        self._opened = anyio.Event()
        self._has_rights = False
        self.is_up = False

    def pass_through(self) -> None:
        """Raises BackendUnavailable while it is shut."""
        if not self._opened.is_set():
            raise BackendUnavailable("the server was not checked yet")

    async def opened(self, *, within_s: float) -> None:
        """Wait for it, but not longer than this."""
        with anyio.move_on_after(within_s):
            await self._opened.wait()

    async def run(self) -> None:
        """Until it is open, or never will be. Says what it waits for once, and again when that changes."""
        told = ""
        while not self._opened.is_set():
            try:
                server = await self.run_once()
            except BackendUnavailable as exc:
                if (reason := str(exc)) != told:
                    log.warning("redis is away, asking again", extra={"reason": reason})
                    told = reason
            except UnsafeBackend as exc:
                self._on_unsafe(exc)
                return
            else:
                log.info(
                    "redis is safe", extra={"server": f"{server.kind} {server.version}", "durability": server.level}
                )
                return
            await self._clock.sleep(PAUSE_S)

    async def run_once(self) -> Server:
        """Look at the server now. Raises BackendUnavailable, UnsafeBackend."""
        try:
            if not self._has_rights:
                await check_rights(self._redis)
                self._has_rights = True
            server = await check(self._redis, self._settings)
        except (BackendUnavailable, UnsafeBackend):
            self.is_up = False
            raise
        self._opened.set()
        self.is_up = True
        return server
