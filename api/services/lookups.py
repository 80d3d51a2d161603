"""Look up accounts, models and versions through caches. A change is noticed within `cache_s`, a few seconds."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

from msgspec import Struct

from api.services.holders import Holders
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import QueueName
from director.store.accounts import Account, Accounts, digest
from director.store.aliases import Aliases
from director.store.catalog import Catalog, Version
from director.store.models import Model

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
# shorter, because a caller may ask for a thing just before it is created
LONGEST_ABSENCE_S: Final = 1.0
LONGEST_OUTAGE_S: Final = 3600.0


class Cache(Generic[Key, Value]):
    """Keeps at most `most` values, none older than `ttl_s`, or than an hour while `is_away` returns true. Callers that
    ask for the same key at once share one load. A failure is never cached: the next caller loads again. Keys without a
    value are kept apart, and a full cache drops a value of the account that has most (`whose`). So no account pushes
    out what others need in an outage.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        ttl_s: float,
        most: int,
        is_away: Callable[[], bool] | None = None,
        whose: Callable[[Key, Value], str] = lambda _key, _value: "",
    ) -> None:
        self._clock = clock
        self._is_away = is_away
        self._ttl_s = ttl_s
        self._most = most
        self._whose = whose
        self._kept: dict[Key, tuple[float, Value | None]] = {}
        self._present: Holders[Key] = Holders()  # of keys with a value
        self._absent: Holders[Key] = Holders()
        self._loading: dict[Key, asyncio.Task[Value | None]] = {}

    async def get(self, key: Key, load: Callable[[], Awaitable[Value | None]]) -> Value | None:
        """Return the cached value, else what `load` returns. None is cached too, for at most a second."""
        kept = self._kept.get(key)
        if kept is not None:
            over_s = self._clock.monotonic() - kept[0]
            if over_s < 0 or (self._is_away is not None and over_s < LONGEST_OUTAGE_S and self._is_away()):
                return kept[1]
        # A caller that leaves must not cancel the load for the others. No variable has the load, here or in `_load`:
        # its error has these frames in its traceback, so each would wait for the garbage collector.
        return await asyncio.shield(self._loading.get(key) or self._begin(key, load))

    def forget(self, key: Key) -> None:
        """Drop the value. The next caller loads it again, even if a load is running that began before this call."""
        self._drop(key)
        self._loading.pop(key, None)

    def _drop(self, key: Key) -> None:
        self._kept.pop(key, None)
        self._present.leave(key)
        self._absent.leave(key)

    def _begin(self, key: Key, load: Callable[[], Awaitable[Value | None]]) -> "asyncio.Task[Value | None]":
        loading = self._loading[key] = asyncio.create_task(self._load(key, load))
        # all callers may have left by then
        loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        return loading

    async def _load(self, key: Key, load: Callable[[], Awaitable[Value | None]]) -> Value | None:
        try:
            value = await load()
        except BackendUnavailable:
            kept = self._kept.get(key)  # the first caller finds out that the server is away
            if kept is None or self._is_away is None or self._clock.monotonic() - kept[0] >= LONGEST_OUTAGE_S:
                raise
            return kept[1]
        finally:
            is_current = self._loading.get(key) is asyncio.current_task()
            if is_current:
                del self._loading[key]
        if not is_current:
            return value
        ttl_s = self._ttl_s if value is not None else min(self._ttl_s, LONGEST_ABSENCE_S)
        self._drop(key)
        self._kept[key] = (self._clock.monotonic() + ttl_s, value)
        holders = self._absent if value is None else self._present
        holders.enter("" if value is None else self._whose(key, value), key)
        if len(holders) > self._most:
            self._drop(holders.oldest_of_largest())
        return value


MOST_TOKENS: Final = 10_000
MOST_MODELS: Final = 1_000
MOST_VERSIONS: Final = 250  # each has a schema, which may be a megabyte
MOST_CARDS: Final = 5_000
CARDS_AT_ONCE: Final = 200
MOST_TEXT: Final = 1_000  # characters of a description


class VersionRef(Struct, frozen=True, kw_only=True):
    """The version that a text names: a model's latest, a model's pinned one, or a version by its id alone."""

    model: str | None = None
    version: str | None = None


class Service(Struct, frozen=True):
    """Averages over a queue's recent runs: seconds of a run, 0 while unknown, and declared cost."""

    run_s: float
    cost: float


UNKNOWN: Final = Service(0, 1)


class Card(Struct, frozen=True):
    """A model or a collection as a search sees it, in lower case. `gist`: the beginning of its readme."""

    name: str
    owner: str = ""
    text: str = ""
    gist: str = ""


class Lookups:
    """Values of the last hour hold while `is_away` returns true. Raises BackendUnavailable for others."""

    def __init__(
        self,
        accounts: Accounts,
        catalog: Catalog,
        aliases: Aliases,
        scripts: Scripts,
        *,
        clock: Clock,
        cache_s: float,
        is_away: Callable[[], bool] | None = None,
    ) -> None:
        self._accounts = accounts
        self._catalog = catalog
        self._all_aliases = aliases
        self._scripts = scripts
        self._clock = clock
        brief = partial(Cache, clock=clock, ttl_s=cache_s)
        lasting = partial(brief, is_away=is_away)
        self._tokens: Cache[str, Account] = lasting(most=MOST_TOKENS, whose=lambda _, account: account.name)
        self._models: Cache[str, Model] = lasting(most=MOST_MODELS, whose=lambda name, _: _owner(name))
        self._owners: Cache[str, str] = lasting(most=MOST_MODELS, whose=lambda _, model: _owner(model))
        self._versions: Cache[tuple[str, str], Version] = lasting(
            most=MOST_VERSIONS, whose=lambda key, _: _owner(key[0])
        )
        # who has set one tries it at once, and a call of an unknown name must not be refused for longer
        self._aliases: Cache[str, Mapping[str, str]] = lasting(most=1, ttl_s=min(cache_s, LONGEST_ABSENCE_S))
        self._cards: Cache[str, Sequence[tuple[Model, Card]]] = brief(most=1)
        self._queues: Cache[str, Mapping[str, list[QueueName]]] = brief(most=1)
        self._services: Cache[QueueName, Service] = brief(most=MOST_MODELS)

    async def account(self, token: str) -> Account | None:
        return await self.account_of(digest(token))

    async def account_of(self, token_digest: str) -> Account | None:
        account = await self._tokens.get(token_digest, lambda: self._accounts.find(token_digest))
        is_over = account and account.expires_ms is not None and account.expires_ms <= self._clock.now_ms()
        return None if is_over else account

    async def model(self, name: str, account: Account) -> Model | None:
        """Return the model of this name if the account may see it: see `Model.may_be_seen_by`."""
        model = await self._models.get(name, lambda: self._catalog.model(name))
        return model if model is not None and model.may_be_seen_by(account) else None

    async def has_model(self, name: str) -> bool:
        return await self._models.get(name, lambda: self._catalog.model(name)) is not None

    async def owner(self, version: str) -> str | None:
        return await self._owners.get(version, lambda: self._catalog.model_of(version))

    async def version(self, model: str, version: str) -> Version | None:
        """Return a version of a model. The caller of this method has checked that the model is visible."""
        return await self._versions.get((model, version), lambda: self._catalog.version(model, version))

    async def find_named(self, ref: VersionRef, account: Account) -> Version | None:
        name = ref.model
        if name is None and ref.version is not None:
            name = await self.owner(ref.version)
        model = None if name is None else await self.model(name, account)
        if model is None:
            return None
        version = ref.version or model.latest
        return await self.version(model.name, version) if version else None

    def forget(self, model: str) -> None:
        """Drop a model that this process has just changed, so that its caller sees the change at once."""
        self._models.forget(model)

    async def aliases(self) -> Mapping[str, str]:
        """Return what each alias stands for. See `store/aliases`."""
        return await self._aliases.get("", self._all_aliases.all) or {}

    def forget_aliases(self) -> None:
        self._aliases.forget("")

    async def cards(self) -> Sequence[tuple[Model, Card]]:
        """Return what a search looks through: the newest 5,000 models, private ones too. Of more, each owner has as
        many, so that one with many models hides none of others.
        """

        async def load() -> Sequence[tuple[Model, Card]]:
            models = self._catalog.models
            names = fair_newest([name for _, name in await models.list_all("latest")])
            cards: list[tuple[Model, Card]] = []
            for start in range(0, len(names), CARDS_AT_ONCE):
                found = await models.many(names[start : start + CARDS_AT_ONCE])
                cards += [(model, _card(model)) for model in found if model is not None]
            return cards

        return await self._cards.get("", load) or []

    async def queues_of(self, model: str) -> Sequence[QueueName]:
        async def ask() -> Mapping[str, list[QueueName]]:
            found: dict[str, list[QueueName]] = {}
            for queue in await self._catalog.queues():
                found.setdefault(queue.rpartition(":")[0], []).append(queue)
            return found

        return (await self._queues.get("", ask) or {}).get(model, [])

    async def service(self, queue: QueueName) -> Service:
        async def ask() -> Service:
            stats = await self._scripts.stats(queue)
            return Service(stats.service_ms / 1000, stats.service_cost)

        return await self._services.get(queue, ask) or UNKNOWN


def fair_newest(oldest_first: Sequence[str]) -> list[str]:
    """Return the newest names, newest first, with the newest of each owner before the second one of any."""
    names, seen, ranks = oldest_first[::-1], Counter[str](), list[int]()
    for name in names:
        ranks.append(seen[_owner(name)])
        seen[_owner(name)] += 1
    kept = sorted(range(len(names)), key=ranks.__getitem__)[:MOST_CARDS]
    return [names[place] for place in sorted(kept)]


def _owner(model: str) -> str:
    return model.partition("/")[0]


def _card(model: Model) -> Card:
    owner, _, name = model.name.partition("/")
    return Card(name, owner, model.description[:MOST_TEXT].lower(), model.gist.lower())
