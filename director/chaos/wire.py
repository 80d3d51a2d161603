"""Just enough HTTP/1.1 for the servers of a run: one loop, no framework, a start in a tenth of a second.

Only for loopback and for clients that are ours: no chunked requests, no pipelining, no limits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from msgspec import Struct

__all__ = ("Answer", "Handler", "Request", "post", "serve")

REASONS = {200: "OK", 202: "Accepted", 404: "Not Found", 409: "Conflict", 500: "Internal Server Error"}


class Request(Struct, kw_only=True):
    """One request. `gone` is set when its client hangs up before the answer. Header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    gone: asyncio.Event


class Answer(Struct, frozen=True):
    """What to say. Status 0: break the connection instead."""

    status: int = 200
    body: bytes = b""


Handler = Callable[[Request], Awaitable[Answer]]


async def serve(handler: Handler, port: int) -> None:
    """Answer requests on this loopback port, for ever."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while await _exchange(handler, reader, writer):
                pass
        writer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", port, backlog=512)
    async with server:
        await server.serve_forever()


async def post(url: str, body: bytes) -> None:
    """POST JSON to an http:// address of this machine and wait for the head of the answer."""
    host, _, path = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    head = f"POST /{path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    try:
        await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()


async def _exchange(handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """One request and its answer; is the connection good for another?"""
    try:
        request_line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    except asyncio.IncompleteReadError:
        return False
    method, path, _ = request_line.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
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


async def _watch(reader: asyncio.StreamReader, gone: asyncio.Event) -> None:
    with suppress(ConnectionError):
        if await reader.read(1):
            return  # a client of ours that does not wait for its answer: it is not served on
    gone.set()
