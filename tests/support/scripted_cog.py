"""A server that answers byte for byte as a test says, for what a real Cog server cannot be made to show."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from msgspec import Struct

from director.lab.chaos.wire import BROKEN, Answer, listening
from director.lab.chaos.wire import Request as Exchange

HEALTHY: Final = {"status": "READY", "setup": {"started_at": "then"}, "version": {"coglet": "0.23.1"}}


class Script(Struct, frozen=True):
    act: Callable[[Exchange], Awaitable[None]]


def answer(status: int, body: bytes | dict[str, Any], **headers: str) -> Script:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join(
        [f"HTTP/1.1 {status} Scripted", f"content-length: {len(content)}", "connection: close", *lines, "\r\n"]
    )

    async def act(exchange: Exchange) -> None:
        await exchange.write(head.encode() + content)

    return Script(act)


def frame(event: str, data: dict[str, Any] | bytes) -> bytes:
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
        self._scripts[method, path] = list(scripts)

    def asked(self, method: str, path: str = "/predictions/") -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.method == method and exchange.path.startswith(path)]

    async def serve(self, exchange: Exchange) -> Answer:
        self.exchanges.append(exchange)
        scripts = self._scripts.get((exchange.method, exchange.path), [])
        script = scripts.pop(0) if len(scripts) > 1 else scripts[0] if scripts else answer(409, b"{}")
        with suppress(ConnectionError):
            await script.act(exchange)
        return BROKEN


@asynccontextmanager
async def scripted_cog(*, streams: bool = True, is_array: bool = True) -> AsyncGenerator[ScriptedCog, None]:
    cog = ScriptedCog("")
    schema = {
        "paths": {"/predictions": {"post": {"x-cog-streaming": streams}}},
        "components": {"schemas": {"Output": {"type": "array" if is_array else "string"}}},
    }
    cog.on("GET", "/health-check", answer(200, HEALTHY))
    cog.on("GET", "/health", answer(200, b"{}"))
    cog.on("GET", "/openapi.json", answer(200, schema))
    async with listening(cog.serve) as port:
        cog.url = f"http://127.0.0.1:{port}"
        yield cog
