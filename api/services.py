"""Hold what handlers use: the gate before Redis, its memory, meters, turns of large requests, and the services."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import anyio
from msgspec import Struct
from redis.asyncio import Redis
from starlette.requests import Request

from api.admin.watching import Watching
from api.files.turns import UploadTurns
from api.lookups import Lookups
from api.predictions.stream_readers import Readers
from api.predictions.waiters import SILENCE_S, Glances, Waiters
from api.web.errors import Code, Problem
from director.broker import keys
from director.broker.durability import Server, check
from director.broker.redis_client import ask, blocking_client, client, infos
from director.broker.rights import check_rights
from director.core.clock import Clock
from director.core.data_bytes import SHORT, Fullness, share_while_short
from director.core.errors import BackendUnavailable, UnsafeBackend
from director.core.settings import ApiSettings, CommonSettings
from director.files.caller_files import CallerFiles
from director.files.choose import StoreCheck, store_in
from director.files.data_files import DataFiles
from director.files.store import Links
from director.operate.overview import Overview
from director.runtime.metrics import Counter, Histogram, Pulse, RedisMeter, Registry
from director.runtime.process import Recent
from director.runtime.startup import Descriptors
from director.runtime.sweep import repeat
from director.runtime.tracing import Tracing
from director.store import services as store
from director.store.processes import TICK_S, Presence

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

    async def opened(self, *, within_s: float) -> None:
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

    async def checked(self) -> Server:
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


MEMORY_FRESH_S: Final = 1.0
MEMORY_STALE_S: Final = 10.0  # an API that had no creates for long, or whose looks fail, knows nothing


class Memory:
    """Knows whether Redis's memory is short, and what an account may have then, without a command for each create.

    It keeps the look of the last second. A create that finds it old starts the next look and does not wait for it. What
    was accepted here meanwhile is added to it. Bytes of refused creates are not, or one account that goes on after a
    refusal would have others refused. A look that is older than MEMORY_STALE_S refuses none.
    """

    def __init__(self, redis: Redis, clock: Clock) -> None:
        self._redis: Any = redis  # ours answers in bytes
        self._clock = clock
        self._memory = Fullness(0, 0)
        self._share: int | None = None
        self._accepted = 0
        self._asked_at = self._seen_at = float("-inf")
        self._look: asyncio.Task[None] | None = None
        self._recent = Recent(self._fullness, clock)

    async def is_full(self) -> bool:
        """Return whether Redis refuses new work for lack of memory, by a look of the last second."""
        return (await self._recent.get()).part >= 1

    async def _fullness(self) -> Fullness:
        return Fullness.of(await infos(self._redis, "memory"))

    def share(self, bytes_more: int) -> int | None:
        """Return the most bytes that an account may have, these included. None while memory is not short, or while no
        keeper has published a share. The bytes count here until `give_back`, or until the next look.
        """
        now = self._clock.monotonic()
        if now - self._asked_at >= MEMORY_FRESH_S and (self._look is None or self._look.done()):
            self._asked_at = now
            self._look = asyncio.get_running_loop().create_task(self._look_again())
        self._accepted += bytes_more
        if now - self._seen_at > MEMORY_STALE_S or self._share is None:
            return None
        part = self._memory._replace(used=self._memory.used + self._accepted).part
        return share_while_short(self._share, part) if part > SHORT else None

    def give_back(self, bytes_more: int) -> None:
        """Count no longer what was not accepted."""
        self._accepted = max(0, self._accepted - bytes_more)

    def release(self) -> None:
        if self._look is not None:
            self._look.cancel()

    async def _look_again(self) -> None:
        try:
            await self.look()
        except BackendUnavailable:
            pass  # creates find out by themselves
        except Exception:  # a create must not be refused because its memory cannot be looked at
            log.exception("looking at the memory of Redis failed")

    async def look(self) -> None:
        self._accepted = 0
        share = await ask(lambda: self._redis.get(keys.data_share()))
        self._memory = await self._fullness()
        self._share = None if share is None else int(share)
        self._seen_at = self._clock.monotonic()


NO_ROUTE: Final = "none"
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY"})


class Meters:
    """Counts requests and answers by the route's template: no caller's text becomes a label. Time is measured up to the
    head of the response, because an event stream may last for hours.
    """

    def __init__(self) -> None:
        self.registry: Final = Registry("api")
        self.redis: Final = RedisMeter(self.registry)
        self._requests = self.registry.counter("director_api_requests_total")
        self._seconds = self.registry.histogram("director_api_request_seconds")
        self._refusals = self.registry.counter("director_api_refusals_total")
        self._accepted = self.registry.counter("director_api_accepted_total")
        self._placed = self.registry.counter("director_api_placed_total")
        self._sites_up = self.registry.gauge("director_api_site_up")
        for code in Code:  # alert rules miss the rise of a counter that begins at one
            self._refusals.labels(code)
        self._by_run: dict[tuple[str, str], Counter] = {}
        self._by_answer: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def answered(self, route: str, method: str, status: int, took_s: float) -> None:
        method = method if method in METHODS else "other"
        found = self._by_answer.get((route, method, status))
        if found is None:
            found = self._requests.labels(route, method, str(status)), self._seconds.labels(route, method)
            self._by_answer[route, method, status] = found
        counter, seconds = found
        counter.inc()
        seconds.observe(took_s)

    def refused(self, problem: Problem) -> None:
        self._refusals.labels(problem.document.code or str(problem.status)).inc()

    def accepted(self, kind: str, lane: str) -> None:
        counter = self._by_run.get((kind, lane))
        if counter is None:
            counter = self._by_run[kind, lane] = self._accepted.labels(kind or "prediction", lane)
        counter.inc()

    def placed(self, site: str, how: str) -> None:
        self._placed.labels(site, how).inc()

    def watch_site(self, name: str, is_up: Callable[[], float]) -> None:
        self._sites_up.labels(name).set_function(is_up)


class Turns:
    """Let `most` requests work at once, and `each` of one account, in order. TimeoutError after `patience_s`."""

    def __init__(self, most: int, *, each: int, patience_s: float) -> None:
        self._all = asyncio.Semaphore(most)
        self._each = each
        self._patience_s = patience_s
        self._accounts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def taken(self, account: str) -> AsyncGenerator[None]:
        own = self._accounts.setdefault(account, asyncio.Semaphore(self._each))
        async with AsyncExitStack() as held:
            async with asyncio.timeout(self._patience_s):
                # first, so that waiting for its own account keeps no other account waiting
                await held.enter_async_context(own)
                await held.enter_async_context(self._all)
            yield


FIRST_CHECK_S: Final = 1.0
CONNECTIONS: Final = 9  # few, because the calls of one turn of the event loop leave in one write
# of small calls. Three more connections are for large calls, the others for commands that are no scripts
WRITES_AT_ONCE: Final = 4
# Two large reads run at once: see director/broker/gatherer.py. One account must not have both
MOST_READS: Final = 16
MOST_READS_EACH: Final = 1
READ_PATIENCE_S: Final = 60.0


class Clients(Struct, frozen=True, kw_only=True):
    redis: Redis
    subscriber: Redis

    @classmethod
    def of(cls, settings: ApiSettings) -> "Clients":
        """Connect to nothing yet. Raises SettingsError for an invalid URL."""
        return cls(
            redis=client(settings.redis_url, connections=CONNECTIONS, name="director-api"),
            subscriber=blocking_client(settings.redis_url, block_s=SILENCE_S, name="director-api-waits"),
        )


class Services(store.Services):
    """Everything that handlers use, for one Redis server. `site`: the number in the ids that are made here.
    `serves_while_away`: known tokens and models still hold while the server is away. Metrics show the home's Redis.
    """

    def __init__(
        self,
        settings: ApiSettings,
        clients: Clients,
        meters: Meters,
        *,
        clock: Clock,
        on_unsafe: Callable[[UnsafeBackend], None],
        tracing: Tracing,
        site: int = 0,
        is_home: bool = True,
        serves_while_away: bool = False,
    ) -> None:
        self.files = store_in(settings.files_dir, clients.redis, clock, url=settings.files_url)
        super().__init__(
            clients.redis,
            clock,
            limits=settings.account_limits,
            at_once=WRITES_AT_ONCE,
            meter=meters.redis if is_home else None,
            data_files=DataFiles(clock, self.files, from_bytes=settings.data_files_from),
        )
        redis, scripts = self.redis, self.scripts
        self.site = site
        self.settings = settings
        self.meters = meters
        self.tracing = tracing
        self.gate = gate = Gate(redis, settings, clock=clock, on_unsafe=on_unsafe)
        self.lookups = Lookups(
            self.accounts,
            self.catalog,
            scripts,
            clock=clock,
            cache_s=settings.cache_s,
            is_away=(lambda: not gate.is_up) if serves_while_away else None,
        )
        self.memory = Memory(redis, clock)
        self.glances = Glances(redis)
        self.waiters = Waiters(
            clients.subscriber, has_ended=self.glances.has_ended, read=scripts.get, clock=clock, most=settings.max_waits
        )
        self.descriptors = Descriptors(clock)
        self.readers = Readers(
            scripts, self.waiters, clock=clock, descriptors=self.descriptors, most=settings.max_streams
        )
        self.overview = Overview.of(self)
        self.watching = Watching(self.overview, clock)
        up = meters.registry.files_up if is_home else None
        self.store_check = None if self.files is None else StoreCheck(self.files, clock, up=up)
        self.links = Links(redis, clock)
        self.caller_files = CallerFiles(redis)
        self.uploading = UploadTurns()
        self.reading = Turns(MOST_READS, each=MOST_READS_EACH, patience_s=READ_PATIENCE_S)
        self.is_leaving = False
        self._subscriber = clients.subscriber
        self._presence = Presence(
            redis, clock, "api", store_check=None if self.store_check is None else self.store_check.missing
        )
        self._pulse = Pulse(meters.registry, meters.redis, redis) if is_home else None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.gate.run)
                tasks.start_soon(self.waiters.run)
                present = partial(repeat, self._presence.run_once, role="presence", tick_s=TICK_S, clock=self.clock)
                tasks.start_soon(present)
                if self.store_check is not None:
                    tasks.start_soon(self.store_check.missing)
                if self._pulse is not None:
                    tasks.start_soon(self._pulse.run)
                # if Redis is there, the first request finds the gate open
                await self.gate.opened(within_s=FIRST_CHECK_S)
                yield
                tasks.cancel_scope.cancel()
        finally:
            self.release()
            self.watching.release()
            with anyio.CancelScope(shield=True):
                await self._subscriber.aclose()
                await self.aclose()

    def release(self) -> None:
        self.is_leaving = True
        self.memory.release()
        self.waiters.release()
        self.readers.release()


def services_of(request: Request) -> Services:
    services: Services = request.scope["state"]["services"]  # called often, and `request.state` is slow
    return services
