"""The API's protocol does with uvicorn what it relies on."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.types import Scope
from uvicorn.server import ServerState

from api.predictions.streams import Pieces
from api.protocol import Http
from director.runtime.bounded_http import Connections

Act = Callable[[Pieces, Scope], Awaitable[None]]
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
END = {"type": "http.response.body", "body": b""}


@asynccontextmanager
async def asking(act: Act, headers: Sequence[tuple[bytes, bytes]] = ()) -> AsyncIterator[Client]:
    """Yield a client that has asked for a response, whose pieces `act` sends."""
    faults: list[BaseException] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        pieces = Pieces(scope, send)
        try:
            assert not pieces.push(b"too early"), "before the head"
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await act(pieces, scope)
            await send(END)
            assert not pieces.push(b"too late"), "after the end"
        except BaseException as exc:
            faults.append(exc)
            raise

    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    make = lambda: Http(config, ServerState(), {}, connections=Connections())  # noqa: E731
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    yield reader, writer
    writer.close()
    server.close()
    assert not faults


async def test_pushed_pieces_and_others_are_one_body_in_order() -> None:
    async def act(pieces: Pieces, _: Scope) -> None:
        await pieces(b"a")
        assert pieces.push(b"bc")
        assert pieces.push(b"")
        await pieces(b"d")
        assert pieces.push(b"e" * 20)

    async with asking(act) as (reader, _):
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head.lower()
        body = await reader.readuntil(b"0\r\n\r\n")
    assert body == b"1\r\na\r\n2\r\nbc\r\n1\r\nd\r\n14\r\n" + b"e" * 20 + b"\r\n0\r\n\r\n"


async def test_nothing_is_pushed_to_a_client_that_takes_nothing() -> None:
    refused, read = asyncio.Event(), asyncio.Event()
    taken = 0

    async def act(pieces: Pieces, _: Scope) -> None:
        nonlocal taken
        while pieces.push(b"x" * 65_536):
            taken += 65_536
            assert taken < 100_000_000
            await asyncio.sleep(0)
        refused.set()
        await pieces(b"y")
        assert pieces.push(b"z"), "it takes again"
        read.set()

    async with asking(act) as (reader, _):
        async with asyncio.timeout(20):
            await refused.wait()
            body = b""
            while not read.is_set() or not body.endswith(b"0\r\n\r\n"):
                body += await reader.read(1 << 20)
    assert body.count(b"x") == taken
    assert body.endswith(b"1\r\ny\r\n1\r\nz\r\n0\r\n\r\n")


async def test_nothing_is_pushed_to_a_client_that_is_gone() -> None:
    pushed = asyncio.get_running_loop().create_future()

    async def act(pieces: Pieces, scope: Scope) -> None:
        await scope["state"]["gone"]
        pushed.set_result(pieces.push(b"a"))

    async with asking(act) as (reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        assert not await asyncio.wait_for(pushed, 20)


async def test_nothing_is_pushed_into_a_body_with_a_length() -> None:
    async def act(pieces: Pieces, _: Scope) -> None:
        assert not pieces.push(b"a")
        await pieces(b"b")

    async with asking(act, headers=[(b"content-length", b"1")]) as (reader, _):
        assert await reader.readuntil(b"\r\n\r\nb")
