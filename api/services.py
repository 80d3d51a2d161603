"""Build the services that handlers use, once, and close them in reverse order when the API ends."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final, TypedDict
from weakref import WeakValueDictionary

import anyio
from msgspec import Struct
from redis.asyncio import Redis
from starlette.requests import Request

from api.admin.watching import Watching
from api.gate import Gate
from api.lookups import Lookups
from api.metering import Meters
from api.predictions.stream_readers import Readers
from api.predictions.waiters import SILENCE_S, Glances, Waiters
from director.broker.gatherer import Gatherer
from director.broker.redis_client import blocking_client, client
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import UnsafeBackend
from director.core.settings import ApiSettings
from director.diagnosis.closer_look import CloserLook
from director.diagnosis.overview import Overview
from director.files.caller_files import CallerFiles
from director.files.choose import StoreCheck, store_in
from director.files.links import Links
from director.files.store import FileStore
from director.runtime.metrics.registry import Pulse
from director.runtime.startup import Descriptors
from director.runtime.tracing import Tracing
from director.store.accounts import Accounts
from director.store.administration import Administration
from director.store.catalog import Catalog, Kinds
from director.store.changes import Changes
from director.store.collections import Collections
from director.store.dead import DeadLetters
from director.store.deployments import Deployments
from director.store.directors import Directors
from director.store.living import IdempotencyKeys, Listing, Living
from director.store.model_configs import ModelConfigs
from director.store.owed import Owed
from director.store.queue_history import QueueHistory
from director.store.queues import QueueAdministration, Queues
from director.store.removal import Removal
from director.store.suspensions import Suspensions


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


if TYPE_CHECKING:
    from api.sites.sites import Sites


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


class Services(Struct, frozen=True, kw_only=True):
    """Everything that handlers use, for one Redis server. `site`: the number in the ids that are made here."""

    site: int
    redis: Redis
    settings: ApiSettings
    clock: Clock
    scripts: Scripts
    accounts: Accounts
    administration: Administration
    catalog: Catalog
    changes: Changes
    queues: Queues
    queue_administration: QueueAdministration
    living: Living
    history: QueueHistory
    directors: Directors
    owed: Owed
    watching: Watching
    collections: Collections
    configs: ModelConfigs
    listing: Listing
    glances: Glances
    idempotency: IdempotencyKeys
    dead: DeadLetters
    deployments: Deployments
    meters: Meters
    kinds: Kinds
    removal: Removal
    lookups: Lookups
    waiters: Waiters
    readers: Readers
    descriptors: Descriptors
    gate: Gate
    links: Links
    files: FileStore | None
    store_check: StoreCheck | None
    tracing: Tracing
    caller_files: CallerFiles
    uploading: Turns
    reading: Turns

    def release(self) -> None:
        """End all held responses and streams, because the process ends."""
        self.waiters.release()
        self.readers.release()


class State(TypedDict):
    """The state that the lifespan gives to each request."""

    services: Services
    sites: "Sites | None"


def services_of(request: Request) -> Services:
    """Return the services of the home, or of the only server."""
    services: Services = request.scope["state"]["services"]  # called often, and `request.state` is slow
    return services


@asynccontextmanager
async def running(
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
) -> AsyncIterator[Services]:
    """Run all services and their loops. Closes the clients at the end.

    `believes`: known tokens and models are still accepted while the server is away. Metrics show the home's Redis.
    """
    redis, glances = clients.redis, Glances(clients.redis)
    gate = Gate(redis, settings, clock=clock, on_unsafe=on_unsafe)
    gatherer = Gatherer(redis, at_once=WRITES_AT_ONCE, meter=meters.redis if is_home else None)
    scripts = Scripts(gatherer)
    accounts, catalog = Accounts(redis, settings.account_limits, clock), Catalog(redis, scripts, clock)
    changes, descriptors = Changes(redis, scripts, clock), Descriptors(clock)
    files = store_in(settings.files_dir, redis, clock, url=settings.files_url)
    queues, directors, owed = Queues(redis, catalog, scripts), Directors(redis), Owed(redis, catalog)
    watching = Watching(Overview(queues, directors, owed, CloserLook(redis, owed), clock), clock)
    waiters = Waiters(
        clients.subscriber, has_ended=glances.has_ended, read=scripts.get, clock=clock, most=settings.max_waits
    )
    services = Services(
        site=site,
        redis=redis,
        settings=settings,
        clock=clock,
        scripts=scripts,
        accounts=accounts,
        administration=Administration(
            accounts, catalog, scripts, Suspensions(redis, accounts, catalog, scripts, clock), changes
        ),
        changes=changes,
        queues=queues,
        queue_administration=QueueAdministration(scripts, changes),
        living=Living(redis),
        history=QueueHistory(redis),
        watching=watching,
        directors=directors,
        owed=owed,
        catalog=catalog,
        collections=Collections(redis),
        configs=ModelConfigs(redis, scripts, clock),
        listing=Listing(redis),
        glances=glances,
        idempotency=IdempotencyKeys(redis),
        dead=DeadLetters(redis, scripts, clock),
        deployments=Deployments(redis, scripts, clock),
        meters=meters,
        kinds=Kinds(redis, scripts, catalog),
        removal=Removal(redis, scripts, catalog),
        lookups=Lookups(
            accounts,
            catalog,
            scripts,
            clock=clock,
            cache_s=settings.cache_s,
            believes=(lambda: not gate.is_up) if believes else None,
        ),
        waiters=waiters,
        readers=Readers(scripts, waiters, clock=clock, descriptors=descriptors, most=settings.max_streams),
        descriptors=descriptors,
        links=Links(redis, clock),
        files=files,
        store_check=None if files is None else StoreCheck(files, clock),
        tracing=tracing,
        caller_files=CallerFiles(redis),
        uploading=Turns(MOST_UPLOADS, each=MOST_UPLOADS_EACH, patience_s=UPLOAD_PATIENCE_S),
        reading=Turns(MOST_READS, each=MOST_READS_EACH, patience_s=READ_PATIENCE_S),
        gate=gate,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(services.gate.run)
        tasks.start_soon(services.waiters.run)
        if services.store_check is not None:
            tasks.start_soon(services.store_check.missing)
        if is_home:
            tasks.start_soon(Pulse(meters.registry, meters.redis, redis).run)
        # if Redis is there, the first request finds the gate open
        await services.gate.opened(within_s=FIRST_CHECK_S)
        try:
            yield services
        finally:
            services.release()
            tasks.cancel_scope.cancel()
            watching.release()
            with anyio.CancelScope(shield=True):
                await gatherer.aclose()
    await clients.subscriber.aclose()
    await redis.aclose()
