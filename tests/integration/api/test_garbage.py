import asyncio
from collections.abc import Iterator
from typing import Any
from weakref import ref

import httpx
import pytest
import uvicorn
from starlette.responses import Response
from uvicorn.server import ServerState

from api.protocol import Http
from api.web.errors import Problem, not_found
from api.web.http import Request
from director.runtime.bounded_http import Connections
from tests.support.api import BASE, door_to
from tests.support.eventually import eventually
from tests.support.garbage import uncollected

REQUEST = b"GET / HTTP/1.1\r\nHost: director.test\r\n\r\n"


@pytest.fixture
def without_collector() -> Iterator[None]:
    with uncollected():
        yield


async def test_a_request_and_its_connection_leave_nothing_to_the_garbage_collector(without_collector: None) -> None:
    cycles: list[ref[Any]] = []
    protocols: list[ref[Http]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        cycles.append(ref(send.__self__))
        await Response(b"{}")(scope, receive, send)

    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()

    def connected() -> Http:
        protocol = Http(config, ServerState(), {}, connections=Connections())
        protocols.append(ref(protocol))
        return protocol

    server = await asyncio.get_running_loop().create_server(connected, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    for _ in range(2):  # a connection keeps its last request
        writer.write(REQUEST)
        assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200 ")
    await eventually(lambda: cycles[0]() is None, "the first request is gone")
    writer.close()
    await eventually(lambda: protocols[0]() is None, "the connection is gone")
    server.close()


async def test_a_refusal_leaves_nothing_to_the_garbage_collector(without_collector: None) -> None:
    refusals: list[ref[Problem]] = []

    def noted(refusal: Problem) -> Problem:
        refusals.append(ref(refusal))
        return refusal

    async def refuse(_: Request) -> Response:
        raise noted(not_found("No such thing."))

    transport = httpx.ASGITransport(app=door_to(refuse))
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
        assert (await client.get("/")).status_code == 404
    assert refusals[0]() is None
