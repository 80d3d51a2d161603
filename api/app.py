"""Assemble the API as an ASGI application: every declared route and the layer around them.
Clients disagree on whether their base ends in /v1, so every named route is served with /v1, without it, and with it
twice. OpenAI's API is at /openai/v1 only. Slashes are never redirected: the official clients do not follow.
"""

import re
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Router, compile_path
from starlette.types import Lifespan, Receive, Scope, Send

from api import dashboard
from api.accounts import account, sessions, usage
from api.accounts.auth import authenticate
from api.admin import accounts as admin_accounts
from api.admin import commands, dead, health, overview, queues, steps, system
from api.admin import models as admin_models
from api.admin import predictions as admin_predictions
from api.batches import batches
from api.batches import operators as batch_operators
from api.files import files, outputs
from api.models import collections, deployments, models, rollout, states
from api.openai import calls
from api.openai import errors as openai_errors
from api.openai import files as openai_files
from api.openai import models as openai_models
from api.predictions import predictions, streams
from api.services.log_ins import Proxy
from api.services.meters import NO_ROUTE, Meters
from api.sites.sites import Plan, State, all_running, answer_at_site
from api.web import openapi, reference
from api.web.cors import Origins, may_read
from api.web.errors import Code, invalid_host, is_expected, problem_of
from api.web.http import RawHeaders, Request, carry, list_allowed_hosts, names_allowed_host, proxy_networks, services_of
from api.web.route import OPENAI, Handler, Route, routes_of
from director.core.clock import Clock, SystemClock
from director.core.errors import UnsafeBackend
from director.core.settings import ApiSettings
from director.runtime.bounded_http import HEALTH_PATHS
from director.runtime.process import tracing_of
from director.runtime.tracing import Tracing

ROUTES: Final = routes_of(
    *(
        predictions,
        streams,
        models,
        states,
        collections,
        deployments,
        rollout,
        files,
        outputs,
        account,
        sessions,
        usage,
        openapi,
        reference,
    ),
    *(
        dead,
        admin_accounts,
        admin_models,
        admin_predictions,
        queues,
        overview,
        commands,
        steps,
        system,
        health,
        dashboard,
    ),
    *(openai_models, calls, openai_files, batches, batch_operators),
)

# An answer without a rule of its own may change. Some frameworks cache such a GET for ever
NEVER_CACHED: Final = (b"cache-control", b"no-store")
METRICS_PATH: Final = b"/metrics"
NAMED: Final = re.compile(r"\(\?P<\w+>")


def create_app(
    settings: ApiSettings,
    *,
    clock: Clock | None = None,
    on_unsafe: Callable[[UnsafeBackend], None] | None = None,
    tracing: Tracing | None = None,
) -> "Api":
    """Create the application, which connects to Redis when its lifespan begins. `on_unsafe` is called for a Redis that
    is too weak. `tracing` replaces the environment's. Raises SettingsError for an invalid address or file of sites.
    """
    proxy_networks(settings.trusted_proxies)
    Proxy.of(settings)
    hosts, plan, meters, origins = list_allowed_hosts(settings), Plan.of(settings), Meters(Code), Origins.of(settings)

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[State]:
        spans = tracing or tracing_of("api", accounts=settings.trace_accounts)
        async with all_running(
            plan, meters, clock=clock or SystemClock(), on_unsafe=on_unsafe or _refuse, tracing=spans
        ) as state:
            yield state
        await spans.aclose()

    routes = [route for route in ROUTES if settings.openai or not route.is_openai]
    return Api(
        routes,
        otherwise=dashboard.elsewhere,
        meters=meters,
        hosts=hosts,
        origins=origins,
        lifespan=lifespan,
    )


class Api:
    """The ASGI application: it finds the route, answers what the handler returns or raises, and counts both.
    `otherwise` answers unknown paths. `hosts`: those that a request may name; empty: any. `origins`: web pages whose
    scripts may read every answer. An unexpected exception is
    answered with 500 and raised again, to be logged.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        *,
        otherwise: Handler,
        meters: Meters,
        hosts: frozenset[str] = frozenset(),
        origins: Origins = Origins(),  # noqa: B008 - it is frozen
        lifespan: Lifespan[Any] | None = None,
    ) -> None:
        self.routes: Final = tuple(routes)
        self.meters: Final = meters
        self._otherwise: Final = otherwise
        self._hosts: Final = hosts
        self._origins: Final = origins
        self._has_origins: Final = origins != Origins()
        self._named: Final = _Paths(route for route in self.routes if route.name and not route.is_openai)
        self._plain: Final = _Paths(route for route in self.routes if route.is_openai or not route.name)
        self.router: Final = Router(lifespan=lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.router(scope, receive, send)
            return
        began = time.perf_counter()
        scope["app"] = self
        try:
            response = await self._answer(Request(scope, receive, send))
        except Exception as exc:  # any fault of a handler becomes an answer
            await self._count_response(self._refusal(exc, scope["path"]), scope, began)(scope, receive, send)
            if not is_expected(exc):
                raise
        else:
            await self._count_response(response, scope, began)(scope, receive, send)

    def _refusal(self, exc: Exception, path: str) -> Response:
        # Not in the caller. Its frame would hold the refusal, whose traceback holds the frame.
        is_openai = path.startswith(OPENAI)
        refusal = openai_errors.refuse(exc) if is_openai else problem_of(exc)
        self.meters.note_refusal(refusal.code)
        return openai_errors.answer(refusal) if is_openai else refusal.response()

    def _count_response(self, response: Response, scope: Scope, began: float) -> Response:
        """Count the response before it is sent, and add the headers that its request carries."""
        path = scope["route"].path if "route" in scope else NO_ROUTE
        self.meters.note_answer(path, scope["method"], response.status_code, time.perf_counter() - began)
        if not any(name == b"cache-control" for name, _ in response.raw_headers):
            response.raw_headers.append(NEVER_CACHED)
        response.raw_headers += scope["state"].get("carried", ())
        return response

    async def _answer(self, request: Request) -> Response:
        scope, method = request.scope, request.method
        if scope["raw_path"] not in HEALTH_PATHS and not self._is_host_right(request):
            raise invalid_host()
        path = _without_base(scope["path"])
        if (found := self._named.find(method, path)) is not None:
            scope["path"] = path
        elif (found := self._plain.find(method, scope["path"])) is None:
            carry(request, self._origins.headers(request.headers))
            return await self._otherwise(request)
        scope["route"], scope["path_params"] = found
        methods = found[0].methods
        route = methods.get("GET" if method == "HEAD" else method)
        shown = route or methods.get("GET")
        read_by: RawHeaders = ()
        if self._has_origins or (shown is not None and shown.is_open):
            read_by = self._origins.headers(request.headers, shown)
            carry(request, read_by)
        if route is None:
            headers = {"Allow": ", ".join(sorted({*methods, "OPTIONS", *(("HEAD",) if "GET" in methods else ())}))}
            if method != "OPTIONS":
                raise HTTPException(405, headers=headers)
            may_send = self._origins.preflight(request.headers, methods) if may_read(read_by) else {}
            return Response(status_code=204, headers={**headers, **may_send})
        if route.scopes:
            request.account = await authenticate(request, *route.scopes, bucket=route.bucket, frees=route.frees)
        request.services = services_of(request)
        if route.of is not None:
            request.prediction_id = route.of(request)
        if request.sites is not None:
            return await answer_at_site(request, route)
        if route.bucket == "create":
            request.services.gate.pass_through()
        return await route.handler(request)

    def _is_host_right(self, request: Request) -> bool:
        # Prometheus names the address of a pod, which no list can have, and the answer has no address
        any_is_right = not self._hosts or request.scope["raw_path"] == METRICS_PATH
        return request.names_one_host and (any_is_right or names_allowed_host(request, self._hosts))


class _Path(Struct, frozen=True, eq=False):
    path: str
    parameters: tuple[str, ...]
    methods: dict[str, Route]


class _Paths:
    """Find a path's routes with one regular expression for each method, in 2 µs for a model's predictions where
    Starlette's router takes 24. A literal part goes before a parameter.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        known: dict[str, _Path] = {}
        for route in routes:
            path = known.setdefault(route.path, _Path(route.path, tuple(compile_path(route.path)[2]), {}))
            if path.methods.setdefault(route.method, route) is not route:
                raise ValueError(f"{route.method} {route.path} is declared twice.")
        paths = sorted(known.values(), key=lambda each: [part.startswith("{") for part in each.path.split("/")])
        methods = {method for each in paths for method in each.methods}
        self._any = _pattern(paths)
        self._by_method = {method: _pattern([each for each in paths if method in each.methods]) for method in methods}

    def find(self, method: str, path: str) -> tuple[_Path, dict[str, str]] | None:
        """Return a path that has the method, else any that matches, with its parameters."""
        for pattern, paths in (self._by_method.get("GET" if method == "HEAD" else method, self._any), self._any):
            found = pattern.fullmatch(path)
            if found is not None and found.lastindex is not None:
                known = paths[found.lastindex]
                return known, dict(zip(known.parameters, found.groups()[found.lastindex :], strict=False))
        return None


def _pattern(paths: Iterable[_Path]) -> tuple[re.Pattern[str], dict[int, _Path]]:
    """Return a pattern of all paths, and each path by the number of its group."""
    parts, by_group, group = ["(?!)"], {}, 1
    for each in paths:
        parts.append(NAMED.sub("(", f"({compile_path(each.path)[0].pattern[1:-1]})"))
        by_group[group] = each
        group += 1 + len(each.parameters)
    return re.compile("|".join(parts)), by_group


def _without_base(path: str) -> str:
    for _ in range(2):
        if path.startswith("/v1/"):
            path = path[len("/v1") :]
    return path


def _refuse(exc: UnsafeBackend) -> None:
    raise exc
