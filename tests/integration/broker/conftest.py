"""Give tests of the broker a server that they may kill."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.queue_driver import QueueDriver, driving
from tests.support.servers import RedisServer, redis_server


@pytest.fixture
def mortal() -> Iterator[RedisServer]:
    with redis_server(loopback=True) as started:
        yield started


@pytest.fixture
async def near(mortal: RedisServer) -> AsyncIterator[QueueDriver]:
    async with driving(mortal.url) as driver:
        yield driver
