"""Accept nothing until Redis was found safe, and keep whether it is up.

While Redis is away, it is asked again every second. If Redis would lose what it accepts, `on_unsafe` is called and the
gate stays shut.
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
    """Checks one Redis server. `is_up`: the server answered and was safe at the last check.

    `on_unsafe` is called once, for a server that is too weak.
    """

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
        """Raise BackendUnavailable while the gate is shut."""
        if not self._opened.is_set():
            raise BackendUnavailable("the server was not checked yet")

    async def opened(self, *, within_s: float) -> None:
        """Wait until the gate is open, at most `within_s` seconds."""
        with anyio.move_on_after(within_s):
            await self._opened.wait()

    async def run(self) -> None:
        """Check until the gate is open or the server is unsafe. Logs why it waits, once per reason."""
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
        """Check the server now. Raises BackendUnavailable and UnsafeBackend."""
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
