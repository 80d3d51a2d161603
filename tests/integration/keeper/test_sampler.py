"""Check the sampler: a history of active queues, and little cost for idle queues."""

import pytest
from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.core.ids import QueueName
from director.core.policy import Policy
from director.keeper.registry import Registry
from director.keeper.sweeps import Sampler
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.queues import QueueHistory
from tests.support.clock import FakeClock
from tests.support.queue_driver import MODEL, QueueDriver

MANY = 50


class Server:
    """The scripts, with a clock that the test moves."""

    def __init__(self, scripts: Scripts, clock: FakeClock) -> None:
        self._scripts = scripts
        self._clock = clock
        self.asked = 0

    async def sample(self, queue: QueueName, *, period_s: float, most: int) -> bool:
        self.asked += 1
        now_ms = self._clock.now_ms()
        return await self._scripts.sample(queue, period_s=period_s, most=most, now_ms=now_ms)


class Keeping(Sampler):
    def __init__(self, redis: Redis, catalog: Catalog, scripts: Scripts, clock: FakeClock) -> None:
        self.server = Server(scripts, clock)
        super().__init__(self.server, Registry(redis, catalog, clock), clock)  # type: ignore[arg-type]


@pytest.fixture
def clock(driver: QueueDriver) -> FakeClock:
    clock = FakeClock()
    driver.now_ms = clock.now_ms()
    return clock


@pytest.fixture
async def queues(catalog: Catalog, queue: QueueName) -> list[QueueName]:
    versions = [f"{number:012x}" + 52 * "0" for number in range(MANY)]
    made = [
        await catalog.register(MODEL, each, schema=OPEN_SCHEMA, server="echo", policy=Policy()) for each in versions
    ]
    return [queue, *made]


@pytest.fixture
def keeping(redis: Redis, catalog: Catalog, scripts: Scripts, clock: FakeClock, queues: list[QueueName]) -> Keeping:
    return Keeping(redis, catalog, scripts, clock)


async def look(keeping: Keeping, clock: FakeClock, *, seconds: float) -> dict[QueueName, bool]:
    """Look once a second for this long. Return what the last sampling found."""
    found: dict[QueueName, bool] = {}
    for _ in range(int(seconds)):
        clock.pass_time(1)
        found = await keeping.run_once() or found
    return found


async def test_idle_queues_are_read_at_most_once_a_minute(
    keeping: Keeping, clock: FakeClock, queues: list[QueueName]
) -> None:
    assert set(await keeping.run_once()) == set(queues)
    await look(keeping, clock, seconds=50)
    assert keeping.server.asked == len(queues)


async def test_queue_is_sampled_until_recorded_idle(keeping: Keeping, clock: FakeClock, driver: QueueDriver) -> None:
    await keeping.run_once()
    await driver.submit()
    await look(keeping, clock, seconds=30)
    assert await driver.finish(await driver.claim_one())
    await look(keeping, clock, seconds=30)
    history = await QueueHistory(driver.redis).of(driver.queue)
    assert [(each.waiting["normal"], each.ended) for each in history] == [(1, 0)] * 3 + [(0, 1), (0, 0)]
