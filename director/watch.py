"""Look after one model server: learn whether it is ready, and have a dead one restarted.

The only room that asks a server how it is. Claims follow from it: nothing is claimed for a server that is not ready.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec.structs import replace

from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.runners.runner import Health, HealthStatus
from director.servers import Server, Servers

__all__ = ("Watch",)

log = logging.getLogger(__name__)

SOON_S: Final = 0.25
LATER_S: Final = 5.0
AWAY_S: Final = 1.0
RUNNING: Final = (HealthStatus.READY, HealthStatus.BUSY)

# How long until the next look
PAUSES: Final[dict[HealthStatus, float]] = {
    HealthStatus.READY: LATER_S,
    HealthStatus.BUSY: LATER_S,
    HealthStatus.STARTING: SOON_S,
    HealthStatus.UNREACHABLE: SOON_S,
    HealthStatus.UNHEALTHY: 1.0,
    HealthStatus.DEFUNCT: 1.0,
    HealthStatus.SETUP_FAILED: LATER_S,
}
LEVELS: Final[dict[HealthStatus, int]] = {
    HealthStatus.SETUP_FAILED: logging.ERROR,
    HealthStatus.DEFUNCT: logging.ERROR,
    HealthStatus.UNHEALTHY: logging.WARNING,
    HealthStatus.UNREACHABLE: logging.WARNING,
}


class Watch:
    """The watch over one server. `register` is awaited each time the server becomes ready, before it is given work."""

    def __init__(
        self, server: Server, servers: Servers, clock: Clock, register: Callable[[Server], Awaitable[object]]
    ) -> None:
        self._server = server
        self._servers = servers
        self._clock = clock
        self._register = register
        self._seen: HealthStatus | None = None

    async def run(self) -> None:
        """Look, for ever: often while it starts or is away, seldom once it is ready, at once when in doubt."""
        while True:
            try:
                health = await self.run_once()
            except BackendUnavailable as exc:
                log.warning("registering a model failed", extra={"error": str(exc)})
                await self._clock.sleep(AWAY_S)
                continue
            if self._server.doubt.is_set():
                await self._clock.sleep(AWAY_S)
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._server.doubt.wait(), PAUSES[health.status])

    async def run_once(self) -> Health:
        """One look. A server whose worker is dead, or that a run made us doubt, is asked to make room for a new one."""
        server = self._server
        health = await server.runner.health()
        if health.status is not self._seen:
            log.log(
                LEVELS.get(health.status, logging.INFO),
                "model server is " + health.status.replace("_", " "),
                extra={"server": server.runner.url, "detail": health.detail, "setup_logs": health.setup_logs},
            )
        became_ready = health.can_run and self._seen not in RUNNING
        self._seen = health.status
        if health.status is HealthStatus.DEFUNCT or (server.doubt.is_set() and health.can_run and not server.busy):
            log.warning("asking a model server to end", extra={"server": server.runner.url})
            await server.runner.shutdown()
            self._seen = HealthStatus.DEFUNCT
            health = replace(health, status=HealthStatus.DEFUNCT)
        elif became_ready:
            await self._register(server)
        if not health.can_run:  # it is being started anew: what was doubted is gone
            server.doubt.clear()
        self._servers.saw(server, health)
        return health
