"""Data that outlives what was counted of it counts as long as it is there."""

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.data_bytes import RECORD_BYTES
from director.core.ids import partition_of
from director.keeper.recounter import KEPT, PERIOD_S, Recounter
from director.keeper.registry import Registry
from director.runtime.sweep import LIMIT
from director.store.accounts import Accounts
from director.store.catalog import Catalog
from tests.support.clock import FakeClock
from tests.support.queue_driver import ACCOUNT, QueueDriver

INPUT = b'{"text":"twenty bytes"}'
EACH = len(INPUT) + RECORD_BYTES
HOUR_S = 3600


@pytest.fixture
def late() -> FakeClock:
    return FakeClock(now_ms=2**42)


@pytest.fixture
def recounter(redis: Redis, scripts: Scripts, catalog: Catalog, late: FakeClock) -> Recounter:
    return Recounter(redis, scripts, Registry(redis, catalog, late, keep_s=0), late)


async def used(redis: Redis, clock: FakeClock) -> int:
    return (await Accounts(redis, clock=clock).usage(ACCOUNT, day=0)).data_bytes


async def test_a_long_wait_counts_until_it_is_over(
    recounter: Recounter, driver: QueueDriver, redis: Redis, late: FakeClock
) -> None:
    count = LIMIT + 1
    ids = [await driver.submit(data=INPUT) for _ in range(count)]
    for _ in range(2):
        assert await recounter.run_once() == {ACCOUNT: count * EACH}
        assert await used(redis, late) == count * EACH
    for name in ids:
        await driver.scripts.cancel(name, account=ACCOUNT)
    assert await recounter.run_once() == {}
    assert await used(redis, late) == 0


async def test_what_was_counted_a_short_while_ago_is_not_counted_again(
    driver: QueueDriver, redis: Redis, scripts: Scripts, catalog: Catalog
) -> None:
    await driver.submit(data=INPUT)
    soon = FakeClock(now_ms=driver.now_ms)
    assert await Recounter(redis, scripts, Registry(redis, catalog, soon, keep_s=0), soon).run_once() == {}


async def test_an_owed_webhook_keeps_the_output_counted(
    recounter: Recounter, driver: QueueDriver, redis: Redis, late: FakeClock
) -> None:
    await driver.submit(data=INPUT, webhook="https://example.com", events="completed")
    claim = await driver.claim_one()
    assert await driver.finish(claim, output=b'"0123456789"')
    assert await redis.zscore(keys.owed(partition_of(claim.id)), claim.id)
    assert await recounter.run_once() == {ACCOUNT: EACH + 12}


async def test_a_sum_is_forgotten_without_a_keeper(
    recounter: Recounter, driver: QueueDriver, redis: Redis, late: FakeClock
) -> None:
    await driver.submit(data=INPUT)
    await recounter.run_once()
    late.pass_time(KEPT * PERIOD_S - 1)
    assert await used(redis, late) == EACH
    late.pass_time(2)
    assert await used(redis, late) == 0
