"""Who asks, and what may be run: accounts and catalogue, as they were a few seconds ago.

A token that was revoked, a limit that was set, or a version that was registered, is noticed within `cache_s`.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from api.cache import Belief, Cache
from api.requests import VersionRef
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.ids import QueueName
from director.core.search import Card
from director.store.accounts import Account, Accounts
from director.store.catalog import Catalog, Version
from director.store.models import Model
from director.store.tokens import digest

__all__ = ("Lookups", "Service")

MOST_TOKENS: Final = 10_000
MOST_MODELS: Final = 1_000
MOST_VERSIONS: Final = 250  # each holds a schema, which may be a megabyte
MOST_CARDS: Final = 5_000
CARDS_AT_ONCE: Final = 200
MOST_TEXT: Final = 1_000  # of a description


class Service(Struct, frozen=True):
    """A queue's runs lately: how long one takes, 0 while nobody knows, and what it was declared to cost, on average."""

    run_s: float
    cost: float


UNKNOWN: Final = Service(0, 1)


class Lookups:
    """Reads through small caches. All methods raise BackendUnavailable while Redis cannot answer, but for what was
    known up to an hour ago where `believes` says so.
    """

    def __init__(
        self,
        accounts: Accounts,
        catalog: Catalog,
        scripts: Scripts,
        *,
        clock: Clock,
        cache_s: float,
        believes: Belief | None = None,
    ) -> None:
        self._accounts = accounts
        self._catalog = catalog
        self._scripts = scripts
        self._clock = clock
        self._tokens: Cache[str, Account] = Cache(clock=clock, ttl_s=cache_s, most=MOST_TOKENS, believes=believes)
        self._models: Cache[str, Model] = Cache(clock=clock, ttl_s=cache_s, most=MOST_MODELS, believes=believes)
        self._owners: Cache[str, str] = Cache(clock=clock, ttl_s=cache_s, most=MOST_MODELS, believes=believes)
        self._versions: Cache[tuple[str, str], Version] = Cache(
            clock=clock, ttl_s=cache_s, most=MOST_VERSIONS, believes=believes
        )
        self._cards: Cache[str, Sequence[tuple[Model, Card]]] = Cache(clock=clock, ttl_s=cache_s, most=1)
        self._queues: Cache[str, Mapping[str, list[QueueName]]] = Cache(clock=clock, ttl_s=cache_s, most=1)
        self._services: Cache[QueueName, Service] = Cache(clock=clock, ttl_s=cache_s, most=MOST_MODELS)

    async def account(self, token: str) -> Account | None:
        """Who this token speaks for, and what its account may use. Kept by its digest, as everywhere."""
        account = await self._tokens.get(digest(token), lambda: self._accounts.authenticate(token))
        is_over = account and account.expires_ms is not None and account.expires_ms <= self._clock.now_ms()
        return None if is_over else account

    async def model(self, name: str, account: Account) -> Model | None:
        """The model of this name, for whom there is one: see `Model.may_be_seen_by`."""
        model = await self._models.get(name, lambda: self._catalog.model(name))
        return model if model is not None and model.may_be_seen_by(account) else None

    async def has_model(self, name: str) -> bool:
        """Is there a model of this name, for whomever?"""
        return await self._models.get(name, lambda: self._catalog.model(name)) is not None

    async def owner(self, version: str) -> str | None:
        """The model of a version that is named by its id alone."""
        return await self._owners.get(version, lambda: self._catalog.model_of(version))

    async def version(self, model: str, version: str) -> Version | None:
        """A version of a model that was found to be one of those that the caller may see."""
        return await self._versions.get((model, version), lambda: self._catalog.version(model, version))

    async def named(self, ref: VersionRef, account: Account) -> Version | None:
        """The version that this account means: pinned, a model's latest, or whichever model has this id."""
        name = ref.model
        if name is None and ref.version is not None:
            name = await self.owner(ref.version)
        model = None if name is None else await self.model(name, account)
        if model is None:
            return None
        version = ref.version or model.latest
        return await self.version(model.name, version) if version else None

    def forget(self, model: str) -> None:
        """What is said of it was changed through this process: whoever did so sees it at once."""
        self._models.forget(model)

    async def cards(self) -> Sequence[tuple[Model, Card]]:
        """What a search looks through: the newest few thousand models, private ones too."""

        async def load() -> Sequence[tuple[Model, Card]]:
            models = self._catalog.models
            names = [name for _, name in await models.listed("latest")][: -MOST_CARDS - 1 : -1]
            cards: list[tuple[Model, Card]] = []
            for start in range(0, len(names), CARDS_AT_ONCE):
                found = await models.many(names[start : start + CARDS_AT_ONCE])
                cards += [(model, _card(model)) for model in found if model is not None]
            return cards

        return await self._cards.get("", load) or []

    async def queues_of(self, model: str) -> Sequence[QueueName]:
        """Every queue of a model's versions, as of a few seconds ago."""

        async def ask() -> Mapping[str, list[QueueName]]:
            found: dict[str, list[QueueName]] = {}
            for queue in await self._catalog.queues():
                found.setdefault(queue.rpartition(":")[0], []).append(queue)
            return found

        return (await self._queues.get("", ask) or {}).get(model, [])

    async def service(self, queue: QueueName) -> Service:
        """What a run of this queue takes. Raises UnknownQueue."""

        async def ask() -> Service:
            stats = await self._scripts.stats(queue)
            return Service(stats.service_ms / 1000, stats.service_cost)

        return await self._services.get(queue, ask) or UNKNOWN


def _card(model: Model) -> Card:
    owner, _, name = model.name.partition("/")
    return Card(name, owner, model.description[:MOST_TEXT].lower(), model.gist.lower())
