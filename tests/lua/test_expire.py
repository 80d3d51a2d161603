"""expire enforces the deadlines of waiting, delayed and running predictions."""

import pytest

from director.broker import keys
from director.core.policy import Policy
from tests.support.keyspace import unchanged
from tests.support.queue_driver import VERSION, QueueDriver


@pytest.mark.parametrize(("late", "status"), [("aborted", "aborted"), ("", "failed")])
async def test_a_waiting_prediction_ends_at_its_deadline(driver: QueueDriver, late: str, status: str) -> None:
    prediction_id = await driver.submit(lifetime_ms=10_000, deadline_status=late)
    driver.pass_time(9.999)
    assert await driver.expire() == (0, 0)
    driver.pass_time(0.001)
    assert await driver.expire() == (1, 0)
    assert (await driver.record(prediction_id)).status == status
    assert await driver.entries() == {}
    assert await driver.members(keys.deadline(driver.queue)) == {}


async def test_a_delayed_retry_that_began_once_is_canceled(driver: QueueDriver) -> None:
    claim = await driver.claimed(lifetime_ms=10_000, deadline_status="aborted")
    await driver.begin(claim)
    await driver.release(claim, spent=True, delay_s=60)
    driver.pass_time(10)
    assert await driver.expire() == (1, 0)
    assert (await driver.record(claim.id)).status == "canceled"
    assert await driver.members(keys.delayed(driver.queue)) == {}


async def test_the_holder_of_a_late_run_is_notified(driver: QueueDriver) -> None:
    claim = await driver.claimed(consumer="d3", lifetime_ms=10_000)
    driver.pass_time(10)
    async with driver.redis.pubsub(ignore_subscribe_messages=True) as listener:
        await listener.subscribe(keys.kick_channel("d3"))
        await listener.get_message(timeout=5)
        assert await driver.expire() == (0, 1)
        message = await listener.get_message(timeout=5)
    assert message["data"] == claim.id.encode()
    assert await driver.extend(claim, consumer="d3") == ["deadline"]
    await driver.cancel(claim.id)


async def test_a_late_prediction_ends_when_its_notified_holder_dies(driver: QueueDriver) -> None:
    claim = await driver.claimed(lifetime_ms=10_000)
    await driver.begin(claim)
    driver.pass_time(10)
    await driver.expire()
    driver.pass_time(15)
    assert await driver.reap() == {claim.id: "late"}
    assert (await driver.record(claim.id)).status == "canceled"


async def test_a_callers_cancel_stays_the_reason(driver: QueueDriver) -> None:
    claim = await driver.claimed(lifetime_ms=10_000)
    await driver.cancel(claim.id)
    driver.pass_time(10)
    await driver.expire()
    assert await driver.extend(claim) == ["user"]


async def test_expire_looks_at_no_more_than_its_limit_and_twice_is_once(driver: QueueDriver) -> None:
    await driver.submit_many(3, lifetime_ms=10_000)
    driver.pass_time(10)
    assert [await driver.expire(limit=2) for _ in range(2)] == [(2, 0), (1, 0)]
    async with unchanged(driver.redis):
        assert await driver.expire(limit=2) == (0, 0)


@pytest.mark.parametrize("ready", [True, False])
async def test_a_missed_start_deadline_fails_without_a_claim(driver: QueueDriver, ready: bool) -> None:
    if not ready:
        await driver.submit()
    prediction_id = await driver.submit(start_by_ms=10_000)
    driver.pass_time(9.999)
    assert await driver.expire() == (0, 0)
    driver.pass_time(0.001)
    assert await driver.expire() == (1, 0)
    record = await driver.record(prediction_id)
    assert (record.status, record.code, record.claims) == ("failed", "start_by_exceeded", 0)
    assert prediction_id not in await driver.members(keys.live(driver.queue))
    assert prediction_id not in [claim.id for claim in await driver.claim(5)]


@pytest.mark.parametrize("lifetime_ms", [None, 30_000])
async def test_a_prediction_claimed_in_time_has_only_its_deadline(driver: QueueDriver, lifetime_ms: int | None) -> None:
    claim = await driver.claimed(start_by_ms=10_000, lifetime_ms=lifetime_ms)
    driver.pass_time(10)
    assert await driver.expire() == (0, 0)
    assert await driver.extend(claim) == ["held"]
    deadline = {claim.id: driver.now_ms + 20_000} if lifetime_ms else {}
    assert await driver.members(keys.deadline(driver.queue)) == deadline
    driver.pass_time(20)
    assert await driver.expire() == (0, 1 if lifetime_ms else 0)


@pytest.mark.parametrize(("spent", "delay_s"), [(False, 0), (True, 20)], ids=["released", "retried"])
async def test_a_run_that_never_began_keeps_its_start_deadline(driver: QueueDriver, spent: bool, delay_s: int) -> None:
    claim = await driver.claimed(start_by_ms=10_000)
    driver.pass_time(5)
    assert await driver.expire() == (0, 0)
    await driver.release(claim, spent=spent, delay_s=delay_s)
    driver.pass_time(5)
    assert await driver.expire() == (1, 0)
    assert (await driver.record(claim.id)).code == "start_by_exceeded"
    assert await driver.members(keys.delayed(driver.queue)) == {}


async def test_a_run_that_began_in_time_can_be_retried_later(driver: QueueDriver) -> None:
    claim = await driver.claimed(start_by_ms=10_000)
    await driver.begin(claim)
    await driver.release(claim, spent=True, delay_s=20)
    driver.pass_time(15)
    assert await driver.expire() == (0, 0)
    driver.pass_time(5)
    await driver.promote()
    assert (await driver.claim_one()).id == claim.id


@pytest.mark.parametrize(("asked_ms", "given_ms"), [(None, 60_000), (20_000, 20_000), (90_000, 60_000)])
async def test_a_prediction_never_outlives_the_lifetime_of_its_queue(
    driver: QueueDriver, asked_ms: int | None, given_ms: int
) -> None:
    await driver.scripts.register(driver.queue, version=VERSION, policy=Policy(lifetime_s=60))
    prediction_id = await driver.submit(lifetime_ms=asked_ms)
    assert (await driver.record(prediction_id)).deadline == driver.now_ms + given_ms
    driver.pass_time(given_ms / 1000 - 0.001)
    assert await driver.expire() == (0, 0)
    driver.pass_time(0.001)
    assert await driver.expire() == (1, 0)
    record = await driver.record(prediction_id)
    assert (record.status, record.code) == ("failed", "deadline_exceeded"), "who did not ask does not know `aborted`"


async def test_a_new_lifetime_applies_to_later_submissions_only(driver: QueueDriver) -> None:
    await driver.submit()
    await driver.scripts.register(driver.queue, version=VERSION, policy=Policy(lifetime_s=60))
    driver.pass_time(3600)
    assert await driver.expire() == (0, 0)
