"""Give tests of the broker a server that they may kill, and one with the shipped users."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from director.broker.redis_client import client
from tests.support.queue_driver import QueueDriver, driving
from tests.support.servers import Kind, RedisServer, redis_server


@pytest.fixture
async def near(mortal: RedisServer) -> AsyncIterator[QueueDriver]:
    async with driving(mortal.url) as driver:
        yield driver


@pytest.fixture(scope="module", params=["valkey", pytest.param("redis7", marks=pytest.mark.redis7)])
def guarded(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    kind: Kind = request.param
    with redis_server(kind, guarded=True) as started:
        yield started


@pytest.fixture
async def admin(guarded: RedisServer) -> AsyncIterator[Any]:
    """Yield a client with all rights on an empty database. Restore the shipped users afterwards."""
    redis = client(guarded.admin_url)
    await redis.flushall()
    yield redis
    await redis.acl_load()
    await redis.aclose()
