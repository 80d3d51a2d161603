"""Build all that handlers use, once for each Redis server."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import anyio
from msgspec import Struct
from redis.asyncio import Redis

from api.services.gate import Gate
from api.services.log_ins import LogIns, Proxy
from api.services.lookups import Lookups
from api.services.memory import Memory
from api.services.meters import Meters
from api.services.openai_models import OpenAiModels
from api.services.paces import Paces, QueueCache
from api.services.semaphores import AccountSemaphore, UploadSemaphore
from api.services.stream_readers import Readers
from api.services.waiters import Waiters
from api.services.watching import Watching
from director.broker.news import SILENCE_S
from director.broker.redis_client import blocking_client, client
from director.core.clock import Clock
from director.core.errors import UnsafeBackend
from director.core.settings import ApiSettings
from director.files.choose import StoreCheck, store_in
from director.files.data_files import DataFiles
from director.files.store import Links
from director.operate.overview import Overview
from director.runtime.metrics import Pulse
from director.runtime.startup import Descriptors
from director.runtime.sweep import repeat
from director.runtime.tracing import Tracing
from director.store import held_calls
from director.store import services as store
from director.store.caller_files import CallerFiles
from director.store.glances import Glances
from director.store.held_calls import HeldCalls
from director.store.processes import TICK_S, Presence

log = logging.getLogger(__name__)
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
    Unless it `serves`, the process is not listed among those of the API.
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
        serves: bool = True,
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
        is_away = (lambda: not gate.is_up) if serves_while_away else None
        self.lookups = Lookups(
            self.accounts,
            self.catalog,
            self.aliases,
            scripts,
            clock=clock,
            cache_s=settings.cache_s,
            is_away=is_away,
        )
        self.log_ins = LogIns(
            *(self.sessions, self.accounts, self.lookups),
            proxy=Proxy.of(settings),
            clock=clock,
            cache_s=settings.cache_s,
            is_away=is_away,
        )
        self.openai_models = OpenAiModels(
            self.catalog, self.deployments, clock=clock, cache_s=settings.cache_s, is_away=is_away
        )
        self.paces = Paces(self.trends, clock)
        self.runs = QueueCache(self.catalog.runs, clock)
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
        self.uploading = UploadSemaphore()
        self.reading = AccountSemaphore(MOST_READS, each=MOST_READS_EACH, patience_s=READ_PATIENCE_S)
        self.is_leaving = False
        self._subscriber = clients.subscriber
        self._presence = Presence(
            redis, clock, "api", store_check=None if self.store_check is None else self.store_check.missing
        )
        self.held_calls = HeldCalls(redis, self._presence.name)
        self._pulse = Pulse(meters.registry, meters.redis, redis) if is_home else None
        self._serves = serves

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.gate.run)
                tasks.start_soon(self.waiters.run)
                if self._serves:
                    present = partial(repeat, self._presence.run_once, role="presence", tick_s=TICK_S, clock=self.clock)
                    tasks.start_soon(present)
                    hold = partial(repeat, self.held_calls.run_once, role="held calls", clock=self.clock)
                    tasks.start_soon(partial(hold, tick_s=held_calls.TICK_S))
                if self.store_check is not None:
                    tasks.start_soon(self.store_check.missing)
                if self._pulse is not None:
                    tasks.start_soon(self._pulse.run)
                # if Redis is there, the first request finds the gate open
                await self.gate.wait_until_open(within_s=FIRST_CHECK_S)
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
