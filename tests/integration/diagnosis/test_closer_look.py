"""Check that only queues that may show a fault are looked at more closely, with one bounded question for all."""

import time

import pytest
from redis.asyncio import Redis

from director.core.policy import Objective, Policy
from director.diagnosis.findings import Closer, Heaviest, Neglected
from director.diagnosis.overview import CloserLook
from director.store.catalog import Catalog
from director.store.owed import Owed
from tests.support.queue_driver import VERSION, QueueDriver

MINUTE_MS = 60_000


@pytest.fixture
def past(driver: QueueDriver) -> QueueDriver:
    """Return the queue by a clock of a minute ago."""
    driver.now_ms = time.time_ns() // 1_000_000 - MINUTE_MS
    return driver


async def looked(driver: QueueDriver, redis: Redis, catalog: Catalog) -> Closer:
    closer = CloserLook(redis, Owed(redis, catalog))
    return await closer.look({driver.queue: await driver.scripts.stats(driver.queue)}, owed=1)


async def test_healthy_queue_has_no_further_facts(past: QueueDriver, redis: Redis, catalog: Catalog) -> None:
    await past.submit()
    closer = await looked(past, redis, catalog)
    assert abs(closer.now_ms - time.time_ns() // 1_000_000) < MINUTE_MS
    assert closer.redis_ms > 0
    assert (closer.neglected, closer.heaviest, closer.letters, closer.burns, closer.failing) == ({}, {}, {}, {}, [])


async def test_neglected_work_is_counted_by_queue(past: QueueDriver, redis: Redis, catalog: Catalog) -> None:
    await past.submit()
    await past.submit(lifetime_ms=5_000)
    await past.claim_one()
    closer = await looked(past, redis, catalog)
    assert closer.neglected == {past.queue: Neglected(expired_leases=1, due_deadlines=1)}


async def test_heaviest_account_is_named_only_in_a_crowd(past: QueueDriver, redis: Redis, catalog: Catalog) -> None:
    for _ in range(99):
        await past.submit(account="noisy")
    assert (await looked(past, redis, catalog)).heaviest == {}
    await past.submit(account="noisy")
    assert (await looked(past, redis, catalog)).heaviest == {}, "no other account is there"
    await past.submit(account="quiet")
    heaviest = (await looked(past, redis, catalog)).heaviest
    assert heaviest == {past.queue: Heaviest(account="noisy", waiting=100, accounts=2)}


async def test_hour_of_an_objective_is_read_only_while_it_burns(
    past: QueueDriver, redis: Redis, catalog: Catalog
) -> None:
    promised = {"normal": Objective(share=0.95, within_s=5)}
    await past.scripts.register(past.queue, version=VERSION, policy=Policy(objectives=promised))  # type: ignore[arg-type]
    await past.submit()
    assert (await looked(past, redis, catalog)).burns == {}
    past.pass_time(55)
    await past.scripts.sample(past.queue, period_s=10, most=360, now_ms=past.now_ms)
    [windows] = (await looked(past, redis, catalog)).burns[past.queue].values()
    assert {name: burn.missed for name, burn in windows.items()} == {"5m": 1, "1h": 1}
