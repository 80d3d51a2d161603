"""Run the API: `python -m api`. Settings come from the environment; an error at the start is one clear line. Starts
while Redis is away, and answers 503 until it is back. Exits by itself only if Redis would lose work.
"""

import asyncio
import logging
import socket
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import ip_address
from typing import Any, Final, cast

import uvicorn

from api.app import create_app
from api.protocol import Http
from api.web.http import is_address_in, proxy_networks
from director.core.errors import SettingsError, UnsafeBackend
from director.core.settings import ApiSettings, load
from director.runtime.bounded_http import Connections
from director.runtime.logs import configure
from director.runtime.startup import collect_garbage_rarely, raise_descriptor_limit, release_sigterm

log = logging.getLogger(__name__)
BACKLOG: Final = 2048
KEEP_ALIVE_S: Final = 75  # longer than the idle timeout of the usual proxy in front: the proxy must be the one to close
LEAVE_S: Final = 10
LAST_S: Final = 2.0  # a client that uses an idle connection meanwhile is answered, and told not to use it again
TICK_S: Final = 0.05


class Server(uvicorn.Server):
    """A uvicorn server that releases held responses and streams before it waits for them. Before it closes connections
    that are idle, it answers what their clients may just have sent, for LAST_S.
    """

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self._connections = connections

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        with super().capture_signals():
            release_sigterm()
            yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        state = self.lifespan.state
        self._connections.is_ending = True
        for connection in self._open():
            if connection.cycle is not None:
                connection.cycle.keep_alive = False  # of an answer under way
        (state["sites"] or state["services"]).release()
        until = time.monotonic() + LAST_S
        while self._open() and not self.force_exit and time.monotonic() < until:  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(TICK_S)
        await super().shutdown(sockets)

    def _open(self) -> list[Any]:
        return list(self.server_state.connections)


def main() -> int:
    try:
        settings = load(ApiSettings)
    except SettingsError as exc:
        return _report_failure(str(exc), code=2)
    configure(settings.log_level, process="api")
    raise_descriptor_limit()
    try:
        listener = _listen(settings.host, settings.port)
    except OSError as exc:
        reason = exc.strerror or str(exc)
        return _report_failure(
            f"Cannot listen on {settings.host}:{settings.port} ({reason}). Choose another: DIRECTOR_PORT=…"
        )
    bound_to = listener.getsockname()[0].partition("%")[0]
    if not settings.public_url and not ip_address(bound_to).is_loopback:
        # clients send their token to these addresses
        log.warning("any client chooses the host in the addresses of its answers: set DIRECTOR_PUBLIC_URL")
    with listener:
        try:
            return _serve(settings, listener)
        except SettingsError as exc:
            return _report_failure(str(exc), code=2)


def _serve(settings: ApiSettings, listener: socket.socket) -> int:
    unsafe: list[UnsafeBackend] = []

    def leave(exc: UnsafeBackend) -> None:
        unsafe.append(exc)
        server.should_exit = True

    app = create_app(settings, on_unsafe=leave)
    connections = Connections(
        most=settings.max_connections,
        per_peer=settings.max_peer_connections,
        is_exempt=partial(is_address_in, proxy_networks(settings.trusted_proxies)),
        metrics=app.meters.registry,
    )
    config = uvicorn.Config(app, http=cast(Any, partial(Http, connections=connections)), **_OPTIONS)
    server = Server(config, connections)
    collect_garbage_rarely()
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again after an orderly end
        server.run(sockets=[listener])
    return _report_failure(str(unsafe[0])) if unsafe else 0


_OPTIONS: Final[dict[str, Any]] = {
    "ws": "none",
    "lifespan": "on",
    "log_config": None,
    "access_log": False,
    "server_header": False,
    "proxy_headers": False,  # any client can send those headers
    "backlog": BACKLOG,
    "timeout_keep_alive": KEEP_ALIVE_S,
    "timeout_graceful_shutdown": LEAVE_S,
}


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _report_failure(line: str, *, code: int = 1) -> int:
    sys.stderr.write(f"director api: {line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
