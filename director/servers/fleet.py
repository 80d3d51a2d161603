"""Keep the model servers that are wanted: make them, watch each one, restart it, and retire it.

`Watch` looks at one server, tells `Servers` whether it can run, and asks a broken one to end. `Fleet` starts and ends
the watches as the wanted servers change. Nothing else asks a server how it is, and nothing is claimed for a server
that is not ready.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import anyio
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Struct
from msgspec.structs import replace

from director.core.clock import Clock
from director.core.errors import BackendUnavailable, DirectorError
from director.core.runner_config import RunnerConfig
from director.servers.runners.runner import Health, HealthStatus
from director.servers.server import Server
from director.servers.servers import Servers

log = logging.getLogger(__name__)

SOON_S: Final = 0.25
LATER_S: Final = 5.0
SETUP_LOG_CHARS: Final = 4096
AWAY_S: Final = 1.0
UNHEALTHY_S: Final = 60.0  # a server recovers within seconds, or hangs
LONGEST_S: Final = 600.0
END_AGAIN_S: Final = 15.0  # a server takes up to 11 s to end
STRANGER_S: Final = 5.0  # BUSY for this long while nothing of ours runs there: its count and ours differ

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


class Recovery:
    """Decides when a broken server is asked to end so that a fresh one comes. Pure.

    A server that runs something is never asked, and one that a restart did not help ever less often. `waits`: for each
    status, how long it may last before that; for ever if missing or 0.
    """

    def __init__(self, waits: Mapping[HealthStatus, float]) -> None:
        self._waits = waits
        self._seen: tuple[HealthStatus, str] | None = None
        self._due_s = 0.0
        self._tries = 0

    def is_due(self, health: Health, now: float, *, is_idle: bool) -> bool:
        """Return whether to ask the server to end now, after this look at it."""
        if health.can_run:
            self._tries = 0
        wait_s = self._waits.get(health.status, 0.0)
        if not wait_s or not is_idle:
            self._seen = None
            return False
        if self._seen != (health.status, health.since):
            self._seen = health.status, health.since
            self._due_s = now + self._next(wait_s)
        if now < self._due_s:
            return False
        self._tries += 1
        self._due_s = now + self._next(wait_s)
        return True

    def _next(self, wait_s: float) -> float:
        return max(wait_s, min(wait_s * (1 << min(self._tries, 16)), LONGEST_S))


class Watch:
    """Watches one server. `register` is awaited each time the server becomes ready, before it gets work.

    `note_setup` is awaited when a setup has ended, well or not, until it returns True. `setup_retry_s`: how long after
    a failed setup the server is asked to end; 0 for never.
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
        self._noted: tuple[str, bool] | None = None  # the start that was noted, and whether it could run
        self._seen: HealthStatus | None = None
        self._registered = False
        self._asked_to_end_at: float | None = None
        self._stranger: tuple[float, int] | None = None  # since when, and the count of runs then

    async def run(self) -> None:
        """Look often while the server starts or is away, rarely once it is ready, at once when it is in doubt."""
        while True:
            try:
                health = await self.run_once()
            except BackendUnavailable as exc:
                log.warning("registering a model failed", extra={"error": str(exc)})
                await self._clock.sleep(AWAY_S)
                continue
            except DirectorError:  # raised on purpose: the operator has to act
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
        """Look once. A server whose worker is dead, or that a run put in doubt, is asked to end."""
        server, started = self._server, self._server.runs
        health = await server.runner.health()
        self._judge_start(health)
        self._judge_count(health, started)
        # A restart that is only counted ends no run, so it need not wait for the others
        is_harmless = not server.busy or not server.runner.capabilities.restarts
        if health.status is HealthStatus.DEFUNCT or (server.doubt.is_set() and health.can_run and is_harmless):
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
        await self._note_end_of_setup(health)
        return health

    async def _note_end_of_setup(self, health: Health) -> None:
        """Record the end of a setup once for each start. This comes last, since no work waits for it."""
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
        """Take in a new start of the server. Doubt and registration belong to one start."""
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
        """Compare its count of runs with ours. Valid only if nothing of ours ran since the first such look."""
        server, now = self._server, self._clock.monotonic()
        if health.status is not HealthStatus.BUSY or server.running or server.runs != started:
            self._stranger = None
        elif self._stranger is None or self._stranger[1] != started:
            self._stranger = now, started
        elif now - self._stranger[0] >= STRANGER_S and not server.doubt.is_set():
            log.warning("a model server is busy with nothing of ours", extra={"server": server.runner.url})
            self._servers.distrust(server)

    async def _end_server(self) -> None:
        """Ask it to end. Ask again only if it did not answer, or is still there long after it should have ended."""
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
    """Return the end of what a failed setup printed. Nothing else is logged, since a model may print its secrets."""
    if health.status is not HealthStatus.SETUP_FAILED or health.setup is None:
        return {}
    return {"setup_logs": health.setup.logs[-SETUP_LOG_CHARS:]}


class Driven(Struct, frozen=True):
    url: str
    config: RunnerConfig


class _Watched(Struct, eq=False):
    server: Server
    scope: anyio.CancelScope


class Fleet:
    """Keeps `servers` as wanted. `make` makes a server, `watch` looks after it until it is canceled.

    A server with another runner configuration counts as another server. The former one gets no more runs and finishes
    those it has, and only then the new one begins, so that no slot is used twice. Another number of slots holds at
    once.
    """

    def __init__(
        self,
        servers: Servers,
        *,
        make: Callable[[Driven, int], Server],
        watch: Callable[[Server], Awaitable[None]],
    ) -> None:
        self._servers = servers
        self._make = make
        self._watch = watch
        self._watched: list[tuple[Driven, _Watched]] = []
        self._leaving: list[tuple[Driven, Server]] = []
        self._wanted: tuple[Driven, ...] = ()
        self._slots = 1
        self._news = asyncio.Event()

    def want(self, wanted: Sequence[Driven], *, slots: int) -> None:
        self._wanted, self._slots = tuple(wanted), slots
        self._news.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Apply changes for ever. Reports as started once the first wanted servers are made."""
        async with anyio.create_task_group() as tasks:
            self._change(tasks)
            task_status.started()
            while True:
                await self._news.wait()
                self._news.clear()
                self._change(tasks)

    async def aclose(self) -> None:
        for server in [*self._servers.all, *(server for _, server in self._leaving)]:
            await server.runner.aclose()

    def _change(self, tasks: TaskGroup) -> None:
        wanted = list(self._wanted)
        for driven, watched in list(self._watched):
            if driven in wanted:
                wanted.remove(driven)
                self._servers.resize(watched.server, self._slots)
            else:
                self._watched.remove((driven, watched))
                self._servers.remove(watched.server)
                watched.scope.cancel()
                self._leaving.append((driven, watched.server))
                tasks.start_soon(self._retire, driven, watched.server)
        for driven in wanted:
            if any(former.url == driven.url for former, _ in self._leaving):
                continue  # made once the former server has ended its runs
            watched = _Watched(self._make(driven, self._slots), anyio.CancelScope())
            self._watched.append((driven, watched))
            self._servers.add(watched.server)
            tasks.start_soon(self._look_after, watched)

    async def _look_after(self, watched: _Watched) -> None:
        with watched.scope:
            await self._watch(watched.server)

    async def _retire(self, driven: Driven, server: Server) -> None:
        while server.busy or server.waiting:
            await self._servers.permits.changed()
        await server.runner.aclose()
        self._leaving.remove((driven, server))
        self._news.set()
