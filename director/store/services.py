"""Build all typed access to one Redis server once: the API, the command line, the keeper and the doctor share it."""

from redis.asyncio import Redis

from director.broker.gatherer import Gatherer, Meter
from director.broker.scripts import Scripts
from director.core.account_limits import UNLIMITED, AccountLimits
from director.core.clock import Clock, SystemClock
from director.files.data_files import DataFiles
from director.store.accounts import Accounts
from director.store.across import Across
from director.store.administration import Administration, Suspensions
from director.store.aliases import Aliases
from director.store.catalog import Catalog
from director.store.changes import Changes
from director.store.dead import DeadLetters
from director.store.deployments import Deployments
from director.store.directors import Directors
from director.store.erasure import Erasure
from director.store.ledger import Ledger
from director.store.models import Collections, Examples, ModelConfigs
from director.store.owed import Owed, Redelivery
from director.store.predictions import Predictions
from director.store.queues import QueueAdministration, QueueHistory, Queues
from director.store.removal import Removal
from director.store.sessions import Sessions
from director.store.trends import Trends


class Services:
    """Building it connects to nothing. `at_once` bounds the writes of scripts under way; `meter` counts each. Without
    `data_files`, predictions whose data is in a file store cannot be read.
    """

    def __init__(
        self,
        redis: Redis,
        clock: Clock | None = None,
        *,
        limits: AccountLimits = UNLIMITED,
        at_once: int | None = None,
        meter: Meter | None = None,
        data_files: DataFiles | None = None,
    ) -> None:
        self.redis = redis
        self.clock = clock = clock or SystemClock()
        self.gatherer = Gatherer(redis, at_once=at_once, meter=meter)
        self.data_files = data_files = data_files or DataFiles(clock)
        self.scripts = scripts = Scripts(self.gatherer, whole=data_files.whole)
        self.accounts = Accounts(redis, limits, clock)
        self.catalog = Catalog(redis, scripts, clock)
        self.changes = Changes(redis, scripts, clock)
        self.aliases = Aliases(redis, self.changes)
        self.collections = Collections(redis)
        self.configs = ModelConfigs(redis, scripts, clock)
        self.dead = DeadLetters(redis, scripts, clock)
        self.deployments = Deployments(redis, scripts, clock)
        self.directors = Directors(redis)
        self.examples = Examples(redis, scripts)
        self.history = QueueHistory(redis)
        self.ledger = Ledger(redis, scripts, self.catalog)
        self.owed = Owed(redis, self.catalog)
        self.redelivery = Redelivery(self.owed, scripts, self.changes)
        self.predictions = Predictions(redis)
        self.across = Across(
            redis, scripts, clock, self.accounts, self.catalog, self.predictions, self.changes, data_files
        )
        self.queue_administration = QueueAdministration(scripts, self.changes)
        self.queues = Queues(redis, self.catalog, scripts)
        self.removal = Removal(redis, scripts, self.catalog)
        self.sessions = Sessions(redis, scripts)
        self.suspensions = Suspensions(redis, self.accounts, self.catalog, scripts, clock)
        self.erasure = Erasure(
            redis, scripts, clock, self.accounts, self.catalog, self.suspensions, self.deployments, self.changes
        )
        self.trends = Trends(redis)
        self.administration = Administration(self.accounts, self.catalog, scripts, self.suspensions, self.changes)

    async def aclose(self) -> None:
        await self.gatherer.aclose()
        await self.redis.aclose()
