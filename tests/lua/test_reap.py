"""reap recovers the claims of silent directors: at once the first time, later after that, and not for ever."""

import pytest

from director.broker import keys
from director.core.ids import PredictionId
from director.core.schema import Claim
from tests.support.keyspace import unchanged
from tests.support.queue_driver import QueueDriver


async def lose(driver: QueueDriver) -> None:
    """Claim a prediction and stay silent until its lease expires."""
    await driver.claim_one()
    driver.pass_time(15)


async def test_a_valid_lease_is_left_alone(driver: QueueDriver, claim: Claim) -> None:
    driver.pass_time(14.999)
    async with unchanged(driver.redis):
        assert await driver.reap() == {}
    await driver.extend(claim)
    driver.pass_time(14)
    assert await driver.reap() == {}, "a heartbeat in time keeps the claim"


async def test_the_first_retry_goes_straight_to_its_stream_and_sends_a_wakeup(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    await lose(driver)
    await driver.hear_bell()
    assert await driver.reap() == {prediction_id: "waiting"}
    async with unchanged(driver.redis):
        assert await driver.reap() == {}, "twice is once"
    assert await driver.hear_bell()
    assert (await driver.claim_one(consumer="d2")).record.attempt == 2


async def test_reap_recovers_the_oldest_leases_up_to_its_limit(driver: QueueDriver) -> None:
    ids = []
    for _ in range(3):
        ids.append(await driver.submit(streams=[0]))
        await driver.claim_one()
        driver.pass_time(1)
    driver.pass_time(15)
    assert set(await driver.reap(limit=2)) == set(ids[:2])
    assert set(await driver.reap(limit=2)) == set(ids[2:])


async def test_a_lease_without_a_claim_is_removed(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    await driver.redis.zadd(keys.lease(driver.queue), {prediction_id: driver.now_ms, driver.new_id(): driver.now_ms})
    assert set((await driver.reap()).values()) == {"gone"}
    assert await driver.members(keys.lease(driver.queue)) == {}
    assert (await driver.claim_one()).id == prediction_id


BACK_S = 600
LATER_MS = 10 * 365 * 86_400_000  # the script compares the caller's time with the server's own, and takes the later one


async def held(driver: QueueDriver, *holders: str) -> list[PredictionId]:
    """Return the ids of one extended claim of each holder."""
    ids = []
    for holder in holders:
        await driver.submit()
        claim = await driver.claim_one(consumer=holder)
        await driver.extend(claim, consumer=holder)
        ids.append(claim.id)
    return ids


async def test_a_silent_holder_loses_its_claim_after_a_clock_step_back(driver: QueueDriver) -> None:
    driver.now_ms += LATER_MS
    [dead, _] = await held(driver, "dead", "alive")
    driver.pass_time(-BACK_S)
    await driver.have_slots(1, consumer="alive")
    assert await driver.reap() == {dead: "waiting"}
    assert await driver.reap() == {}


@pytest.mark.parametrize(("lease_s", "step_s"), [(15, -15), (3600, 0)], ids=["short clock step back", "long lease"])
async def test_a_lease_that_may_be_valid_is_left_alone(driver: QueueDriver, lease_s: int, step_s: int) -> None:
    driver.now_ms += LATER_MS
    claim = await driver.claimed(lease_s=lease_s)
    await driver.extend(claim, lease_s=lease_s)
    driver.pass_time(step_s)
    assert await driver.reap() == {}


async def test_a_keeper_behind_this_servers_clock_recovers_no_long_lease(driver: QueueDriver) -> None:
    """In a Cluster the caller's time is that of the slowest clock: what is late by that one may not be by this one."""
    seconds, _ = await driver.redis.time()
    driver.now_ms = seconds * 1000
    await held(driver, "alive")
    driver.pass_time(-BACK_S)
    assert await driver.reap() == {}


async def test_reap_respects_its_limit_after_a_clock_step_back(driver: QueueDriver) -> None:
    driver.now_ms += LATER_MS
    dead = set(await held(driver, "dead", "dead", "dead"))
    driver.pass_time(-BACK_S)
    first = set(await driver.reap(limit=2))
    assert len(first) == 2
    assert first | set(await driver.reap(limit=2)) == dead
