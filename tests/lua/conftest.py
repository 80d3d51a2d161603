"""Run the scripts on every kind of server that is supported."""

from collections.abc import AsyncIterator, Iterator

import pytest

from director.broker import keys
from director.core.ids import partition_of
from director.core.schema import Claim
from tests.support.kinds import Started, started
from tests.support.queue_driver import QueueDriver


@pytest.fixture(scope="session", params=["valkey", pytest.param("redis7", marks=pytest.mark.redis7)])
def server(request: pytest.FixtureRequest) -> Iterator[Started]:
    named = request.config.getoption("redis_kind")
    with started(named if request.param == "valkey" else request.param) as server:
        yield server


@pytest.fixture
async def claim(driver: QueueDriver) -> Claim:
    """Return a claim of director d1. Nothing else is in the queue."""
    return await driver.claimed()


@pytest.fixture
async def nothing_stays_owed(driver: QueueDriver) -> AsyncIterator[None]:
    """Remove the list of owed webhooks, which has no lifetime, after the test."""
    yield
    await driver.redis.delete(keys.owed(partition_of(driver.new_id())))
