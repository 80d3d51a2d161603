"""List an account's predictions across one server or several, as if they were one. Ids sort by time wherever they were
made, so one cursor is enough. The response names sites that do not answer; raises BackendUnavailable if none does.
"""

import asyncio
from collections import ChainMap
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from starlette.requests import Request

from api.predictions.waiters import Glance
from api.services import Services, services_of
from api.sites.sites import sites_of
from director.broker.gatherer import LARGE_BYTES
from director.core.errors import BackendUnavailable
from director.core.ids import Kind, PredictionId, site_of
from director.core.schema import Stored
from director.files.data_files import DataAway

AWAY: Final = "X-Sites-Away"
Found = TypeVar("Found")


class Source(NamedTuple):
    name: str
    services: Services


class ListedId(NamedTuple):
    id: PredictionId
    source: Source


class Sighting(NamedTuple):
    glance: Glance
    source: Source


class Lists:
    """The lists of all servers, for one request. `away` names the sites that did not answer it."""

    def __init__(self, sources: Sequence[Source], away: Sequence[str] = ()) -> None:
        self._sources = tuple(sources)
        self.away = set(away)

    @classmethod
    def of(cls, request: Request) -> "Lists":
        if (sites := sites_of(request)) is None:
            return cls([Source("", services_of(request))])
        up = [Source(site.name, site.services) for site in sites.all if site.is_up]
        return cls(up, sorted(sites.by_name.keys() - {source.name for source in up}))

    async def ids(
        self, account: str, kind: Kind, *, low: str, high: str, count: int, newest_first: bool
    ) -> list[ListedId]:
        """Return at most `count` ids in order. A moved prediction is listed at its new site first, then at its old."""

        async def read(source: Source) -> list[ListedId]:
            ids = await source.services.predictions.ids(
                account, kind, low=low, high=high, count=count, newest_first=newest_first
            )
            return [ListedId(prediction_id, source) for prediction_id in ids]

        found = [one for some in await self._each(read, self._left) for one in some]
        if len(self._sources) > 1:
            found.sort(key=lambda one: site_of(one.id) == one.source.services.site)
            found.sort(key=lambda one: one.id, reverse=newest_first)
        return found[:count]

    async def look(self, listed: Sequence[ListedId]) -> list[Sighting]:
        """Return a glance at each, in order. Those whose site stopped answering meanwhile are left out."""

        async def read(source: Source) -> list[Sighting]:
            ids = [one.id for one in listed if one.source is source]
            return [Sighting(glance, source) for glance in await source.services.glances.at(ids)]

        found = [one for some in await self._each(read, self._left) for one in some]
        if len(self._sources) == 1:
            return found
        known = {(one.glance.id, one.source.name): one for one in found}
        return [known[one.id, one.source.name] for one in listed if (one.id, one.source.name) in known]

    async def read(self, looked: Sequence[Sighting]) -> list[Stored]:
        is_heavy = sum(one.glance.weight or 0 for one in looked) >= LARGE_BYTES

        async def get(one: Sighting) -> Stored | None:
            # without the outlook, which is expensive and not shown in a list
            scripts, glance = one.source.services.scripts, one.glance
            try:
                return await scripts.get(glance.id, outlook=False, size=glance.weight if is_heavy else None)
            except DataAway as exc:  # a file that cannot be read hides no other prediction, and no site
                return exc.without

        if len(self._sources) == 1:
            return [stored for stored in await asyncio.gather(*map(get, looked)) if stored is not None]

        async def of(source: Source) -> dict[tuple[PredictionId, str], Stored | None]:
            some = [one for one in looked if one.source is source]
            found = await asyncio.gather(*map(get, some))
            return {(one.glance.id, source.name): stored for one, stored in zip(some, found, strict=True)}

        found = dict(ChainMap(*await self._each(of, self._left)))
        return [stored for one in looked if (stored := found.get((one.glance.id, one.source.name))) is not None]

    @property
    def _left(self) -> list[Source]:
        return [source for source in self._sources if source.name not in self.away]

    async def _each(self, ask: Callable[[Source], Awaitable[Found]], sources: Sequence[Source]) -> list[Found]:
        if len(self._sources) == 1 and not self.away:
            return [await ask(self._sources[0])]
        answers = await asyncio.gather(*map(ask, sources), return_exceptions=True)
        found: list[Found] = []
        for source, answer in zip(sources, answers, strict=True):
            if isinstance(answer, BackendUnavailable):
                self.away.add(source.name)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append(answer)
        if not self._left:
            raise BackendUnavailable("no site answers")
        return found
