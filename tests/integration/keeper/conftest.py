"""Provide a clock, a registry and a queue at the server's own time to the tests of the keeper's roles."""

import pytest
from redis.asyncio import Redis

from director.core.clock import SystemClock
from director.keeper.registry import Registry
from director.store.catalog import Catalog
from tests.support.clock import FakeClock
from tests.support.queue_driver import QueueDriver


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def registry(redis: Redis, catalog: Catalog, clock: FakeClock) -> Registry:
    return Registry(redis, catalog, clock, keep_s=0)


@pytest.fixture
def present(driver: QueueDriver) -> QueueDriver:
    """Set the driver to the time of the server, which the roles follow."""
    driver.now_ms = SystemClock().now_ms()
    return driver
