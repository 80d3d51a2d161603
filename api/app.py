"""The front door as an ASGI application: every route of `routes.py`, and the errors and parts that they share.

Clients disagree on whether their base address ends in /v1, so every route is there with it, without it, and twice.
Slashes are never redirected: the official clients do not follow.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.routing import Router

from api.dashboard.page import elsewhere
from api.door import Door, Entrance, Handler
from api.metering import Meters
from api.response import proxy_networks
from api.routes import INTERNAL, PAGES, PROBES, ROUTES
from api.services import State
from api.sites.sites import Plan, all_running
from director.core.clock import Clock, SystemClock
from director.core.errors import UnsafeBackend
from director.core.settings import ApiSettings
from director.runtime.tracing import Tracing, tracing_of

BASES: Final = ("/v1", "", "/v1/v1")


def create_app(
    settings: ApiSettings,
    *,
    clock: Clock | None = None,
    on_unsafe: Callable[[UnsafeBackend], None] | None = None,
    tracing: Tracing | None = None,
) -> Door:
    """The application; connects to Redis when its lifespan begins. `on_unsafe` hears of a server that is too weak.
    `tracing`: instead of what the environment asks for.

    Raises SettingsError where the address of Redis is none, or that of a proxy, and for a file of sites that is none.
    """
    proxy_networks(settings.trusted_proxies)
    plan, meters = Plan.of(settings), Meters()

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[State]:
        time, told = clock or SystemClock(), on_unsafe or _refuse
        spans = tracing or tracing_of("api", accounts=settings.trace_accounts)
        async with all_running(plan, meters, clock=time, on_unsafe=told, tracing=spans) as state:
            yield state
        await spans.aclose()

    return Door(_entrances(), elsewhere=elsewhere, router=Router(lifespan=lifespan), meters=meters)


def _entrances() -> Mapping[str, Entrance]:
    """What answers at each path. All of its methods are together, so that a 405 names every one."""
    found: dict[str, dict[str, Handler]] = {}
    rows = [(method, base + path, handler) for base in BASES for method, path, handler in ROUTES]
    rows += [("GET", path, handler) for path, handler in (*PROBES, *PAGES)]
    for method, path, handler in (*rows, *INTERNAL):
        found.setdefault(path, {})[method] = handler
    return {path: Entrance(_template(path), handlers) for path, handlers in found.items()}


def _template(path: str) -> str:
    """Without its base: whichever of them a client uses, it asks for the same."""
    return path[path.rindex("/v1/") + len("/v1") :] if "/v1/" in path else path


def _refuse(exc: UnsafeBackend) -> None:
    raise exc
