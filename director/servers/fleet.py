"""Keep the model servers that are wanted: make them, watch each one, restart it, and retire it.

Nothing else asks a server how it is, and nothing is claimed for a server that is not ready.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Struct
from msgspec.structs import replace

from director.core.clock import Clock
from director.core.errors import BackendUnavailable, DirectorError
from director.core.runner_config import RunnerConfig
from director.servers.runners.runner import Health, HealthStatus
from director.servers.servers import Server, Servers

log = logging.getLogger(__name__)

SOON_S: Final = 0.25
LATER_S: Final = 5.0
SETUP_LOG_CHARS: Final = 4096
AWAY_S: Final = 1.0
UNHEALTHY_S: Final = 60.0  # a server recovers within seconds, or hangs
LONGEST_S: Final = 600.0
END_AGAIN_S: Final = 15.0  # a server takes up to 11 s to end
SLOW_START_S: Final = 60.0
# coglet starts its worker as `python`; if that one has no coglet, the server reports STARTING for ever
LIKELY_SLOW: Final = "it loads large weights, or its worker did not start: the `python` of its PATH must have cog"
ACQUIT_S: Final = 1.0  # a server that is about to end may still say that it is ready
STRANGER_S: Final = 5.0  # BUSY for this long while nothing of ours runs there: its count and ours differ

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


class Recovery(Struct, eq=False):
    """Decides when a broken server is asked to end so that a fresh one comes: never while it runs something or does not
    let us in, and ever less often if a restart did not help. `waits`: how long each status may last before that; for
    ever if missing or 0.
    """

    waits: Mapping[HealthStatus, float]
    seen: tuple[HealthStatus, str] | None = None
    due_s: float = 0.0
    tries: int = 0

    def is_due(self, health: Health, now: float, *, is_idle: bool) -> bool:
        if health.can_run:
            self.tries = 0
        wait_s = 0.0 if health.is_locked else self.waits.get(health.status, 0.0)
        if not wait_s or not is_idle:
            self.seen = None
            return False
        if self.seen != (health.status, health.since):
            self.seen = health.status, health.since
            self.due_s = now + self._next(wait_s)
        if now < self.due_s:
            return False
        self.tries += 1
        self.due_s = now + self._next(wait_s)
        return True

    def _next(self, wait_s: float) -> float:
        return max(wait_s, min(wait_s * (1 << min(self.tries, 16)), LONGEST_S))


class Watch(Struct, eq=False):
    """Watches one server. `register` is awaited each time the server becomes ready, before it gets work; it returns why
    the server gets none, and is then awaited again. `note_setup` is awaited when a setup has ended, until it returns
    True. `setup_retry_s`: how long after a failed setup the server is asked to end; 0 for never.
    """

    server: Server
    servers: Servers
    clock: Clock
    register: Callable[[Server, Health], Awaitable[str]]
    note_setup: Callable[[Server, Health], Awaitable[bool]]
    setup_retry_s: float = 0
    noted: tuple[str, bool] | None = None  # the start that was noted, and whether it could run
    seen: HealthStatus | None = None
    starting_at: float | None = None  # infinite once its slow start was reported
    is_registered: bool = False
    asked_to_end_at: float | None = None
    stranger: tuple[float, int] | None = None  # since when, and the count of runs then
    doubted_at: float | None = None
    gate_changes: int = 0  # as of the last look
    recovery: Recovery = msgspec.field(default_factory=lambda: Recovery({}))

    def __post_init__(self) -> None:
        self.recovery = Recovery({HealthStatus.SETUP_FAILED: self.setup_retry_s, HealthStatus.UNHEALTHY: UNHEALTHY_S})

    async def run(self) -> None:
        while True:
            if self.server.gate.state == "at_rest":
                await self.server.gate.watched.wait()
            try:
                health = await self.run_once()
            except BackendUnavailable as exc:
                log.warning("registering a model failed", extra={"error": str(exc)})
                await self.clock.sleep(AWAY_S)
                continue
            except DirectorError:  # raised on purpose: the operator has to act
                raise
            except Exception:  # a fault in looking at one server must not end the runs on all the others
                log.exception("looking at a model server broke", extra={"server": self.server.runner.url})
                await self.clock.sleep(LATER_S)
                continue
            if self.server.doubt.is_set():
                await self.clock.sleep(min(AWAY_S, PAUSES[health.status]))
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.server.doubt.wait(), PAUSES[health.status])

    async def run_once(self) -> Health:
        server, started, changes = self.server, self.server.runs, self.server.gate.changes
        health = await server.runner.health()
        if server.gate.changes != changes:  # it was put to rest or loaded meanwhile
            return server.health
        if changes != self.gate_changes:
            self.gate_changes, self.is_registered = changes, False
            self.asked_to_end_at = self.stranger = None
        self._judge_start(health)
        self._judge_count(health, started)
        if health.status is HealthStatus.DEFUNCT or self._is_restart_due(health):
            await self._end_server()
            health = replace(health, status=HealthStatus.DEFUNCT)
        elif server.runner.capabilities.restarts and self.recovery.is_due(
            health, self.clock.monotonic(), is_idle=not server.busy
        ):
            await self._end_server()
        elif health.can_run and not self.is_registered:
            if why := await self.register(server, health):
                health = replace(health, status=HealthStatus.UNHEALTHY, detail=why)
            self.is_registered = not why
        self._report(health)
        self._report_slow_start(health)
        if server.gate.changes != changes:
            return server.health
        self.servers.saw(server, health)
        await self._note_end_of_setup(health)
        return health

    def _is_restart_due(self, health: Health) -> bool:
        """Judge a server in doubt. One that is ready is not restarted for what it answered, and has the doubt taken off
        it. One that stays busy with nothing of ours, or on which a run hangs, does not get its slot back otherwise. A
        server with one slot that is ready has it back.
        """
        server, now = self.server, self.clock.monotonic()
        if not server.doubt.is_set():
            self.doubted_at = None
            return False
        self.doubted_at = now if self.doubted_at is None else self.doubted_at
        if not health.can_run:
            return False
        if not server.runner.capabilities.restarts:  # it is only counted, which ends no run
            return True
        if health.status is HealthStatus.READY and not (server.hangs and server.slots > 1):
            is_ending = self.asked_to_end_at is not None and now - self.asked_to_end_at < END_AGAIN_S
            if now - self.doubted_at >= ACQUIT_S and not is_ending:
                log.info("a model server that a run found dead is ready", extra={"server": server.runner.url})
                self.doubted_at = None
                self.servers.acquit(server)
            return False
        is_lasting = server.hangs or now - self.doubted_at >= STRANGER_S
        return is_lasting and not server.busy

    async def _note_end_of_setup(self, health: Health) -> None:
        """Record the end of a setup once for each start. This comes last, since no work waits for it."""
        setup = health.since, health.can_run
        if health.setup is None or setup == self.noted:
            return
        if not health.can_run and health.status is not HealthStatus.SETUP_FAILED:
            return
        try:
            if await self.note_setup(self.server, health):
                self.noted = setup
        except BackendUnavailable as exc:
            log.warning("noting a setup failed", extra={"error": str(exc)})

    def _judge_start(self, health: Health) -> None:
        server = self.server
        is_new = health.since not in ("", server.since)
        if is_new and server.doubt.is_set() and server.health.can_run and not server.runner.capabilities.restarts:
            server.trust.suspect()  # each connection that breaks counts as a start there
        if is_new or (not health.can_run and not server.since):
            self.servers.end_doubt(server)
        if is_new:
            self.servers.note_start(server, health.since)
            self.asked_to_end_at = self.stranger = None
        if is_new or not health.can_run:
            self.is_registered = False

    def _judge_count(self, health: Health, started: int) -> None:
        """Compare the server's count of runs with ours. Valid only if we ran nothing since the first comparison."""
        server, now = self.server, self.clock.monotonic()
        if health.status is not HealthStatus.BUSY or server.running or server.runs != started:
            self.stranger = None
        elif self.stranger is None or self.stranger[1] != started:
            self.stranger = now, started
        elif now - self.stranger[0] >= STRANGER_S and not server.doubt.is_set():
            log.warning("a model server is busy with nothing of ours", extra={"server": server.runner.url})
            self.doubted_at = self.stranger[0]
            self.servers.distrust(server)

    async def _end_server(self) -> None:
        asked_at, now = self.asked_to_end_at, self.clock.monotonic()
        if asked_at is None or now - asked_at >= END_AGAIN_S:
            log.warning("asking a model server to end", extra={"server": self.server.runner.url})
            self.asked_to_end_at = now if await self.server.runner.shutdown() else None

    def _report(self, health: Health) -> None:
        if health.status is not self.seen:
            # Nothing else that a server prints is logged, since a model may print its secrets
            facts = {"server": self.server.runner.url, "status": health.status, "detail": health.detail}
            if health.status is HealthStatus.SETUP_FAILED and health.setup is not None:
                facts["setup_logs"] = health.setup.logs[-SETUP_LOG_CHARS:]
            level = LEVELS.get(health.status, logging.INFO)
            if not self.server.gate.is_open and level == logging.WARNING:
                level = logging.INFO  # a server that is loading or ending is away for some time
            log.log(level, "the health of a model server changed", extra=facts)
        self.seen = health.status

    def _report_slow_start(self, health: Health) -> None:
        now = self.clock.monotonic()
        if health.status is not HealthStatus.STARTING:
            self.starting_at = None
        elif self.starting_at is None:
            self.starting_at = now
        elif now - self.starting_at > SLOW_START_S:
            self.starting_at = math.inf
            facts = {"server": self.server.runner.url, "seconds": SLOW_START_S, "likely": LIKELY_SLOW}
            log.warning("a model server has been starting for long", extra=facts)


class Driven(Struct, frozen=True):
    url: str
    config: RunnerConfig


class _Watched(Struct, eq=False):
    driven: Driven
    server: Server
    scope: anyio.CancelScope


class Fleet(Struct, eq=False):
    """Keeps `servers` as wanted. `make` makes a server, `watch` looks after it until it is canceled.

    A server with another runner configuration counts as another: the former one finishes its runs before the new one
    begins, so that no slot is used twice. Another number of slots holds at once.
    """

    servers: Servers
    make: Callable[[Driven, int], Server]
    watch: Callable[[Server], Awaitable[None]]
    watched: list[_Watched] = msgspec.field(default_factory=list)
    leaving: list[_Watched] = msgspec.field(default_factory=list)
    wanted: tuple[Driven, ...] = ()
    slots: int = 1
    news: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def want(self, wanted: Sequence[Driven], *, slots: int) -> None:
        self.wanted, self.slots = tuple(wanted), slots
        self.news.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with anyio.create_task_group() as tasks:
            self._change(tasks)
            task_status.started()
            while True:
                await self.news.wait()
                self.news.clear()
                self._change(tasks)

    async def aclose(self) -> None:
        for server in [*self.servers.all, *(each.server for each in self.leaving)]:
            await server.runner.aclose()

    def _change(self, tasks: TaskGroup) -> None:
        wanted = list(self.wanted)
        for watched in list(self.watched):
            if watched.driven in wanted:
                wanted.remove(watched.driven)
                self.servers.resize(watched.server, self.slots)
            else:
                self.watched.remove(watched)
                self.servers.remove(watched.server)
                watched.scope.cancel()
                self.leaving.append(watched)
                tasks.start_soon(self._retire, watched)
        for driven in wanted:
            if any(former.driven.url == driven.url for former in self.leaving):
                continue  # made once the former server has ended its runs
            watched = _Watched(driven, self.make(driven, self.slots), anyio.CancelScope())
            self.watched.append(watched)
            self.servers.add(watched.server)
            tasks.start_soon(self._look_after, watched)

    async def _look_after(self, watched: _Watched) -> None:
        with watched.scope:
            await self.watch(watched.server)

    async def _retire(self, watched: _Watched) -> None:
        server = watched.server
        while server.busy or server.waiting:
            await self.servers.permits.wait_for_change()
        await server.runner.aclose()
        self.leaving.remove(watched)
        self.news.set()
