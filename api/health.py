"""Is the process alive, and can it take requests? For probes: no token is needed, and nothing private is told."""

from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response

from api.request import Request
from api.response import json_response
from api.route import Route
from api.sites.sites import Sites, sites_of
from director.core.errors import BackendUnavailable, UnsafeBackend


class Liveness(Struct, frozen=True):
    """That there is an answer is the answer."""

    status: str = "ok"


class Load(Struct, frozen=True):
    """Who is held now, and how many descriptors of how many are open."""

    streams: int
    waits: int
    descriptors: int
    descriptors_limit: int


class Readiness(Struct, frozen=True, kw_only=True):
    """`durability` is the level of the server behind us; `reasons` say why we are not ready.

    `files`: what is wrong with their store. All that needs none is answered nevertheless. `sites`: where there are
    several, each `ready`, or why it is not.
    """

    ready: bool
    load: Load
    reasons: tuple[str, ...] = ()
    durability: str | UnsetType = UNSET
    server: str | UnsetType = UNSET
    files: str | UnsetType = UNSET
    sites: dict[str, str] | UnsetType = UNSET


@Route("GET", "/livez")
async def livez(_request: Request) -> Response:
    """Answer that the process turns its loop. Redis is no part of it, or an outage would restart every replica."""
    return json_response(Liveness())


@Route("GET", "/readyz")
async def readyz(request: Request) -> Response:
    """Look at Redis now. 503 where it is away or loses what it accepts; of several sites, where all do."""
    services = request.services
    load = Load(
        services.readers.reading, services.waiters.waiting, services.descriptors.open, services.descriptors.limit
    )
    if (sites := sites_of(request)) is not None:
        return _of_several(sites, load)
    try:
        server = await services.gate.run_once()
    except (BackendUnavailable, UnsafeBackend) as exc:
        return json_response(Readiness(ready=False, load=load, reasons=(str(exc),)), 503)
    found = f"{server.kind} {server.version}"
    files = (await services.store_check.missing() if services.store_check else "") or UNSET
    return json_response(Readiness(ready=True, load=load, durability=server.level, server=found, files=files))


def _of_several(sites: Sites, load: Load) -> Response:
    """As they were found a second ago, since one that is away would hold the answer up."""
    up = [site for site in sites.all if site.is_up]
    told = {site.name: "ready" if site.is_up else site.reason for site in sites.all}
    reasons = () if up else tuple(dict.fromkeys(told.values()))
    return json_response(Readiness(ready=bool(up), load=load, reasons=reasons, sites=told), 200 if up else 503)
