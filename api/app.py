"""The front door as an ASGI application: every route of `routes.py`, and the errors and parts that they share.

Clients disagree on whether their base address ends in /v1, so every route is there with it, without it, and twice.
Slashes are never redirected: the official clients do not follow.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.answers import carried
from api.dashboard.page import elsewhere
from api.handlers import EXCEPTION_HANDLERS
from api.metering import Metering, Meters
from api.parts import State
from api.routes import INTERNAL, PAGES, PROBES, ROUTES, Handler
from api.sites.running import Plan, all_running
from api.urls import proxy_networks
from director.core.clock import Clock, SystemClock
from director.core.errors import UnsafeBackend
from director.core.settings import ApiSettings
from director.core.tracing import Tracing, tracing_of

__all__ = ("create_app",)

BASES: Final = ("/v1", "", "/v1/v1")


def create_app(
    settings: ApiSettings,
    *,
    clock: Clock | None = None,
    on_unsafe: Callable[[UnsafeBackend], None] | None = None,
    tracing: Tracing | None = None,
) -> Starlette:
    """The application; connects to Redis when its lifespan begins. `on_unsafe` hears of a server that is too weak.
    `tracing`: instead of what the environment asks for.

    Raises SettingsError where the address of Redis is none, or that of a proxy, and for a file of sites that is none.
    """
    proxy_networks(settings.trusted_proxies)
    plan, meters = Plan.of(settings), Meters()

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[State]:
        time, told = clock or SystemClock(), on_unsafe or _refuse
        spans = tracing or tracing_of("api", accounts=settings.trace_accounts)
        async with all_running(plan, meters, clock=time, on_unsafe=told, tracing=spans) as state:
            yield state
        await spans.aclose()

    routes = [_route(base + path, handlers) for base in BASES for path, handlers in _by_path().items()]
    routes += [Route(path, handler, methods=["GET"]) for path, handler in PROBES]
    routes += [Route(path, handler, methods=[method]) for method, path, handler in INTERNAL]
    routes += [Route(path, handler, methods=["GET"]) for path, handler in PAGES]
    templates = {route.endpoint: _template(route.path) for route in routes}
    metering = Middleware(Metering, meters=meters, routes=templates)
    app = Starlette(routes=routes, exception_handlers=EXCEPTION_HANDLERS, lifespan=lifespan, middleware=[metering])
    app.router.redirect_slashes = False
    app.router.default = elsewhere
    return app


def _by_path() -> Mapping[str, Mapping[str, Handler]]:
    """What answers at each path, by method, in the order of the table."""
    found: dict[str, dict[str, Handler]] = {}
    for method, path, handler in ROUTES:
        found.setdefault(path, {})[method] = handler
    return found


def _route(path: str, handlers: Mapping[str, Handler]) -> Route:
    """All methods of one path, so that a 405 names every one. HEAD is GET without a body; OPTIONS names the others."""
    allowed = sorted({*handlers, "OPTIONS", *(["HEAD"] if "GET" in handlers else [])})

    async def answer(request: Request) -> Response:
        handler = handlers.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            return Response(status_code=204, headers={"Allow": ", ".join(allowed)})
        return carried(request, await handler(request))

    return Route(path, answer, methods=allowed)


def _template(path: str) -> str:
    """Without its base: whichever of them a client uses, it asks for the same."""
    return path[path.rindex("/v1/") + len("/v1") :] if "/v1/" in path else path


def _refuse(exc: UnsafeBackend) -> None:
    raise exc
