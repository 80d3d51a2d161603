"""expire: deadlines of what waits, wherever it waits, and of what runs."""

import pytest

from director.core import keys
from tests.support.keyspace import dump
from tests.support.queue_driver import QueueDriver

pytestmark = pytest.mark.anyio


async def expire(driver: QueueDriver, limit: int = 100) -> tuple[int, int]:
    return await driver.scripts.expire(driver.queue, limit=limit, now_ms=driver.now_ms)


@pytest.mark.parametrize(("late", "status"), [("aborted", "aborted"), ("", "failed")])
async def test_what_waits_past_its_deadline_ends(driver: QueueDriver, late: str, status: str) -> None:
    prediction_id = await driver.submit(lifetime_ms=10_000, late=late)
    driver.pass_time(9.999)
    assert await expire(driver) == (0, 0)
    driver.pass_time(0.001)
    assert await expire(driver) == (1, 0)
    assert (await driver.record(prediction_id)).status == status
    assert await driver.entries() == {}
    assert await driver.members(keys.deadline(driver.queue)) == {}


async def test_a_delayed_retry_that_began_once_is_canceled(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(lifetime_ms=10_000, late="aborted")
    claim = await driver.claim_one()
    await driver.begin(claim)
    await driver.release(claim, spent=True, delay_s=60)
    driver.pass_time(10)
    assert await expire(driver) == (1, 0)
    assert (await driver.record(prediction_id)).status == "canceled"
    assert await driver.members(keys.delayed(driver.queue)) == {}


async def test_the_holder_of_what_runs_is_told(driver: QueueDriver) -> None:
    await driver.submit(lifetime_ms=10_000)
    claim = await driver.claim_one(consumer="d3")
    driver.pass_time(10)
    async with driver.redis.pubsub(ignore_subscribe_messages=True) as listener:
        await listener.subscribe(keys.kick_channel("d3"))
        await listener.get_message(timeout=5)
        assert await expire(driver) == (0, 1)
        message = await listener.get_message(timeout=5)
    assert message is not None
    assert message["data"] == claim.id.encode()
    assert await driver.extend(claim, consumer="d3") == ["deadline"]


async def test_a_holder_that_dies_after_it_was_told_leaves_it_late(driver: QueueDriver) -> None:
    await driver.submit(lifetime_ms=10_000)
    claim = await driver.claim_one()
    await driver.begin(claim)
    driver.pass_time(10)
    await expire(driver)
    driver.pass_time(15)
    assert await driver.reap() == {claim.id: "late"}
    assert (await driver.record(claim.id)).status == "canceled"


async def test_a_caller_who_canceled_keeps_that_reason(driver: QueueDriver) -> None:
    await driver.submit(lifetime_ms=10_000)
    claim = await driver.claim_one()
    await driver.cancel(claim.id)
    driver.pass_time(10)
    await expire(driver)
    assert await driver.extend(claim) == ["user"]


async def test_expiring_twice_expires_once(driver: QueueDriver) -> None:
    await driver.submit(lifetime_ms=10_000)
    driver.pass_time(10)
    await expire(driver)
    before = await dump(driver.redis)
    assert await expire(driver) == (0, 0)
    assert await dump(driver.redis) == before


async def test_it_looks_at_no_more_than_its_limit(driver: QueueDriver) -> None:
    for _ in range(3):
        await driver.submit(lifetime_ms=10_000)
    driver.pass_time(10)
    assert await expire(driver, limit=2) == (2, 0)
    assert await expire(driver, limit=2) == (1, 0)
