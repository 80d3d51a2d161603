"""Data that outlives what was counted of it counts as long as it is there."""

from typing import Any

import pytest
from msgspec import Raw
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.data_bytes import ENTRY_BYTES, FOR_EVER_MS, KEPT_BYTES, RECORD_BYTES
from director.core.ids import lowest_id_at, new_prediction_id, partition_of
from director.core.policy import Policy
from director.keeper.recounter import KEPT, PERIOD_S, Recounter
from director.keeper.registry import Registry
from director.runtime.sweep import LIMIT
from director.store.accounts import Accounts
from director.store.catalog import Catalog
from tests.support.clock import FakeClock
from tests.support.queue_driver import ACCOUNT, MODEL, QueueDriver

INPUT = b'{"text":"twenty bytes"}'
EACH = len(INPUT) + RECORD_BYTES - KEPT_BYTES
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


async def test_what_is_planned_counts_before_and_after_its_time(
    recounter: Recounter, driver: QueueDriver, redis: Redis, late: FakeClock
) -> None:
    planned_ms = late.now_ms() + HOUR_S * 1000
    name = await driver.submit(data=INPUT, start_after=planned_ms)
    for _ in range(2):
        assert await recounter.run_once() == {ACCOUNT: EACH}
        assert await used(redis, late) == EACH
        late.pass_time(HOUR_S + 1)
    driver.now_ms = late.now_ms()
    assert await driver.scripts.promote(driver.queue, limit=9, now_ms=driver.now_ms) == 1
    assert await recounter.run_once() == {ACCOUNT: EACH}
    await driver.cancel(name)
    assert await recounter.run_once() == {}


async def test_a_revived_dead_letter_counts_from_its_create(recounter: Recounter, driver: QueueDriver) -> None:
    name = await driver.die(data=INPUT)
    assert await recounter.run_once() == {ACCOUNT: EACH}
    assert await driver.scripts.revive(name, now_ms=2**42)
    assert await recounter.run_once() == {ACCOUNT: EACH}


async def test_what_was_counted_a_short_while_ago_is_not_counted_again(
    driver: QueueDriver, redis: Redis, scripts: Scripts, catalog: Catalog
) -> None:
    await driver.submit(data=INPUT)
    soon = FakeClock(now_ms=driver.now_ms)
    assert await Recounter(redis, scripts, Registry(redis, catalog, soon, keep_s=0), soon).run_once() == {}


async def test_an_owed_webhook_keeps_the_output_counted(
    recounter: Recounter, driver: QueueDriver, redis: Redis, late: FakeClock
) -> None:
    await driver.submit(data=INPUT, webhook="https://example.com", webhook_events="completed")
    claim = await driver.claim_one()
    assert await driver.finish(claim, output=b'"0123456789"')
    assert await redis.zscore(keys.owed(partition_of(claim.id)), claim.id)
    assert await recounter.run_once() == {ACCOUNT: EACH + 12}


async def test_a_dead_letter_with_an_owed_webhook_counts_once(
    recounter: Recounter, driver: QueueDriver, redis: Redis
) -> None:
    name = await driver.die(data=INPUT, webhook="https://example.com", webhook_events="completed")
    assert await redis.zscore(keys.dead(driver.queue), name)
    assert await redis.zscore(keys.owed(partition_of(name)), name)
    assert await recounter.run_once() == {ACCOUNT: EACH}


async def test_an_owed_webhook_counts_after_the_lifetime_of_its_queue(
    driver: QueueDriver, redis: Any, scripts: Scripts, catalog: Catalog
) -> None:
    await redis.hset(keys.meta(driver.queue), "data_ttl_ms", 24 * HOUR_S * 1000)
    await driver.submit(data=INPUT, webhook="https://example.com", webhook_events="completed")
    assert await driver.finish(await driver.claim_one())
    clock = FakeClock(now_ms=driver.now_ms + 23 * HOUR_S * 1000)
    recounter = Recounter(redis, scripts, Registry(redis, catalog, clock, keep_s=0), clock)
    assert await recounter.run_once() == {}
    clock.pass_time(2 * HOUR_S)
    assert await recounter.run_once() == {ACCOUNT: EACH}


async def test_records_count_for_as_long_as_they_outlive_their_data(
    driver: QueueDriver, redis: Redis, scripts: Scripts, catalog: Catalog
) -> None:
    await Accounts(redis).create(ACCOUNT)
    clock = FakeClock(now_ms=driver.now_ms)
    for kind in ("", "", "training"):
        for age_s in (0, 60):
            name = new_prediction_id(model=MODEL, now_ms=clock.now_ms() + 1000 * age_s)
            await scripts.enlist(name, account=ACCOUNT, oldest=lowest_id_at(0), kind=kind)
    recounter = Recounter(redis, scripts, Registry(redis, catalog, clock, keep_s=0), clock)
    assert await recounter.run_once() == {}
    clock.pass_time(HOUR_S + 1)
    assert await recounter.run_once() == {ACCOUNT: 3 * KEPT_BYTES}
    clock.pass_time(60)
    assert await recounter.run_once() == {ACCOUNT: 6 * KEPT_BYTES}
    clock.pass_time(7 * 24 * HOUR_S - HOUR_S - 30)
    assert await recounter.run_once() == {ACCOUNT: 3 * KEPT_BYTES}


async def test_a_new_keeper_corrects_the_sum_of_one_that_died(
    recounter: Recounter, redis: Redis, scripts: Scripts, late: FakeClock
) -> None:
    await Accounts(redis).create(ACCOUNT)
    await scripts.recount(ACCOUNT, 9_000, until_ms=late.now_ms() + 5 * HOUR_S * 1000, now_ms=late.now_ms())
    assert await recounter.run_once() == {}
    assert await used(redis, late) == 0


async def test_a_sum_is_forgotten_without_a_keeper(
    recounter: Recounter, driver: QueueDriver, redis: Redis, late: FakeClock
) -> None:
    await driver.submit(data=INPUT)
    await recounter.run_once()
    late.pass_time(KEPT * PERIOD_S - 1)
    assert await used(redis, late) == EACH
    late.pass_time(2)
    assert await used(redis, late) == 0


async def retained(redis: Redis) -> int:
    return int(await redis.hget(keys.data(ACCOUNT), str(FOR_EVER_MS)) or 0)  # type: ignore[misc]


async def test_what_an_account_keeps_is_counted_again_in_each_pass(
    recounter: Recounter, redis: Redis, scripts: Scripts, catalog: Catalog, late: FakeClock
) -> None:
    """An API of release 0.3.0 counts none of it, and takes nothing off."""
    await Accounts(redis).create(ACCOUNT)
    models, name = catalog.models, f"{ACCOUNT}/painter"
    await models.make(name, {"visibility": "private", "description": "é" * 10})
    assert await retained(redis) == 0
    await recounter.run_once()
    assert await retained(redis) == await used(redis, late) == ENTRY_BYTES + 20
    await models.change(name, {"readme": "r" * 3_000})
    trained = Raw(b'{"title":"trained"}')
    for version, is_trained in (("a1" * 32, True), ("b2" * 32, False)):
        await catalog.register(name, version, schema=trained, server="", policy=Policy())
        if is_trained:
            await redis.hset(keys.version(name, version), "weights", "")  # type: ignore[misc]
    await scripts.deploy(ACCOUNT, "d", was=b"", becomes=b"{}", created_ms=1, most=9)
    await recounter.run_once()
    assert await retained(redis) == 3 * ENTRY_BYTES + 20 + 4_000 + len(bytes(trained))
    await scripts.deploy(ACCOUNT, "d", was=b"{}", becomes=b"", created_ms=1, most=9)
    await models.change(name, {"readme": ""})
    await recounter.run_once()
    assert await retained(redis) == 2 * ENTRY_BYTES + 20 + len(bytes(trained))


async def test_pass_only_raises_what_changed_while_it_measured(redis: Redis, scripts: Scripts, late: FakeClock) -> None:
    await scripts.retain(ACCOUNT, 500, now_ms=late.now_ms())
    again = {"until_ms": late.now_ms() + 1_000, "now_ms": late.now_ms()}
    await scripts.recount(ACCOUNT, 0, retained=70, was_retained=400, **again)
    assert await used(redis, late) == 500
    for _ in range(2):  # one small change in each pass keeps no larger error
        await scripts.recount(ACCOUNT, 0, retained=900, was_retained=400, **again)
        assert await used(redis, late) == 900
    await scripts.recount(ACCOUNT, 0, retained=70, was_retained=900, **again)
    assert await used(redis, late) == 70
    await scripts.recount(ACCOUNT, 0, retained=0, was_retained=70, **again)
    assert await redis.exists(keys.data(ACCOUNT)) == 0
