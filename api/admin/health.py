"""Answer probes: whether the process is alive, and whether it can serve requests. Needs no token."""

import asyncio
from typing import Final

from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response

from api.sites.sites import Sites
from api.web.http import Request, json_response
from api.web.route import Route
from director.broker.redis_client import FULL
from director.core.errors import BackendUnavailable, UnsafeBackend


class Load(Struct, frozen=True):
    streams: int
    waits: int
    descriptors: int
    descriptors_limit: int


class Readiness(Struct, frozen=True, kw_only=True):
    """Whether the process can answer requests, and is `accepting` new runs. An absent Redis refuses those with 503, and
    a full one too, while its reads and cancels go on. `durability`: the level of its Redis. `reasons`: why it is not
    ready, or accepts nothing. `files`: what is wrong with the store of files; other requests are still served. `sites`:
    of several, `ready` or why not.
    """

    ready: bool
    accepting: bool
    load: Load
    reasons: tuple[str, ...] = ()
    durability: str | UnsetType = UNSET
    server: str | UnsetType = UNSET
    files: str | UnsetType = UNSET
    sites: dict[str, str] | UnsetType = UNSET


CHECK_S: Final = 2.0  # a server that vanished answers nothing, and a probe has no time for its time-outs
SILENT: Final = f"Redis is away: no answer within {CHECK_S:g} s"
LEAVING: Final = "this process is ending"


@Route("GET", "/livez")
async def livez(_request: Request) -> Response:
    """Answer that the event loop runs. Redis is not checked, or an outage would restart every replica."""
    return json_response({"status": "ok"})


@Route("GET", "/readyz")
async def readyz(request: Request) -> Response:
    """Answer whether requests may come here. Redis is checked, once a second at most.

    Answers 503 before Redis was reached for the first time, so that a rollout with a wrong address stops there; for a
    Redis that would lose work; and while the process ends. Not while Redis is away: every replica would leave the
    balancer at once, and callers would get refused connections in place of a 503 with Retry-After.
    """
    services = request.services
    load = Load(
        services.readers.reading, services.waiters.waiting, services.descriptors.open, services.descriptors.limit
    )
    if services.is_leaving:
        return json_response(Readiness(ready=False, accepting=False, load=load, reasons=(LEAVING,)), 503)
    if request.sites is not None:
        return _of_several(request.sites, load)
    try:
        async with asyncio.timeout(CHECK_S):
            server = await services.gate.check_recently()
            is_full = await services.memory.is_full()
    except UnsafeBackend as exc:
        return json_response(Readiness(ready=False, accepting=False, load=load, reasons=(str(exc),)), 503)
    except (BackendUnavailable, TimeoutError) as exc:
        is_open = services.gate.is_open
        reason = str(exc) if isinstance(exc, BackendUnavailable) else SILENT
        away = Readiness(ready=is_open, accepting=False, load=load, reasons=(reason,))
        return json_response(away, 200 if is_open else 503)
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
    is_up = any(site.is_up for site in sites.all)
    is_open = any(site.services.gate.is_open for site in sites.all)
    states = {site.name: "ready" if site.is_up else site.reason for site in sites.all}
    reasons = () if is_up else tuple(dict.fromkeys(states.values()))
    found = Readiness(ready=is_open, accepting=is_up, load=load, reasons=reasons, sites=states)
    return json_response(found, 200 if is_open else 503)
