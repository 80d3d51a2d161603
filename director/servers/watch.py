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
from director.core.errors import BackendUnavailable, DirectorError
from director.servers.recovery import UNHEALTHY_S, Recovery
from director.servers.runners.runner import Health, HealthStatus
from director.servers.servers import Server, Servers

__all__ = ("Watch",)

log = logging.getLogger(__name__)

SOON_S: Final = 0.25
LATER_S: Final = 5.0
SETUP_LOG_CHARS: Final = 4096
AWAY_S: Final = 1.0
END_AGAIN_S: Final = 15.0  # a server takes up to 11 s to end
STRANGER_S: Final = 5.0  # BUSY for so long while nothing of ours runs there: it and we have lost count

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
    """The watch over one server. `register` is awaited each time the server becomes ready, before it is given work.

    `note_setup` is awaited when a setup has ended, well or not, until it returns True once. `setup_retry_s`: how long
    after a failed one the server is asked to end; 0 where it is left as it is.
    """

    def __init__(
        self,
        server: Server,
        servers: Servers,
        clock: Clock,
        register: Callable[[Server, Health], Awaitable[object]],
        note_setup: Callable[[Server, Health], Awaitable[bool]],
        *,
        setup_retry_s: float = 0,
    ) -> None:
        self._server = server
        self._servers = servers
        self._clock = clock
        self._register = register
        self._note_setup = note_setup
        self._recovery = Recovery({HealthStatus.SETUP_FAILED: setup_retry_s, HealthStatus.UNHEALTHY: UNHEALTHY_S})
        self._noted: tuple[str, bool] | None = None  # of which start, and how it went
        self._seen: HealthStatus | None = None
        self._registered = False
        self._asked_to_end_at: float | None = None
        self._stranger: tuple[float, int] | None = None  # since when, and how much we had started by then

    async def run(self) -> None:
        """Look, for ever: often while it starts or is away, seldom once it is ready, at once when in doubt."""
        while True:
            try:
                health = await self.run_once()
            except BackendUnavailable as exc:
                log.warning("registering a model failed", extra={"error": str(exc)})
                await self._clock.sleep(AWAY_S)
                continue
            except DirectorError:  # raised on purpose: somebody has to mend it
                raise
            except Exception:  # a fault in looking at one server must not end the runs on all the others
                log.exception("looking at a model server broke", extra={"server": self._server.runner.url})
                await self._clock.sleep(LATER_S)
                continue
            if self._server.doubt.is_set():
                await self._clock.sleep(min(AWAY_S, PAUSES[health.status]))
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._server.doubt.wait(), PAUSES[health.status])

    async def run_once(self) -> Health:
        """One look. A server whose worker is dead, or that a run made us doubt, is asked to make room for a new one."""
        server, started = self._server, self._server.runs
        health = await server.runner.health()
        self._judge_start(health)
        self._judge_count(health, started)
        # where a start is no more than a word, nobody needs to wait for the runs beside it
        in_peace = not server.busy or not server.runner.capabilities.restarts
        if health.status is HealthStatus.DEFUNCT or (server.doubt.is_set() and health.can_run and in_peace):
            await self._end_server()
            health = replace(health, status=HealthStatus.DEFUNCT)
        elif server.runner.capabilities.restarts and self._recovery.is_due(
            health, self._clock.monotonic(), is_idle=not server.busy
        ):
            await self._end_server()
        elif health.can_run and not self._registered:
            await self._register(server, health)
            self._registered = True
        self._report(health)
        self._servers.saw(server, health)
        await self._tell_setup(health)
        return health

    async def _tell_setup(self, health: Health) -> None:
        """Have the end of a setup noted, once for each start. Last of all: no work waits for it."""
        setup = health.since, health.can_run
        if health.setup is None or setup == self._noted:
            return
        if not health.can_run and health.status is not HealthStatus.SETUP_FAILED:
            return
        try:
            if await self._note_setup(self._server, health):
                self._noted = setup
        except BackendUnavailable as exc:
            log.warning("noting a setup failed", extra={"error": str(exc)})

    def _judge_start(self, health: Health) -> None:
        """Is this the server that we knew? Doubt and registration belong to one start of it."""
        server = self._server
        is_new = health.since not in ("", server.since)
        if is_new or (not health.can_run and not server.since):
            server.doubt.clear()
        if is_new:
            self._servers.started(server, health.since)
            self._asked_to_end_at = self._stranger = None
        if is_new or not health.can_run:
            self._registered = False

    def _judge_count(self, health: Health, started: int) -> None:
        """Compare its count with ours. Nothing may have run of ours at the look, nor since the one that began it."""
        server, now = self._server, self._clock.monotonic()
        if health.status is not HealthStatus.BUSY or server.running or server.runs != started:
            self._stranger = None
        elif self._stranger is None or self._stranger[1] != started:
            self._stranger = now, started
        elif now - self._stranger[0] >= STRANGER_S and not server.doubt.is_set():
            log.warning("a model server is busy with nothing of ours", extra={"server": server.runner.url})
            self._servers.distrust(server)

    async def _end_server(self) -> None:
        """Once, and again only when it heard nothing or is still there long after it should have ended."""
        asked_at, now = self._asked_to_end_at, self._clock.monotonic()
        if asked_at is None or now - asked_at >= END_AGAIN_S:
            log.warning("asking a model server to end", extra={"server": self._server.runner.url})
            self._asked_to_end_at = now if await self._server.runner.shutdown() else None

    def _report(self, health: Health) -> None:
        if health.status is not self._seen:
            log.log(
                LEVELS.get(health.status, logging.INFO),
                "the health of a model server changed",
                extra={
                    "server": self._server.runner.url,
                    "status": health.status,
                    "detail": health.detail,
                    **_setup_logs(health),
                },
            )
        self._seen = health.status


def _setup_logs(health: Health) -> dict[str, str]:
    """The end of what setup printed, where it explains something: a model may print its secrets."""
    if health.status is not HealthStatus.SETUP_FAILED or health.setup is None:
        return {}
    return {"setup_logs": health.setup.logs[-SETUP_LOG_CHARS:]}
