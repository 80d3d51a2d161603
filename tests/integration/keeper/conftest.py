"""Provide a keeper, and a clock, a registry and a queue at the server's own time to the tests of its roles."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest
from redis.asyncio import Redis

from director.core.clock import SystemClock
from director.core.settings import KeeperSettings
from director.keeper import keeper
from director.keeper.registry import Registry
from director.store.catalog import Catalog
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.queue_driver import QueueDriver
from tests.support.servers import as_user


@asynccontextmanager
async def keeper_at(url: str, **given: object) -> AsyncGenerator[httpx.AsyncClient]:
    ports: list[int] = []
    async with anyio.create_task_group() as tasks:
        settings = KeeperSettings(redis_url=as_user("keeper", url), **given)  # type: ignore[arg-type]
        tasks.start_soon(lambda: keeper.run(settings, started=ports.append))
        [port] = await eventually(lambda: ports, "it has begun")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            yield http
        tasks.cancel_scope.cancel()


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
