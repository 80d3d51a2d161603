"""What is looked at closer: only queues where it may tell of a fault, and with one bounded question for all of them."""

import time

import pytest
from redis.asyncio import Redis

from director.core.policy import Objective, Policy
from director.diagnosis.closer_look import CloserLook
from director.diagnosis.findings import Closer, Heaviest, Neglected
from director.store.catalog import Catalog
from director.store.owed import Owed
from tests.support.queue_driver import VERSION, QueueDriver

pytestmark = pytest.mark.anyio

MINUTE_MS = 60_000


@pytest.fixture
def past(driver: QueueDriver) -> QueueDriver:
    """The queue, a minute ago."""
    driver.now_ms = time.time_ns() // 1_000_000 - MINUTE_MS
    return driver


async def looked(driver: QueueDriver, redis: Redis, catalog: Catalog) -> Closer:
    closer = CloserLook(redis, Owed(redis, catalog))
    return await closer.look({driver.queue: await driver.scripts.stats(driver.queue)}, owed=1)


async def test_of_a_queue_where_all_is_well_nothing_more_is_told(
    past: QueueDriver, redis: Redis, catalog: Catalog
) -> None:
    await past.submit()
    closer = await looked(past, redis, catalog)
    assert abs(closer.now_ms - time.time_ns() // 1_000_000) < MINUTE_MS
    assert closer.redis_ms > 0
    assert (closer.neglected, closer.heaviest, closer.letters, closer.burns, closer.failing) == ({}, {}, {}, {}, [])


async def test_what_a_keeper_did_not_do_is_counted_by_queue(past: QueueDriver, redis: Redis, catalog: Catalog) -> None:
    await past.submit()
    await past.submit(lifetime_ms=5_000)
    await past.claim_one()
    closer = await looked(past, redis, catalog)
    assert closer.neglected == {past.queue: Neglected(expired_leases=1, due_deadlines=1)}


async def test_who_has_the_most_is_named_once_there_is_a_crowd_of_several(
    past: QueueDriver, redis: Redis, catalog: Catalog
) -> None:
    for _ in range(99):
        await past.submit(account="noisy")
    assert (await looked(past, redis, catalog)).heaviest == {}
    await past.submit(account="noisy")
    assert (await looked(past, redis, catalog)).heaviest == {}, "nobody else is there"
    await past.submit(account="quiet")
    heaviest = (await looked(past, redis, catalog)).heaviest
    assert heaviest == {past.queue: Heaviest(account="noisy", waiting=100, accounts=2)}


async def test_a_dead_letter_tells_how_its_attempts_ended(past: QueueDriver, redis: Redis, catalog: Catalog) -> None:
    await past.die()
    letter = (await looked(past, redis, catalog)).letters[past.queue]
    assert letter.codes
    assert all(letter.codes)


async def test_an_objective_is_reckoned_over_an_hour_only_where_it_burns_now(
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
