"""Know the models that OpenAI's API lists. Clients ask for the list again and again, so each process reads it once in
`cache_s`, a few seconds: the names of all models, and the record of each that has OpenAI's API. The kind of a model's
servers is read once a minute, and at once for a model with a new version.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from api.services.lookups import Cache, fair_newest
from director.core.clock import Clock
from director.store.catalog import Catalog, has_openai_api
from director.store.deployments import Deployments, StoredDeployment
from director.store.models import Model

AT_ONCE: Final = 200
KIND_S: Final = 60.0
MOST_ACCOUNTS: Final = 1_000


class Kind(Struct, frozen=True):
    """The kind of the servers of a model's latest version; None without a version, '' while no server was ready.
    `latest_ms`: when that version was made.
    """

    latest_ms: int
    server: str | None
    until: float


class OpenAiModels:
    """Values of the last hour hold while `is_away` returns true. Raises BackendUnavailable for others."""

    def __init__(
        self,
        catalog: Catalog,
        deployments: Deployments,
        *,
        clock: Clock,
        cache_s: float,
        is_away: Callable[[], bool] | None = None,
    ) -> None:
        self._catalog = catalog
        self._deployments = deployments
        self._clock = clock
        self._kinds: Mapping[str, Kind] = {}
        self._models: Cache[str, Sequence[Model]] = Cache(clock=clock, ttl_s=cache_s, most=1, is_away=is_away)
        self._deployed: Cache[str, Sequence[StoredDeployment]] = Cache(
            clock=clock, ttl_s=cache_s, most=MOST_ACCOUNTS, is_away=is_away
        )

    async def all(self) -> Sequence[Model]:
        """Return the models whose latest version has OpenAI's API, or may have it, newest first: private ones too. They
        are among the newest 5,000 models. Of more, each owner has as many.
        """
        return await self._models.get("", self._load) or ()

    async def deployments(self, account: str) -> Sequence[StoredDeployment]:
        """Return the deployments of an account, newest first."""

        async def load() -> Sequence[StoredDeployment]:
            names = [name for _, name in await self._deployments.names(account)]
            return await self._deployments.many(account, names)

        return await self._deployed.get(account, load) or ()

    async def _load(self) -> Sequence[Model]:
        listed = {name: at_ms for at_ms, name in await self._catalog.models.list_all("latest")}
        names = fair_newest(list(listed))
        now = self._clock.monotonic()
        kinds = {name: kind for name in names if (kind := self._kinds.get(name)) and kind.until > now}
        asked = [name for name in names if name not in kinds or kinds[name].latest_ms != listed[name]]
        for some in _slices(asked):
            servers = await self._catalog.servers_of_latest(some)
            for name, server in zip(some, servers, strict=True):
                # a model without a ready server may get one at any time
                kinds[name] = Kind(listed[name], server, now + KIND_S if server else now)
        self._kinds = kinds
        found: list[Model] = []
        for some in _slices([name for name in names if has_openai_api(kinds[name].server)]):
            found += [model for model in await self._catalog.models.many(some) if model is not None]
        return found


def _slices(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + AT_ONCE] for start in range(0, len(names), AT_ONCE))
