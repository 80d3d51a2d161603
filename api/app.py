"""The front door as an ASGI application: which path leads to which room.

Clients disagree on whether their base address ends in /v1, so every route is there with it, without it, and twice.
Slashes are never redirected: the official clients do not follow.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.accounts import get_account, get_webhook_secret
from api.admin import drop_dead, drop_one_dead, get_dead, list_dead, revive_dead, revive_one_dead
from api.admin_accounts import (
    change_account,
    create_account,
    create_token,
    get_account_of_all,
    list_accounts,
    list_tokens,
    revoke_token,
)
from api.answers import carried
from api.batches import create_batch
from api.collections import get_collection, list_collections, list_hardware
from api.deployments import (
    create_deployment,
    create_of_deployment,
    delete_deployment,
    get_deployment,
    list_deployments,
    update_deployment,
)
from api.events import get_events
from api.files import create_file, delete_file, download_file, get_file, list_files
from api.health import livez, readyz
from api.listing import list_predictions
from api.models import change_model, delete_model, get_examples, get_model, get_readme, list_models, make_model
from api.outputs import get_output
from api.parts import Clients, State, running
from api.predictions import cancel, create, create_of_model, delete, explain, get
from api.problems import EXCEPTION_HANDLERS
from api.search import query_models, search
from api.streams import preflight, stream
from api.urls import proxy_networks
from api.versions import delete_version, get_version, list_versions
from api.webhooks import get_webhooks, redeliver
from director.core.clock import Clock, SystemClock
from director.core.errors import UnsafeBackend
from director.core.settings import ApiSettings

__all__ = ("create_app",)

Handler = Callable[[Request], Awaitable[Response]]

BASES: Final = ("/v1", "", "/v1/v1")

ROUTES: Final[tuple[tuple[str, str, Handler], ...]] = (
    ("POST", "/predictions", create),
    ("GET", "/predictions", list_predictions),
    ("POST", "/predictions/batch", create_batch),
    ("GET", "/predictions/{id}", get),
    ("DELETE", "/predictions/{id}", delete),
    ("GET", "/predictions/{id}/explain", explain),
    ("GET", "/predictions/{id}/events", get_events),
    ("GET", "/predictions/{id}/webhooks", get_webhooks),
    ("POST", "/predictions/{id}/webhooks/redeliver", redeliver),
    ("POST", "/predictions/{id}/cancel", cancel),
    ("GET", "/streams/{address}", stream),
    ("OPTIONS", "/streams/{address}", preflight),
    ("GET", "/models", list_models),
    ("POST", "/models", make_model),
    ("QUERY", "/models", query_models),
    ("GET", "/models/{owner}/{name}", get_model),
    ("PATCH", "/models/{owner}/{name}", change_model),
    ("DELETE", "/models/{owner}/{name}", delete_model),
    ("GET", "/models/{owner}/{name}/readme", get_readme),
    ("GET", "/models/{owner}/{name}/examples", get_examples),
    ("POST", "/models/{owner}/{name}/predictions", create_of_model),
    ("GET", "/models/{owner}/{name}/versions", list_versions),
    ("GET", "/models/{owner}/{name}/versions/{id}", get_version),
    ("DELETE", "/models/{owner}/{name}/versions/{id}", delete_version),
    ("GET", "/deployments", list_deployments),
    ("POST", "/deployments", create_deployment),
    ("GET", "/deployments/{owner}/{name}", get_deployment),
    ("PATCH", "/deployments/{owner}/{name}", update_deployment),
    ("DELETE", "/deployments/{owner}/{name}", delete_deployment),
    ("POST", "/deployments/{owner}/{name}/predictions", create_of_deployment),
    ("GET", "/collections", list_collections),
    ("GET", "/collections/{slug}", get_collection),
    ("GET", "/hardware", list_hardware),
    ("GET", "/search", search),
    ("POST", "/files", create_file),
    ("GET", "/files", list_files),
    ("GET", "/files/{id}", get_file),
    ("DELETE", "/files/{id}", delete_file),
    ("GET", "/files/{id}/download", download_file),
    ("GET", "/files/{id}/download/{name}", download_file),
    ("GET", "/outputs/{name}", get_output),
    ("GET", "/account", get_account),
    ("GET", "/webhooks/default/secret", get_webhook_secret),
    ("GET", "/admin/dead", list_dead),
    ("POST", "/admin/dead/revive", revive_dead),
    ("POST", "/admin/dead/drop", drop_dead),
    ("GET", "/admin/dead/{id}", get_dead),
    ("POST", "/admin/dead/{id}/revive", revive_one_dead),
    ("POST", "/admin/dead/{id}/drop", drop_one_dead),
    ("GET", "/admin/accounts", list_accounts),
    ("POST", "/admin/accounts", create_account),
    ("GET", "/admin/accounts/{name}", get_account_of_all),
    ("PATCH", "/admin/accounts/{name}", change_account),
    ("GET", "/admin/accounts/{name}/tokens", list_tokens),
    ("POST", "/admin/accounts/{name}/tokens", create_token),
    ("DELETE", "/admin/accounts/{name}/tokens/{id}", revoke_token),
)
PROBES: Final[tuple[tuple[str, Handler], ...]] = (("/livez", livez), ("/readyz", readyz))


def create_app(
    settings: ApiSettings, *, clock: Clock | None = None, on_unsafe: Callable[[UnsafeBackend], None] | None = None
) -> Starlette:
    """The application; connects to Redis when its lifespan begins. `on_unsafe` hears of a server that is too weak.

    Raises SettingsError where the address of Redis is none, or that of a proxy.
    """
    proxy_networks(settings.trusted_proxies)
    clients = Clients.of(settings)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[State]:
        time, told = clock or SystemClock(), on_unsafe or _refuse
        async with running(settings, clients, clock=time, on_unsafe=told) as parts:
            yield {"parts": parts}

    routes = [
        Route(base + path, _carrying(handler), methods=[method]) for base in BASES for method, path, handler in ROUTES
    ]
    routes += [Route(path, handler, methods=["GET"]) for path, handler in PROBES]
    app = Starlette(routes=routes, exception_handlers=EXCEPTION_HANDLERS, lifespan=lifespan)
    app.router.redirect_slashes = False
    return app


def _carrying(handler: Handler) -> Handler:
    async def answer(request: Request) -> Response:
        return carried(request, await handler(request))

    return answer


def _refuse(exc: UnsafeBackend) -> None:
    raise exc
