"""Speak just enough HTTP/1.1 for the parties of a run: no framework, a start in a tenth of a second, little CPU.

The machine's time belongs to the code under test. This is only for loopback and for peers of a run: every body but a
stream has a length, nothing is pipelined, and nothing is limited.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

from msgspec import Struct

NONE: Final[Mapping[str, str]] = {}
REASONS: Final = {200: "OK", 202: "Accepted", 404: "Not Found", 409: "Conflict", 500: "Internal Server Error"}


class Request(Struct, kw_only=True):
    """One request. `gone` is set when its client hangs up before the answer. Header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    gone: asyncio.Event


class Answer(Struct, frozen=True):
    """One answer. A server that returns status 0 breaks the connection instead. Header names are lower case."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}


class Unanswered(Exception):
    """No answer came, or it came too late. The request may have been carried out."""


Handler = Callable[[Request], Awaitable[Answer]]


async def serve(handler: Handler, port: int) -> None:
    """Answer requests on this loopback port, for ever."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await _exchange(handler, reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client hung up
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", port, backlog=512)
    async with server:
        await server.serve_forever()


class Caller:
    """A client of one server that keeps its connections. It does not retry: that is for its user."""

    def __init__(self, url: str) -> None:
        self._host = url.removeprefix("http://")
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(
        self, method: str, path: str, body: bytes = b"", *, headers: Mapping[str, str] = NONE, within_s: float
    ) -> Answer:
        """Send a request and read the answer. Raises Unanswered."""
        try:
            async with asyncio.timeout(within_s):
                return await self._ask(method, path, body, headers)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as exc:
            raise Unanswered(repr(exc)) from exc

    async def _ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        if self._idle:
            reader, writer = self._idle.pop()
        else:
            name, _, port = self._host.partition(":")
            reader, writer = await asyncio.open_connection(name, int(port))
        fields = {
            "host": self._host,
            "content-type": "application/json",
            "content-length": str(len(body)),
            **headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        is_whole = False
        try:
            writer.write(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
            status_line, headers_back = await _head(reader)
            content = await reader.readexactly(int(headers_back.get("content-length", "0")))
            is_whole = headers_back.get("connection", "").lower() != "close"
        finally:
            if is_whole:
                self._idle.append((reader, writer))
            else:
                writer.transport.abort()
        return Answer(int(status_line.split(" ")[1]), content, headers_back)

    @asynccontextmanager
    async def follow(
        self, path: str, *, headers: Mapping[str, str] = NONE, within_s: float, silent_s: float
    ) -> AsyncGenerator[tuple[int, AsyncIterator[bytes]]]:
        """GET a stream on a new connection. Yield the status, and an iterator over the pieces of the body.

        Raises Unanswered, inside the block too, if the stream breaks or sends nothing for `silent_s`.
        """
        writer = None
        try:
            async with asyncio.timeout(within_s):
                name, _, port = self._host.partition(":")
                reader, writer = await asyncio.open_connection(name, int(port))
                lines = "".join(f"{name}: {value}\r\n" for name, value in {"host": self._host, **headers}.items())
                writer.write(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
                status_line, _ = await _head(reader)
            yield int(status_line.split(" ")[1]), _pieces(reader, silent_s)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as exc:
            raise Unanswered(repr(exc)) from exc
        finally:
            if writer is not None:
                writer.transport.abort()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            _, writer = self._idle.pop()
            writer.close()


async def post(url: str, body: bytes, *, within_s: float) -> None:
    """POST JSON to an http:// address of this machine, on a new connection. Raises Unanswered."""
    host, _, path = url.removeprefix("http://").partition("/")
    caller = Caller(f"http://{host}")
    try:
        await caller.ask("POST", f"/{path}", body, within_s=within_s)
    finally:
        caller.close()


async def _exchange(handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer one request. Return whether the connection is good for another."""
    request_line, headers = await _head(reader)
    method, path, _ = request_line.split(" ")
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    request = Request(method=method, path=path, headers=headers, body=body, gone=asyncio.Event())
    watching = asyncio.create_task(_watch(reader, request.gone))
    try:
        answer = await handler(request)
    finally:
        watching.cancel()
        await asyncio.wait({watching})
    if answer.status == 0 or request.gone.is_set():
        return False
    head = f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, 'Answer')}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(answer.body)}\r\n\r\n".encode() + answer.body)
    await writer.drain()
    return headers.get("connection", "").lower() != "close"


async def _pieces(reader: asyncio.StreamReader, silent_s: float) -> AsyncGenerator[bytes]:
    """Yield the chunks of a body until its end."""
    while True:
        async with asyncio.timeout(silent_s):
            size = int(await reader.readuntil(b"\r\n"), 16)
            piece = (await reader.readexactly(size + 2))[:size]
        if not size:
            return
        yield piece


async def _head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    """Read the first line of a message, and its headers."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    return first, {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def _watch(reader: asyncio.StreamReader, gone: asyncio.Event) -> None:
    with suppress(ConnectionError):
        if await reader.read(1):
            return  # it sends before it has its answer, so it gets no further answers
    gone.set()
