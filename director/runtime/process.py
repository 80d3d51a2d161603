"""Start and end a process: errors, signals, drain, the check of Redis, tracing, and its health over HTTP.

/livez, /readyz and /metrics carry no secrets and need no token. Each process adds its own checks.
"""

import asyncio
import importlib.util
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

import anyio
import msgspec
import uvicorn
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from director.broker.durability import check
from director.broker.redis_client import describe, require_answer
from director.broker.rights import Part, check_rights
from director.core.clock import Clock
from director.core.errors import BackendUnavailable, DirectorError, SettingsError, UnsafeBackend
from director.core.settings import CommonSettings
from director.runtime.bounded_http import BoundedHttp, Connections
from director.runtime.logs import configure
from director.runtime.metrics import Registry
from director.runtime.startup import collect_garbage_rarely, release_sigterm
from director.runtime.tracing import OFF, Tracing

log = logging.getLogger(__name__)

AnySettings = TypeVar("AnySettings", bound=CommonSettings)
Found = TypeVar("Found")
Check = Callable[[], Awaitable[str]]
"""Returns what is missing, in words for people, or '' if nothing is."""

ASK_AGAIN_S: Final = 1.0
NEXT_STEP: Final = "start it, or give its address: --redis or DIRECTOR_REDIS_URL. `director up` starts everything"
CHECK_S: Final = 2.0
SHUTDOWN_S: Final = 2
FRESH_S: Final = 1.0


def serve(name: str, command: str, main: Callable[[AnySettings], Awaitable[None]], settings: AnySettings) -> None:
    """Run a process until it ends. An error for the operator ends it with one line that names the command."""
    configure(settings.log_level, process=name)
    collect_garbage_rarely()
    has_uvloop = importlib.util.find_spec("uvloop") is not None
    try:
        anyio.run(main, settings, backend="asyncio", backend_options={"use_uvloop": has_uvloop})
    except DirectorError as exc:
        raise SystemExit(f"director {command}: {exc}") from exc


@contextmanager
def one_error() -> Iterator[None]:
    try:
        yield
    except ExceptionGroup as group:
        on_purpose, rest = group.split(DirectorError)
        if on_purpose is None or rest is not None:
            raise
        raise _first(on_purpose) from None


def _first(group: ExceptionGroup[DirectorError]) -> DirectorError:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, ExceptionGroup) else inner


async def drain_on_signal(signals: AsyncIterator[signal.Signals], drain: Callable[[], Awaitable[None]]) -> None:
    release_sigterm()
    async for _ in signals:
        break
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_on_signal, signals, tasks.cancel_scope)
        await drain()
        tasks.cancel_scope.cancel()


async def _cancel_on_signal(signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
    async for _ in signals:
        log.warning("drain cut short")
        scope.cancel()


@dataclass(eq=False)
class Health:
    """The answers of one process to /livez and /readyz. `checks`: name → a condition of readiness. `facts`: shown
    beside them; both may change. `figures` returns more facts at each request. `metrics`: the registry behind /metrics.
    `store_check` is a fact and no condition: without its store of files the process still works.
    """

    checks: dict[str, Check] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    store_check: Check | None = None
    figures: Callable[[], Mapping[str, Any]] = dict
    metrics: Registry | None = None

    def app(self, routes: Sequence[BaseRoute] = ()) -> Starlette:
        own = [Route("/livez", self._livez), Route("/readyz", self._readyz)]
        if self.metrics is not None:
            own.append(Route("/metrics", partial(_serve_metrics, self.metrics)))
        return Starlette(routes=[*own, *routes])

    async def missing(self) -> dict[str, str]:
        asked = self.checks.copy()  # a copy: the process may replace its checks meanwhile
        reasons = await asyncio.gather(*(_ask(check) for check in asked.values()))
        return {name: reason for name, reason in zip(asked, reasons, strict=True) if reason}

    async def files(self) -> dict[str, str]:
        """Return what is wrong with the store of files, as a fact."""
        reason = await _ask(self.store_check) if self.store_check is not None else ""
        return {"files": reason} if reason else {}

    async def _livez(self, _: Request) -> Response:
        # the answer comes from the loop that it is about: a loop that hangs does not answer
        return _json({"status": "alive"})

    async def _readyz(self, _: Request) -> Response:
        missing = await self.missing()
        status = "not ready" if missing else "ready"
        body = {"status": status, **self.facts, **self.figures(), **await self.files(), "missing": missing}
        return _json(body, status=503 if missing else 200)


async def _serve_metrics(metrics: Registry, request: Request) -> Response:
    text, kind = await metrics.page(request.headers.get("accept", ""))
    return Response(text, headers={"Content-Type": kind})


async def _ask(check: Check) -> str:
    with anyio.move_on_after(CHECK_S):
        return await check()
    return f"no answer within {CHECK_S:g} s"


def _json(body: dict[str, Any], *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")


class Recent(Generic[Found]):
    """Shares a look among all that ask within FRESH_S: callers without a token ask as often as they like. There is one
    look at a time, and its error is shared like a result.
    """

    def __init__(self, look: Callable[[], Coroutine[Any, Any, Found]], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._task: asyncio.Task[Found] | None = None
        self._looked_at = 0.0

    async def get(self) -> Found:
        now = self._clock.monotonic()
        if self._task is None or (self._task.done() and now - self._looked_at >= FRESH_S):
            self._task, self._looked_at = asyncio.create_task(self._look()), now
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())  # all may have left
        return await asyncio.shield(self._task)


async def look_at_redis(redis: Redis, settings: CommonSettings, health: Health, clock: Clock, *, part: Part) -> None:
    """Wait until Redis answers. Raises UnsafeBackend if it would lose accepted work, or refuses us a right.
    From then on /readyz shows its durability level, read again each second: after a failover it is another server's.
    """
    address = describe(settings.redis_url)
    while True:
        try:
            server = await check(redis, settings)
            await check_rights(redis, part)
        except BackendUnavailable as exc:
            log.warning("waiting for redis", extra={"address": address, "error": str(exc), "next": NEXT_STEP})
            await clock.sleep(ASK_AGAIN_S)
        else:
            break
    health.facts["durability"] = server.level
    health.checks["durability"] = Recent(partial(_safe, redis, settings, health), clock).get
    facts = {"address": address, "server": f"{server.kind} {server.version}", "durability": server.level}
    log.info("redis is ready", extra=facts)


async def _safe(redis: Redis, settings: CommonSettings, health: Health) -> str:
    try:
        health.facts["durability"] = (await check(redis, settings)).level
    except UnsafeBackend as exc:
        return str(exc)
    except BackendUnavailable:
        return ""  # the check of Redis itself reports that
    return ""


def redis_check(redis: Redis, clock: Clock) -> Check:
    """Return the check that Redis answers. It asks Redis once a second at most."""

    async def answers() -> str:
        try:
            await require_answer(redis)
        except BackendUnavailable as exc:
            return str(exc)
        return ""

    return Recent(answers, clock).get


async def serve_http(
    app: ASGIApp, *, host: str, port: int, started: Callable[[int], None], metrics: Registry | None = None
) -> None:
    """Serve `app` until canceled. `started` gets the port, which is a free one if `port` is 0. Signals stay with the
    process. Raises SettingsError if it cannot listen there.
    """
    listener = _listen(host, port)
    config = uvicorn.Config(
        app,
        http=cast(Any, partial(BoundedHttp, connections=Connections(metrics=metrics))),
        lifespan="off",
        log_config=None,
        access_log=False,
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    server = Server(config)
    # in a task of its own: a canceled uvicorn leaves its sockets open, so ask it to end instead
    serving = asyncio.create_task(server.serve([listener]))
    try:
        started(listener.getsockname()[1])
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        with anyio.CancelScope(shield=True):
            await serving


class Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as exc:
        raise SettingsError(f"Cannot listen on {host} port {port}: {exc}. Choose another, or 0 for any.") from exc


ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HTTP: Final = "http/protobuf"
NEEDED: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def tracing_of(process: str, *, accounts: bool, environ: Mapping[str, str] | None = None) -> Tracing:
    """Return the tracing that the standard variables ask for. A setup that cannot work is logged, and stops nothing."""
    environ = os.environ if environ is None else environ
    if not _is_wanted(environ):
        return OFF
    if next((environ[name] for name in PROTOCOLS if environ.get(name)), HTTP) != HTTP:
        log.error("tracing is off: its protocol is not supported", extra={"supported": HTTP})
        return OFF
    if not all(map(_is_installed, NEEDED)):
        log.error(
            "tracing is off: it is not installed",
            extra={"install": "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"},
        )
        return OFF
    from director.runtime.otel import OtelTracing

    try:
        return OtelTracing.exporting(process, accounts=accounts)
    except ValueError:  # log only the names: the error's text contains values
        variables = sorted(name for name in environ if name.startswith("OTEL_"))
        log.error(
            "tracing is off: its variables contradict each other, or one is invalid", extra={"variables": variables}
        )
        return OFF


def _is_wanted(environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "")
    return exporter == "otlp" or (not exporter and any(environ.get(name) for name in ENDPOINTS))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that would contain it is missing too
        return False
