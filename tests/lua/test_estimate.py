"""The run time is learned from past runs. No caller's cost or pause spoils it for others."""

import pytest

from director.broker import keys
from director.core.states import Status
from tests.support.queue_driver import QueueDriver


async def run(driver: QueueDriver, seconds: float, *, status: Status = Status.SUCCEEDED, **options: object) -> None:
    await driver.submit(**options)
    claim = await driver.claim_one()
    driver.pass_time(seconds)
    await driver.finish(claim, status, ran_ms=1)


async def test_a_declared_cost_moves_no_other_accounts_estimate(driver: QueueDriver) -> None:
    await driver.have_slots(1)
    for _ in range(5):
        await run(driver, 1)
    for cost in (1e-6, 1e6):
        await run(driver, 1, account="gamer", cost=cost)
    assert (await driver.stats()).service_ms == 1_000
    assert 0.3 < (await driver.stats()).service_cost < 4


@pytest.mark.parametrize("status", [Status.CANCELED, Status.FAILED])
async def test_an_interrupted_run_does_not_change_the_run_time_estimate(driver: QueueDriver, status: Status) -> None:
    for _ in range(3):
        await run(driver, 10)
    await run(driver, 0.1, status=status)
    assert (await driver.stats()).service_ms == 10_000


@pytest.mark.parametrize(("before_s", "after_s"), [(1, 60), (60, 1)])
async def test_runs_in_a_row_at_a_new_speed_are_all_that_counts(
    driver: QueueDriver, before_s: float, after_s: float
) -> None:
    for seconds in [before_s] * 60 + [after_s] * 10:
        await run(driver, seconds)
    assert (await driver.stats()).service_ms == after_s * 1000


async def test_one_odd_run_does_not_count_as_a_new_speed(driver: QueueDriver) -> None:
    for seconds in (*[10] * 50, 100, *[10] * 8):
        await run(driver, seconds)
    assert 11_000 < (await driver.stats()).service_ms < 12_000


async def test_time_claimed_ahead_is_not_run_time(driver: QueueDriver) -> None:
    await driver.submit()
    claim = await driver.claim_one()
    driver.pass_time(0.205)
    await driver.finish(claim, ran_ms=103, ahead_ms=102)
    assert (await driver.stats()).service_ms == 103


@pytest.mark.parametrize("tenant", ["", "acme"])
async def test_a_pause_does_not_raise_the_wait_estimate(driver: QueueDriver, tenant: str) -> None:
    await driver.have_slots(1)
    await run(driver, 1)
    await driver.submit_many(30)
    await driver.pause(account=tenant)
    driver.pass_time(3600)
    await driver.pause(paused=False, account=tenant)
    for _ in range(30):
        claim = await driver.claim_one()
        driver.pass_time(1)
        await driver.finish(claim, ran_ms=1)
    assert (await driver.stats()).tally.get("eta_missed", 0) == 0
    assert await driver.redis.hmget(keys.meta(driver.queue), "late50", "late90") == [None, None]


async def test_time_without_a_director_does_not_raise_the_wait_estimate(driver: QueueDriver) -> None:
    await driver.have_slots(1)
    await run(driver, 1)
    await driver.submit_many(3)
    await driver.have_slots(0)
    options = {"consumer": "d1", "lease_s": 15, "claims": [], "slots": 0, "state": "draining"}
    await driver.scripts.extend(driver.queue, **options, now_ms=driver.now_ms)
    driver.pass_time(3600)
    await driver.have_slots(1)
    await driver.claim(3)
    assert (await driver.stats()).tally.get("eta_missed", 0) == 0


async def test_a_wait_without_a_known_run_time_teaches_nothing(driver: QueueDriver) -> None:
    await driver.have_slots(1)
    await driver.run(await driver.claimed(), 10)
    await driver.submit_many(2)
    first = await driver.claim_one()
    await driver.redis.hdel(keys.meta(driver.queue), "service_ms")
    driver.pass_time(10)
    assert await driver.claim_one()
    assert await driver.redis.hget(keys.meta(driver.queue), "late50") is None
    assert await driver.finish(first)
