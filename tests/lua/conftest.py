"""The scripts run on every kind of server that is promised."""

from collections.abc import Iterator

import pytest

from tests.support.kinds import Started, started


@pytest.fixture(scope="session", params=["valkey", pytest.param("redis7", marks=pytest.mark.redis7)])
def server(request: pytest.FixtureRequest) -> Iterator[Started]:
    named = request.config.getoption("redis_kind")
    with started(named if request.param == "valkey" else request.param) as server:
        yield server
