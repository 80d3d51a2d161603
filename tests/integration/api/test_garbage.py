import asyncio
import gc
from collections.abc import Iterator
from typing import Any
from weakref import ref

import pytest
import uvicorn
from starlette.responses import Response
from uvicorn.server import ServerState

from api.app import Http
from director.runtime.bounded_http import Connections
from tests.support.eventually import eventually

REQUEST = b"GET / HTTP/1.1\r\nHost: director.test\r\n\r\n"


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def test_a_request_leaves_nothing_to_the_garbage_collector(without_collector: None) -> None:
    cycles: list[ref[Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        cycles.append(ref(send.__self__))
        await Response(b"{}")(scope, receive, send)

    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()

    def connected() -> Http:
        return Http(config, ServerState(), {}, connections=Connections())

    server = await asyncio.get_running_loop().create_server(connected, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    for _ in range(2):  # a connection keeps its last request
        writer.write(REQUEST)
        assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200 ")
    await eventually(lambda: cycles[0]() is None, "the first request is gone")
    writer.close()
    server.close()
