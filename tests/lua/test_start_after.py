"""A prediction that its caller planned for later waits beside the line until its time."""

from typing import Any

import pytest

from director.broker import keys
from director.core.ids import PredictionId
from director.core.policy import Objective, Policy
from director.core.schema import Outlook
from tests.support.queue_driver import VERSION, QueueDriver

HOUR_S = 3_600


async def plan(driver: QueueDriver, seconds: float = HOUR_S, **options: Any) -> PredictionId:
    return await driver.submit(start_after=driver.now_ms + int(seconds * 1000), **options)


async def test_planned_prediction_starts_at_its_time_and_not_before(driver: QueueDriver) -> None:
    await driver.have_slots(4)
    planned = await plan(driver)
    other = await driver.submit()
    assert [claim.id for claim in await driver.claim(4)] == [other]
    driver.pass_time(HOUR_S - 0.001)
    assert (await driver.promote(), await driver.claim(4)) == (0, [])
    driver.pass_time(0.001)
    assert await driver.promote() == 1
    assert [claim.id for claim in await driver.claim(4)] == [planned]


async def test_time_that_is_over_starts_at_once(driver: QueueDriver) -> None:
    await driver.submit(start_after=driver.now_ms)
    assert len(await driver.claim()) == 1


async def test_outlook_says_when_it_may_start(driver: QueueDriver) -> None:
    await driver.have_slots(1)
    planned = await plan(driver)
    driver.pass_time(600)
    await driver.have_slots(1)
    left_ms = (HOUR_S - 600) * 1000
    assert await driver.outlook(planned) == Outlook(1, 0, left_ms, left_ms, "start_after", driver.now_ms + left_ms)
    driver.pass_time(60)  # its director went silent
    outlook = await driver.outlook(planned)
    assert (outlook.p50_ms, outlook.reason) == (None, "start_after")


async def test_planned_prediction_counts_as_queued_but_not_as_demand(driver: QueueDriver) -> None:
    await plan(driver)
    stats = await driver.stats()
    assert (stats.waiting, stats.delayed, stats.live, stats.oldest_ms) == (0, 1, 1, 0)
    assert await driver.redis.hget(keys.queued(driver.queue), "acme") == b"1"
    for soon_s, runnable in ((60, 0), (HOUR_S, 1)):
        told = await driver.scripts.demand(driver.queue, soon_s=soon_s, now_ms=driver.now_ms)
        assert told.runnable == runnable


async def test_wait_for_its_time_does_not_miss_the_objective(driver: QueueDriver) -> None:
    policy = Policy(objectives={"normal": Objective(share=0.9, within_s=10)})
    await driver.scripts.register(driver.queue, version=VERSION, policy=policy)
    await driver.have_slots(1)
    await plan(driver)
    driver.pass_time(HOUR_S + 2)
    await driver.promote()
    await driver.claim_one()
    tally = (await driver.stats()).tally
    assert (tally["met:normal"], tally["waited_ms"]) == (1, 2_000)
    assert "eta_missed" not in tally
    late = await plan(driver)
    driver.pass_time(HOUR_S + 5)
    await driver.cancel(late)
    assert "missed:normal" not in (await driver.stats()).tally


async def test_lifetime_of_the_queue_begins_at_the_planned_time(driver: QueueDriver) -> None:
    await driver.scripts.register(driver.queue, version=VERSION, policy=Policy(lifetime_s=60))
    planned = await plan(driver)
    assert (await driver.record(planned)).deadline == driver.now_ms + (HOUR_S + 60) * 1000
    await driver.cancel(planned)


async def test_cancel_takes_it_out_of_every_index(driver: QueueDriver) -> None:
    planned = await plan(driver)
    assert await driver.cancel(planned) == "canceled"
    assert not await driver.redis.exists(keys.delayed(driver.queue), keys.live(driver.queue))


async def test_limits_that_pass_before_hold_for_it(driver: QueueDriver) -> None:
    planned = await plan(driver, lifetime_ms=60_000)
    driver.pass_time(60)
    assert await driver.scripts.expire(driver.queue, limit=9, now_ms=driver.now_ms) == (1, 0)
    assert (await driver.record(planned)).code == "deadline_exceeded"


@pytest.mark.parametrize("is_over", [False, True])
async def test_reconcile_places_a_lost_plan_at_its_time(driver: QueueDriver, is_over: bool) -> None:
    planned = await plan(driver)
    await driver.redis.delete(keys.delayed(driver.queue))
    driver.pass_time(HOUR_S if is_over else 1)
    assert await driver.reconcile() == (0, {planned: "placed"})
    assert [claim.id for claim in await driver.claim()] == ([planned] if is_over else [])
    assert (await driver.redis.zscore(keys.delayed(driver.queue), planned) is None) == is_over


async def test_retry_after_its_time_waits_for_its_backoff_alone(driver: QueueDriver) -> None:
    await driver.have_slots(1)
    await plan(driver)
    driver.pass_time(HOUR_S)
    await driver.promote()
    claim = await driver.claim_one()
    await driver.release(claim, spent=True, delay_s=8)
    await driver.have_slots(1)
    assert (await driver.outlook(claim.id)).reason == "backing_off"
