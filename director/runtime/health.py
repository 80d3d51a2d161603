"""Serve /livez, /readyz and /metrics over HTTP, for the director and the keeper.

Each process adds its own checks. Answers carry no secrets and need no token.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final

import anyio
import msgspec
import uvicorn
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from director.broker.redis_client import ask
from director.core.errors import BackendUnavailable, SettingsError
from director.runtime.metrics.registry import Registry

Check = Callable[[], Awaitable[str]]
"""Returns what is missing, in words for people, or '' if nothing is."""

CHECK_S: Final = 2.0
SHUTDOWN_S: Final = 2


class Health:
    """The answers of one process to /livez and /readyz.

    `checks`: name → a condition of readiness. `facts`: shown beside them, such as the durability level. Both may change
    while the process runs. `figures` returns more facts at each request. `metrics`: the registry behind /metrics, if
    any.
    """

    def __init__(self) -> None:
        self.checks: dict[str, Check] = {}
        self.facts: dict[str, str] = {}
        self.figures: Callable[[], Mapping[str, Any]] = dict
        self.metrics: Registry | None = None

    def app(self, routes: Sequence[BaseRoute] = ()) -> Starlette:
        """Return an application with /livez, /readyz and /metrics, beside the process's own `routes`."""
        own = [Route("/livez", self._livez), Route("/readyz", self._readyz)]
        if self.metrics is not None:
            own.append(Route("/metrics", partial(_scraped, self.metrics)))
        return Starlette(routes=[*own, *routes])

    async def missing(self) -> dict[str, str]:
        """Return the name and reason of each check that does not hold."""
        asked = self.checks.copy()  # a copy: the process may replace its checks meanwhile
        reasons = await asyncio.gather(*(_asked(check) for check in asked.values()))
        return {name: reason for name, reason in zip(asked, reasons, strict=True) if reason}

    async def _livez(self, _: Request) -> Response:
        # the answer comes from the loop that it is about: a loop that hangs does not answer
        return _json({"status": "alive"})

    async def _readyz(self, _: Request) -> Response:
        missing = await self.missing()
        body = {"status": "not ready" if missing else "ready", **self.facts, **self.figures(), "missing": missing}
        return _json(body, status=503 if missing else 200)


def redis_check(redis: Redis) -> Check:
    """Return a check that holds while Redis answers."""

    async def answers() -> str:
        try:
            await ask(redis.ping)
        except BackendUnavailable as exc:
            return str(exc)
        return ""

    return answers


async def serve_http(app: ASGIApp, *, host: str, port: int, started: Callable[[int], None]) -> None:
    """Serve `app` until canceled. `started` gets the port, which is a free one if `port` is 0.

    Signals stay with the process. Raises SettingsError if it cannot listen there.
    """
    listener = _listen(host, port)
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    async with _serving(Server(config), listener) as serving:
        started(listener.getsockname()[1])
        await asyncio.shield(serving)


class Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the process around it."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def _serving(server: uvicorn.Server, listener: socket.socket) -> AsyncGenerator["asyncio.Task[None]"]:
    # in a task of its own: a canceled uvicorn leaves its sockets open, so ask it to end instead
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield serving
    finally:
        server.should_exit = True
        with anyio.CancelScope(shield=True):
            await serving


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as exc:
        raise SettingsError(f"Cannot listen on {host} port {port}: {exc}. Choose another, or 0 for any.") from exc


async def _scraped(metrics: Registry, request: Request) -> Response:
    text, kind = await metrics.page(request.headers.get("accept", ""))
    return Response(text, headers={"Content-Type": kind})


async def _asked(check: Check) -> str:
    with anyio.move_on_after(CHECK_S):
        return await check()
    return f"no answer within {CHECK_S:g} s"


def _json(body: dict[str, Any], *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")
