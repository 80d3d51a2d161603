"""Which model servers there are: made, watched, and let go of once nothing runs on them any more.

A server that is to be driven in another way is another one: the former gets no more runs, finishes those it has, and
only then the new one begins, so that no slot is used twice. Another number of slots is in force at once.
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


class Driven(Struct, frozen=True):
    """Where a server is, and how it is driven."""

    url: str
    config: RunnerConfig


class _Kept(Struct, eq=False):
    server: Server
    scope: anyio.CancelScope


class Fleet:
    """Keeps `servers` as they are wanted. `make` makes one, `watch` looks after it until it is canceled."""

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
        self._kept: list[tuple[Driven, _Kept]] = []
        self._leaving: list[tuple[Driven, Server]] = []
        self._wanted: tuple[Driven, ...] = ()
        self._slots = 1
        self._news = asyncio.Event()

    def want(self, wanted: Sequence[Driven], *, slots: int) -> None:
        """From now on these, with so many slots each."""
        self._wanted, self._slots = tuple(wanted), slots
        self._news.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Bring them about, for ever. Started when those that are wanted first are made."""
        async with anyio.create_task_group() as tasks:
            self._change(tasks)
            task_status.started()
            while True:
                await self._news.wait()
                self._news.clear()
                self._change(tasks)

    async def aclose(self) -> None:
        """Let go of the connections to all of them."""
        for server in [*self._servers.all, *(server for _, server in self._leaving)]:
            await server.runner.aclose()

    def _change(self, tasks: TaskGroup) -> None:
        wanted = list(self._wanted)
        for driven, kept in list(self._kept):
            if driven in wanted:
                wanted.remove(driven)
                self._servers.resize(kept.server, self._slots)
            else:
                self._kept.remove((driven, kept))
                self._servers.remove(kept.server)
                kept.scope.cancel()
                self._leaving.append((driven, kept.server))
                tasks.start_soon(self._let_go, driven, kept.server)
        for driven in wanted:
            if any(former.url == driven.url for former, _ in self._leaving):
                continue  # it comes once the former has ended its runs
            kept = _Kept(self._make(driven, self._slots), anyio.CancelScope())
            self._kept.append((driven, kept))
            self._servers.add(kept.server)
            tasks.start_soon(self._look_after, kept)

    async def _look_after(self, kept: _Kept) -> None:
        with kept.scope:
            await self._watch(kept.server)

    async def _let_go(self, driven: Driven, server: Server) -> None:
        while server.busy or server.waiting:
            await self._servers.permits.changed()
        await server.runner.aclose()
        self._leaving.remove((driven, server))
        self._news.set()


# When a model server that does not get well by itself is asked to end, so that a fresh one comes. Pure.
#
# Never of one that runs something, and ever less often of one that a new start did not help.

UNHEALTHY_S: Final = 60.0  # it recovers within seconds, or hangs
LONGEST_S: Final = 600.0


class Recovery:
    """Of one server. `waits`: how long it may be so before it is asked to end; for ever where that is 0 or missing."""

    def __init__(self, waits: Mapping[HealthStatus, float]) -> None:
        self._waits = waits
        self._seen: tuple[HealthStatus, str] | None = None
        self._due_s = 0.0
        self._tries = 0

    def is_due(self, health: Health, now: float, *, is_idle: bool) -> bool:
        """Is it to be asked to end now, after this look at it?"""
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


# Look after one model server: learn whether it is ready, and have a dead one restarted.
#
# The only room that asks a server how it is. Claims follow from it: nothing is claimed for a server that is not ready.

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
