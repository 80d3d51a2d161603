"""Keep requests from Redis until it was found safe."""

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
from director.runtime.process import Recent

log = logging.getLogger(__name__)
GATE_PAUSE_S: Final = 1.0


class Gate:
    """Accepts nothing until Redis was found safe, and `is_open` from then on. `is_up`: it answered and was safe at the
    last check. `on_unsafe` is called once for a server that would lose what it accepts, and the gate stays shut.
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
        self._recent = Recent(self.run_once, clock)
        self.is_up = False

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    def pass_through(self) -> None:
        if not self.is_open:
            raise BackendUnavailable("the server was not checked yet")

    async def wait_until_open(self, *, within_s: float) -> None:
        with anyio.move_on_after(within_s):
            await self._opened.wait()

    async def run(self) -> None:
        logged = ""
        while not self._opened.is_set():
            try:
                server = await self.run_once()
            except BackendUnavailable as exc:
                if (reason := str(exc)) != logged:
                    log.warning("redis is away, asking again", extra={"reason": reason})
                    logged = reason
            except UnsafeBackend as exc:
                self._on_unsafe(exc)
                return
            else:
                log.info(
                    "redis is safe", extra={"server": f"{server.kind} {server.version}", "durability": server.level}
                )
                return
            await self._clock.sleep(GATE_PAUSE_S)

    async def check_recently(self) -> Server:
        """Return what `run_once` found in the last second: callers without a token ask, as often as they like."""
        return await self._recent.get()

    async def run_once(self) -> Server:
        try:
            if not self._has_rights:
                await check_rights(self._redis, "api")
                self._has_rights = True
            server = await check(self._redis, self._settings)
        except (BackendUnavailable, UnsafeBackend):
            self.is_up = False
            raise
        self._opened.set()
        self.is_up = True
        return server
