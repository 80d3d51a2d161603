"""Answer probes: whether the process is alive, and whether it can serve requests. Needs no token."""

from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response

from api.http import Request, json_response
from api.route import Route
from api.sites.sites import Sites, sites_of
from director.broker.redis_client import FULL
from director.core.errors import BackendUnavailable, UnsafeBackend


class Load(Struct, frozen=True):
    streams: int
    waits: int
    descriptors: int
    descriptors_limit: int


class Readiness(Struct, frozen=True, kw_only=True):
    """Whether the process can serve requests, and is `accepting` new runs: a full Redis refuses those, while reads and
    cancels go on. `durability`: the level of its Redis. `reasons`: why it is not ready, or accepts nothing.
    `files`: what is wrong with the store of files; other requests are still served. `sites`: of several, `ready` or why
    not.
    """

    ready: bool
    accepting: bool
    load: Load
    reasons: tuple[str, ...] = ()
    durability: str | UnsetType = UNSET
    server: str | UnsetType = UNSET
    files: str | UnsetType = UNSET
    sites: dict[str, str] | UnsetType = UNSET


@Route("GET", "/livez")
async def livez(_request: Request) -> Response:
    """Answer that the event loop runs. Redis is not checked, or an outage would restart every replica."""
    return json_response({"status": "ok"})


@Route("GET", "/readyz")
async def readyz(request: Request) -> Response:
    """Check Redis, once a second at most. Answers 503 if it is away or unsafe; with several sites, if all are."""
    services = request.services
    load = Load(
        services.readers.reading, services.waiters.waiting, services.descriptors.open, services.descriptors.limit
    )
    if (sites := sites_of(request)) is not None:
        return _of_several(sites, load)
    try:
        server = await services.gate.checked()
        is_full = await services.memory.is_full()
    except (BackendUnavailable, UnsafeBackend) as exc:
        return json_response(Readiness(ready=False, accepting=False, load=load, reasons=(str(exc),)), 503)
    found = f"{server.kind} {server.version}"
    files = (await services.store_check.missing() if services.store_check else "") or UNSET
    reasons = (FULL,) if is_full else ()
    return json_response(
        Readiness(
            ready=True,
            accepting=not is_full,
            load=load,
            reasons=reasons,
            durability=server.level,
            server=found,
            files=files,
        )
    )


def _of_several(sites: Sites, load: Load) -> Response:
    """Report the sites as of the last check, a second ago: a site that is away would delay the answer."""
    up = [site for site in sites.all if site.is_up]
    states = {site.name: "ready" if site.is_up else site.reason for site in sites.all}
    reasons = () if up else tuple(dict.fromkeys(states.values()))
    is_up = bool(up)
    return json_response(
        Readiness(ready=is_up, accepting=is_up, load=load, reasons=reasons, sites=states), 200 if is_up else 503
    )
