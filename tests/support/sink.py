"""A webhook receiver of one's own: real HTTP on loopback, answers as told, and remembers all it was sent.

    async with sink() as s:
        s.answers.append(Answer(status=500))    # for the next one only; then 200 again
        ...deliver to s.url...
        await s.arrived(2)
        headers, body = s.received[1]

Never verifies a signature: that is for the test to do.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple, cast

import uvicorn
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ("Answer", "Received", "Sink", "sink")

CHUNK: Final = b"x" * 65_536


class Answer(Struct, frozen=True, kw_only=True):
    """The receiver's answer to one webhook. `reset` breaks the connection instead of answering.

    `body`: its text; `body_bytes`: an answer of that size. `stall`: stop after the status and a first byte.
    """

    status: int = 200
    headers: Mapping[str, str] = {}
    delay_s: float = 0.0
    body: bytes = b""
    body_bytes: int = 0
    stall: bool = False
    reset: bool = False


class Received(NamedTuple):
    """One webhook. Header names are lower case."""

    headers: Mapping[str, str]
    body: bytes


class Sink:
    """The receiver. `answers` are used up one by one; then `answer` applies."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.port = int(url.rpartition(":")[2].partition("/")[0])
        self.answers: deque[Answer] = deque()
        self.answer = Answer()
        self.received: list[Received] = []
        self.targets: list[str] = []  # path and query of each, as they came over the wire
        self.peers: list[tuple[str, int]] = []  # where each came from: one per connection
        self.open = 0  # being answered now
        self.sent_bytes = 0  # of large answers, all together
        self._changed = asyncio.Condition()
        self._closing = asyncio.Event()

    async def arrived(self, count: int) -> None:
        """Wait until that many webhooks have arrived."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.received) >= count)

    def close(self) -> None:
        """Release senders that are kept waiting."""
        self._closing.set()

    async def __call__(self, request: Request) -> Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        received = Received(headers, await request.body())
        self.open += 1
        try:
            async with self._changed:
                self.received.append(received)
                self.targets.append(_target(request))
                self.peers.append(cast(tuple[str, int], tuple(request.scope["client"])))
                self._changed.notify_all()
            return await self._answered(self.answers.popleft() if self.answers else self.answer, request)
        finally:
            self.open -= 1

    async def _answered(self, answer: Answer, request: Request) -> Response:
        if answer.delay_s:
            await self._wait(answer.delay_s)
        if answer.reset:
            request.scope["extensions"]["reset"]()
            return Response()
        headers = dict(answer.headers)
        if answer.stall or answer.body_bytes:
            return StreamingResponse(self._body(answer), status_code=answer.status, headers=headers)
        return Response(answer.body, status_code=answer.status, headers=headers)

    async def _body(self, answer: Answer) -> AsyncGenerator[bytes]:
        for _ in range(0, answer.body_bytes, len(CHUNK)):
            yield CHUNK
            self.sent_bytes += len(CHUNK)
        if answer.stall:
            yield b"x"
            await self._closing.wait()

    async def _wait(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self._closing.wait()
        except TimeoutError:
            pass


class Server(uvicorn.Server):
    """uvicorn inside a test: it reports when it is ready, and leaves the signals to pytest."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then report it."""
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Capture no signals."""
        yield


class Resettable(H11Protocol):
    """An HTTP protocol whose application may reset its own connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Hand the application a way to reset the connection, in the scope of each of its requests."""
        super().connection_made(transport)
        app = self.app

        async def with_reset(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "extensions": {"reset": lambda: _reset(transport)}}, receive, send)

        self.app = with_reset


@asynccontextmanager
async def sink(port: int = 0) -> AsyncGenerator[Sink]:
    """Run a receiver on a free port of 127.0.0.1, or on that of an earlier one, until the block ends."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        receiver = Sink(f"http://127.0.0.1:{listener.getsockname()[1]}/hook")
        app = Starlette(routes=[Route("/{rest:path}", receiver.__call__, methods=["POST"])])
        server = Server(uvicorn.Config(app, http=Resettable, lifespan="off", log_config=None, ws="none"))
        serving = asyncio.create_task(server.serve([listener]))
        try:
            await server.ready.wait()
            yield receiver
        finally:
            receiver.close()
            server.should_exit = True
            await serving


def _target(request: Request) -> str:
    path, query = cast(bytes, request.scope["raw_path"]), cast(bytes, request.scope["query_string"])
    return (path + b"?" + query if query else path).decode()


def _reset(transport: asyncio.Transport) -> None:
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST, not FIN
    transport.abort()
