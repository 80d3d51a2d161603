"""Build the services that handlers use, once, and close them in reverse order when the API ends."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

import anyio
from msgspec import Struct
from redis.asyncio import Redis
from starlette.requests import Request

from api.admin.watching import Watching
from api.gate import Gate
from api.lookups import Lookups
from api.metering import Meters
from api.predictions.glances import Glances
from api.predictions.stream_readers import Readers
from api.predictions.waiters import SILENCE_S, Waiters
from director.broker.redis_client import blocking_client, client
from director.core.clock import Clock
from director.core.errors import UnsafeBackend
from director.core.settings import ApiSettings
from director.diagnosis.overview import Overview
from director.files.caller_files import CallerFiles
from director.files.choose import StoreCheck, store_in
from director.files.links import Links
from director.runtime.metrics.registry import Pulse
from director.runtime.startup import Descriptors
from director.runtime.tracing import Tracing
from director.store import services as store


class Turns:
    """Let `most` requests work at once, and `each` of one account, in order of arrival.

    However many requests of one account wait, it never holds more than `each` turns. A wait of more than `patience_s`
    raises TimeoutError.
    """

    def __init__(self, most: int, *, each: int, patience_s: float) -> None:
        self._all = asyncio.Semaphore(most)
        self._each = each
        self._patience_s = patience_s
        self._accounts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def taken(self, account: str) -> AsyncGenerator[None]:
        """Hold a turn of this account while the block runs."""
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
# Each takes a few megabytes of memory at most; one account cannot take all
MOST_UPLOADS: Final = 16
MOST_UPLOADS_EACH: Final = 4
UPLOAD_PATIENCE_S: Final = 30.0
# Two large reads run at once: see director/broker/gatherer.py. One account must not have both
MOST_READS: Final = 16
MOST_READS_EACH: Final = 1
READ_PATIENCE_S: Final = 60.0


class Clients(Struct, frozen=True, kw_only=True):
    """The clients of Redis: `redis` for short calls, and `subscriber` for the subscription."""

    redis: Redis
    subscriber: Redis

    @classmethod
    def of(cls, settings: ApiSettings) -> "Clients":
        """Create the clients. Connects to nothing yet. Raises SettingsError for an invalid URL."""
        return cls(
            redis=client(settings.redis_url, connections=CONNECTIONS, name="director-api"),
            subscriber=blocking_client(settings.redis_url, block_s=SILENCE_S, name="director-api-waits"),
        )


class Services(store.Services):
    """Everything that handlers use, for one Redis server. `site`: the number in the ids that are made here.

    `believes`: known tokens and models are still accepted while the server is away. Metrics show the home's Redis.
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
        believes: bool = False,
    ) -> None:
        super().__init__(
            clients.redis,
            clock,
            limits=settings.account_limits,
            at_once=WRITES_AT_ONCE,
            meter=meters.redis if is_home else None,
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
            believes=(lambda: not gate.is_up) if believes else None,
        )
        self.glances = Glances(redis)
        self.waiters = Waiters(
            clients.subscriber,
            has_ended=self.glances.has_ended,
            read=scripts.get,
            clock=clock,
            most=settings.max_waits,
        )
        self.descriptors = Descriptors(clock)
        self.readers = Readers(
            scripts, self.waiters, clock=clock, descriptors=self.descriptors, most=settings.max_streams
        )
        self.watching = Watching(Overview.of(self), clock)
        self.files = store_in(settings.files_dir, redis, clock, url=settings.files_url)
        self.store_check = None if self.files is None else StoreCheck(self.files, clock)
        self.links = Links(redis, clock)
        self.caller_files = CallerFiles(redis)
        self.uploading = Turns(MOST_UPLOADS, each=MOST_UPLOADS_EACH, patience_s=UPLOAD_PATIENCE_S)
        self.reading = Turns(MOST_READS, each=MOST_READS_EACH, patience_s=READ_PATIENCE_S)
        self._subscriber = clients.subscriber
        self._pulse = Pulse(meters.registry, meters.redis, redis) if is_home else None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all loops. Closes the clients at the end."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.gate.run)
                tasks.start_soon(self.waiters.run)
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
        """End all held responses and streams, because the process ends."""
        self.waiters.release()
        self.readers.release()


def services_of(request: Request) -> Services:
    """Return the services of the home, or of the only server."""
    services: Services = request.scope["state"]["services"]  # called often, and `request.state` is slow
    return services
