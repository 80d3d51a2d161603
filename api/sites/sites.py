"""All Redis servers of one API, by name and by the number that ids have. The first is the home of accounts.

Where there is one server only, there is no `Sites`, and nothing here is asked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import random
from typing import Final, TypeVar

from starlette.requests import Request

from api.parts import Parts, parts_of
from api.refusals import Moved, invalid_header, not_found
from api.requests import VersionRef
from api.sites.placement import Look, in_order
from api.sites.site import Site
from api.sites.table import SiteTable
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId, site_of
from director.store.accounts import Account
from director.store.catalog import Version
from director.store.departure import server_name

__all__ = ("Sites", "others", "parts_asked", "parts_at", "sites_of", "version_named", "where_it_is")

Done = TypeVar("Done")

MOST_MOVES: Final = 4


class Sites:
    """`table` says what each may have; `all` has them in its order."""

    def __init__(self, table: SiteTable, sites: Sequence[Site]) -> None:
        self.table: Final = table
        self.all: Final = tuple(sites)
        self.home: Final = self.all[0]
        self.by_name: Final[Mapping[str, Site]] = {site.name: site for site in sites}
        self._by_number: Final[Mapping[int, Site]] = {site.row.number: site for site in sites}
        self._called: dict[str, Parts] = {}

    def of(self, prediction_id: PredictionId) -> Site | None:
        """Where it was placed; None for a site that is not there, or not any more."""
        return self._by_number.get(site_of(prediction_id))

    async def called(self, server: str) -> Parts | None:
        """The server of this name, which a prediction moved to; None where it is none of ours, or does not answer."""
        if server not in self._called:
            up = [site.parts for site in self.all if site.is_up]
            names = await asyncio.gather(*(server_name(parts.redis) for parts in up), return_exceptions=True)
            self._called |= {
                name: parts for name, parts in zip(names, up, strict=True) if isinstance(name, str) and name
            }
        return self._called.get(server)

    async def named(self, ref: VersionRef, account: Account) -> Version | None:
        """The version that this account means. The first site that knows the model says who may see it.

        Raises BackendUnavailable where the home is away, and what it says of this was not asked lately; and where it
        is nowhere else than perhaps at a site that is away.
        """
        is_seen, away = False, None
        latest = ref.version
        for site in self.all:
            lookups = site.parts.lookups
            try:
                name = ref.model or (await lookups.owner(ref.version) if ref.version else None)
                if name is None or not await lookups.has_model(name):
                    continue
                model = await lookups.model(name, account)
                if model is None and not is_seen:
                    return None
                is_seen = True
                latest = latest or (model.latest if model else None)
                if latest and (version := await lookups.version(name, latest)):
                    return version
            except BackendUnavailable as exc:
                if site is self.home:
                    raise
                away = exc
        if away is not None:
            raise away
        return None

    async def tried(self, version: Version, account: str, allowed: Sequence[Site]) -> list[tuple[Site, Version]]:
        """Those of these that have the version and answer, the best first, each with the version as it has it."""
        looks = await asyncio.gather(*(self._looked(site, version, account) for site in allowed if site.is_up))
        found = list(filter(None, looks))
        known = {site.name: (site, own) for site, own, _ in found}
        # from here to the first await of whoever asked, nobody else chooses
        candidates = [site.candidate(own.queue, look) for site, own, look in found]
        return [known[name] for name in in_order(candidates, self.table.placement, random)]

    async def _looked(self, site: Site, version: Version, account: str) -> tuple[Site, Version, Look] | None:
        try:
            own = await site.parts.lookups.version(version.model, version.id)
            look = None if own is None else await site.look(own.queue)
        except BackendUnavailable as exc:
            site.failed(str(exc))
            return None
        if look is None or own is None:
            return None
        try:
            await site.introduce(account)
        except BackendUnavailable:  # perhaps of the home: one that is not known there yet goes elsewhere
            return None
        return site, own, look

    def release(self) -> None:
        """The process is to end."""
        for site in self.all:
            site.parts.release()


def sites_of(request: Request) -> Sites | None:
    """All of them; None where there is one server."""
    sites: Sites | None = request.scope["state"]["sites"]
    return sites


def others(request: Request) -> Sequence[Site]:
    """All sites but the home; none where there is one server."""
    sites = sites_of(request)
    return () if sites is None else sites.all[1:]


def parts_at(request: Request, prediction_id: PredictionId) -> Parts:
    """What to ask for this prediction; 404 where there is no such site."""
    sites = sites_of(request)
    if sites is None:
        return parts_of(request)
    site = sites.of(prediction_id)
    if site is None:
        raise not_found()
    return site.parts


def parts_asked(request: Request) -> Parts:
    """What an operator asks: the site that `X-Site` names, else the home. 422 where there is none such."""
    sites, name = sites_of(request), request.headers.get("x-site")
    if sites is None or name is None:
        return parts_of(request)
    if name not in sites.by_name:
        raise invalid_header("X-Site", " or ".join(sites.by_name))
    return sites.by_name[name].parts


async def where_it_is(request: Request, prediction_id: PredictionId, act: Callable[[Parts], Awaitable[Done]]) -> Done:
    """What `act` does with the server that has this prediction: the one of its id, or where it moved to since.

    Raises what it does.
    """
    parts, sites = parts_at(request, prediction_id), sites_of(request)
    for _ in range(MOST_MOVES if sites else 0):
        try:
            return await act(parts)
        except Moved as exc:
            there = await sites.called(exc.to) if sites else None
            if there is None:
                raise
            parts = there
    return await act(parts)


async def version_named(request: Request, ref: VersionRef, account: Account) -> Version | None:
    """The version that this account means, wherever it is."""
    sites = sites_of(request)
    return await (parts_of(request).lookups if sites is None else sites).named(ref, account)
