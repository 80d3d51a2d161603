"""Speak just enough HTTP/1.1 for the parties of a run and for tests. It is imported in 0.13 s, httpx and the
directors' transport in 0.24 s, and no code under judgment may serve its judges. Only for loopback: nothing is
pipelined or limited.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final

from msgspec import Struct

NONE: Final[Mapping[str, str]] = {}
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Request(Struct, kw_only=True, eq=False):
    """One request. `gone` is set when its client hangs up before the answer. Header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    gone: asyncio.Event
    writer: asyncio.StreamWriter

    async def write(self, data: bytes) -> None:
        """Send these bytes unchanged, for an answer that no `Answer` can be. Return BROKEN after it."""
        self.writer.write(data)
        await self.writer.drain()


class Answer(Struct, frozen=True):
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}


BROKEN: Final = Answer(0)
"""A server returns it to end the connection without an answer."""


class Unanswered(Exception):
    """No answer came, or it came too late. The request may have been carried out."""


Handler = Callable[[Request], Awaitable[Answer]]


@asynccontextmanager
async def listening(handler: Handler, port: int = 0, *, at: socket.socket | None = None) -> AsyncGenerator[int]:
    """Answer requests on this port of 127.0.0.1, or on a free one, and yield it. No connection outlives the block.
    `at`: a socket that listens already, perhaps on another machine.
    """
    tasks = set[asyncio.Task[None]]()

    async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await _exchange(handler, reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client hung up

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(task := asyncio.create_task(serve_connection(reader, writer)))
        task.add_done_callback(tasks.discard)
        # a task that is canceled before it starts runs no `finally`
        task.add_done_callback(lambda _: writer.close())

    at = at or socket.create_server(("127.0.0.1", port), backlog=512)
    async with await asyncio.start_server(accept, sock=at, backlog=512) as server:
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            for task in tasks:
                task.cancel()


class Caller:
    """A client of one server that keeps its connections. It does not retry."""

    def __init__(self, url: str) -> None:
        self._host = url.removeprefix("http://")
        self._idle: list[Connection] = []

    async def ask(
        self, method: str, path: str, body: bytes = b"", *, headers: Mapping[str, str] = NONE, within_s: float
    ) -> Answer:
        with _raise_unanswered():
            async with asyncio.timeout(within_s):
                connection = self._idle.pop() if self._idle else await self._connect()
                is_whole = False
                try:
                    status, headers_back = await self._send(connection, method, path, headers, body)
                    content = await connection[0].readexactly(int(headers_back.get("content-length", "0")))
                    is_whole = headers_back.get("connection", "").lower() != "close"
                finally:
                    if is_whole:
                        self._idle.append(connection)
                    else:
                        connection[1].transport.abort()
                return Answer(status, content, headers_back)

    @asynccontextmanager
    async def follow(
        self,
        path: str,
        *,
        method: str = "GET",
        body: bytes = b"",
        headers: Mapping[str, str],
        within_s: float,
        silent_s: float,
    ) -> AsyncGenerator[tuple[Answer, AsyncIterator[bytes]]]:
        """Ask for a stream on a new connection. Any other answer has a body. Raises Unanswered, inside the block
        too, if it breaks or is silent for `silent_s`.
        """
        connection = None
        with _raise_unanswered():
            try:
                async with asyncio.timeout(within_s):
                    connection = await self._connect()
                    status, headers_back = await self._send(connection, method, path, headers, body)
                    content = await connection[0].readexactly(int(headers_back.get("content-length", "0")))
                is_stream = "content-length" not in headers_back
                yield Answer(status, content, headers_back), _pieces(connection[0], silent_s if is_stream else None)
            finally:
                if connection is not None:
                    connection[1].transport.abort()

    async def _connect(self) -> Connection:
        name, _, port = self._host.partition(":")
        return await asyncio.open_connection(name, int(port))

    async def _send(
        self, connection: Connection, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[int, dict[str, str]]:
        reader, writer = connection
        writer.write(_message(f"{method} {path} HTTP/1.1", {"host": self._host, **headers}, body))
        status_line, headers_back = await _read_head(reader)
        return int(status_line.split(" ")[1]), headers_back

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].close()


@contextmanager
def _raise_unanswered() -> Iterator[None]:
    try:
        yield
    except (OSError, asyncio.IncompleteReadError, TimeoutError) as exc:
        raise Unanswered(repr(exc)) from exc


async def _exchange(handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    request_line, headers = await _read_head(reader)
    method, path, _ = request_line.split(" ")
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    gone = asyncio.Event()
    request = Request(method=method, path=path, headers=headers, body=body, gone=gone, writer=writer)
    watching = asyncio.create_task(_watch(reader, gone))
    try:
        answer = await handler(request)
    finally:
        watching.cancel()
        await asyncio.wait({watching})
    if answer is BROKEN or gone.is_set():
        return False
    writer.write(_message(f"HTTP/1.1 {answer.status} Answer", answer.headers, answer.body))
    await writer.drain()
    return headers.get("connection", "").lower() != "close"


async def _pieces(reader: asyncio.StreamReader, silent_s: float | None) -> AsyncGenerator[bytes]:
    while silent_s is not None:
        async with asyncio.timeout(silent_s):
            size = int(await reader.readuntil(b"\r\n"), 16)
            piece = (await reader.readexactly(size + 2))[:size]
        if not size:
            return
        yield piece


def _message(first: str, headers: Mapping[str, str], body: bytes) -> bytes:
    fields = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{first}\r\n{lines}\r\n".encode() + body


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    return first, {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def _watch(reader: asyncio.StreamReader, gone: asyncio.Event) -> None:
    with suppress(ConnectionError):
        if await reader.read(1):
            return  # it sends before it has its answer, so it gets no further answers
    gone.set()
