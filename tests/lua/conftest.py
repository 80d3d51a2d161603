"""The scripts run on every kind of server that is promised."""

from collections.abc import Iterator

import pytest

from tests.support.servers import Kind, RedisServer, redis_server


@pytest.fixture(scope="session", params=["valkey", pytest.param("redis7", marks=pytest.mark.redis7)])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    kind: Kind = request.param
    with redis_server(kind, guarded=True) as started:
        yield started
