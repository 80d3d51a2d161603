"""A server that answers byte for byte as a test says, for what a real Cog server cannot be made to show.

Without a script it answers 409 to a prediction.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from msgspec import Struct

__all__ = ("Exchange", "Script", "ScriptedCog", "answer", "frame", "scripted_cog", "stream")

HEALTHY: Final = {"status": "READY", "setup": {"started_at": "then"}, "version": {"coglet": "0.23.1"}}


class Exchange:
    """One request, and the connection for its answer."""

    def __init__(
        self, writer: asyncio.StreamWriter, *, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.client_left = asyncio.Event()
        self._writer = writer

    async def write(self, data: bytes) -> None:
        """Send these bytes unchanged."""
        self._writer.write(data)
        await self._writer.drain()


class Script(Struct, frozen=True):
    """The answer to one request. The connection is closed after it."""

    act: Callable[[Exchange], Awaitable[None]]


def answer(status: int, body: bytes | dict[str, Any], **headers: str) -> Script:
    """Return a script of an ordinary answer. Underscores in header names become dashes."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join(
        [f"HTTP/1.1 {status} Scripted", f"content-length: {len(content)}", "connection: close", *lines, "\r\n"]
    )

    async def act(exchange: Exchange) -> None:
        await exchange.write(head.encode() + content)

    return Script(act)


def frame(event: str, data: dict[str, Any] | bytes) -> bytes:
    """One event of a stream."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), data if isinstance(data, bytes) else json.dumps(data).encode())


def stream(*chunks: bytes, whole: bool = True, then: Callable[[Exchange], Awaitable[None]] | None = None) -> Script:
    """Return a script of an event stream of these chunks. Unless `whole`, the connection closes in its middle."""

    async def act(exchange: Exchange) -> None:
        await exchange.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for chunk in chunks:
            await exchange.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        if then is not None:
            await then(exchange)
        if whole:
            await exchange.write(b"0\r\n\r\n")

    return Script(act)


class ScriptedCog:
    """Scripts by path, each used once, in order; the last one stays. `exchanges` holds every request."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.exchanges: list[Exchange] = []
        self._scripts: dict[tuple[str, str], list[Script]] = {}

    def on(self, method: str, path: str, *scripts: Script) -> None:
        """Answer such requests with these scripts."""
        self._scripts[method, path] = list(scripts)

    def asked(self, method: str, path: str = "/predictions/") -> list[Exchange]:
        """Return the requests so far with this method whose path begins like this."""
        return [exchange for exchange in self.exchanges if exchange.method == method and exchange.path.startswith(path)]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's one request."""
        try:
            exchange = await _read(reader, writer)
        except asyncio.IncompleteReadError:  # a client canceled while it connects sends no request
            writer.close()
            return
        self.exchanges.append(exchange)
        scripts = self._scripts.get((exchange.method, exchange.path), [])
        script = scripts.pop(0) if len(scripts) > 1 else scripts[0] if scripts else answer(409, b"{}")
        leaving = asyncio.create_task(_watch(reader, exchange))
        try:
            with suppress(ConnectionError):
                await script.act(exchange)
        finally:
            leaving.cancel()
            writer.close()


@asynccontextmanager
async def scripted_cog(*, streams: bool = True, is_array: bool = True) -> AsyncGenerator[ScriptedCog, None]:
    """Serve on loopback. It appears as a READY coglet whose model streams, and knows no prediction."""
    cog = ScriptedCog("")
    server = await asyncio.start_server(cog.serve, "127.0.0.1", 0)
    cog.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    schema = {
        "paths": {"/predictions": {"post": {"x-cog-streaming": streams}}},
        "components": {"schemas": {"Output": {"type": "array" if is_array else "string"}}},
    }
    cog.on("GET", "/health-check", answer(200, HEALTHY))
    cog.on("GET", "/openapi.json", answer(200, schema))
    async with server:
        yield cog


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange:
    request, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    method, path, _ = request.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Exchange(writer, method=method, path=path, headers=headers, body=body)


async def _watch(reader: asyncio.StreamReader, exchange: Exchange) -> None:
    with suppress(ConnectionError):
        await reader.read(1)
    exchange.client_left.set()
