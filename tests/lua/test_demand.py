"""demand counts what a queue could run now or soon. It may count too much but never too little."""

import pytest

from director.broker import keys
from tests.support.queue_driver import ACCOUNT, QueueDriver

SOON_S = 60.0


async def runnable(driver: QueueDriver) -> int:
    return (await driver.scripts.demand(driver.queue, soon_s=SOON_S, now_ms=driver.now_ms)).runnable


async def test_demand_counts_waiting_and_running_predictions(driver: QueueDriver) -> None:
    for lane in ("high", "normal", "normal", "low"):
        await driver.submit(lane=lane)
    await driver.run(await driver.claim_one(), 2)
    await driver.claim_one()
    told = await driver.scripts.demand(driver.queue, soon_s=SOON_S, now_ms=driver.now_ms)
    assert (told.runnable, told.running, told.high, told.normal, told.low) == (2, 1, 0, 1, 1)
    assert (told.now_ms, told.service_ms, told.slots_each, told.paused) == (driver.now_ms, 2000, 0, False)
    assert told.objectives == {}


async def test_a_paused_queue_has_no_runnable_predictions_but_counts_running_ones(driver: QueueDriver) -> None:
    await driver.submit_many(2)
    await driver.claim_one()
    await driver.pause()
    told = await driver.scripts.demand(driver.queue, soon_s=SOON_S, now_ms=driver.now_ms)
    assert (told.runnable, told.running, told.paused) == (0, 1, True)
    await driver.pause(paused=False)
    assert await runnable(driver) == 1


@pytest.mark.parametrize("revision", [None, 1], ids=["paused", "suspended"])
async def test_predictions_of_blocked_accounts_are_left_out(driver: QueueDriver, revision: int | None) -> None:
    for account in ("a", "a", "b"):
        await driver.submit(account=account)
    await driver.pause(account="a", revision=revision)
    assert await runnable(driver) == 1
    await driver.pause(account="b", revision=revision)
    assert await runnable(driver) == 0
    await driver.pause(account="a", paused=False, revision=None if revision is None else revision + 1)
    assert await runnable(driver) == 2
    await driver.pause(account="b")
    await driver.pause(account="b", revision=9)
    assert await runnable(driver) == 2, "an account that is paused and suspended is left out once"


async def test_an_account_counts_for_at_most_its_running_limit(driver: QueueDriver) -> None:
    await driver.limit(ACCOUNT, most_running=2)
    await driver.submit_many(5, most_running=2)
    assert await runnable(driver) == 2
    await driver.claim_one()
    assert await runnable(driver) == 1


async def test_a_retry_counts_when_it_is_due_within_a_minute(driver: QueueDriver) -> None:
    await driver.submit()
    await driver.release(await driver.claim_one(), delay_s=SOON_S + 10)
    assert await runnable(driver) == 0
    driver.pass_time(10)
    assert await runnable(driver) == 1


async def test_a_late_retry_of_a_paused_account_takes_nothing_from_others(driver: QueueDriver) -> None:
    await driver.submit_many(3, account="a")
    for claim in await driver.claim(3):
        await driver.release(claim, delay_s=600)
    await driver.pause(account="a")
    await driver.submit(account="b")
    assert await runnable(driver) == 1


async def test_a_lost_waiting_count_does_not_lower_demand(driver: QueueDriver) -> None:
    await driver.submit()
    await driver.redis.hset(keys.meta(driver.queue), mapping={"ready:normal": 0, "backlogged:normal": 0})
    assert await runnable(driver) == 1


@pytest.mark.parametrize("planned", [100, 501], ids=["few", "many"])
@pytest.mark.parametrize("account", ["limited", "held", "free"])
async def test_planned_work_is_no_demand_whatever_its_account_may(
    driver: QueueDriver, account: str, planned: int
) -> None:
    later = driver.now_ms + 86_400_000
    await driver.submit_many(
        planned, account=account, most_running=10 if account == "limited" else None, start_after=later
    )
    await driver.submit(account="other")
    if account == "held":
        await driver.pause(account=account)
    assert await runnable(driver) == 1
    await driver.submit_many(12, account=account, most_running=10 if account == "limited" else None)
    await driver.submit(account="other")
    assert await runnable(driver) == 2 + {"limited": 10, "held": 0, "free": 12}[account]
