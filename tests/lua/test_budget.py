"""budget reserves tokens and compute of an account's limits or denies them; settle corrects them once, at the end."""

from typing import Any, Final

import pytest

from director.broker import keys
from director.broker.replies import Budgeted
from director.broker.scripts import Scripts
from director.core.ids import PredictionId, partition_of
from director.core.usage import Used
from tests.support.keyspace import unchanged
from tests.support.queue_driver import QueueDriver

NOW_MS: Final = 1_800_000_000_000  # 2027-01-15 08:00
DAY_MS: Final = 86_400_000
P = [PredictionId(f"p{number}") for number in range(6)]
Limits = tuple[int | None, int | None, int | None, int | None]


async def ask(
    scripts: Scripts, number: int, limits: Limits, tokens: int = 0, *, compute_s: float = 0, at_ms: int = 0
) -> Budgeted:
    return await scripts.budget("acme", P[number], limits, tokens=tokens, compute_s=compute_s, now_ms=NOW_MS + at_ms)


async def settle(scripts: Scripts, number: int, tokens: int = 0, *, spent_s: float = 0, at_ms: int = 0) -> bool:
    return await scripts.settle("acme", P[number], tokens=tokens, spent_s=spent_s, now_ms=NOW_MS + at_ms)


async def test_tokens_of_a_day_are_reserved_and_denied_until_midnight(scripts: Scripts, redis: Any) -> None:
    day: Limits = (None, 100, None, None)
    assert (await ask(scripts, 0, day, 60)).allowed
    async with unchanged(redis):
        assert (await ask(scripts, 0, day, 60)).allowed, "the same call"
        assert await ask(scripts, 1, day, 60) == Budgeted(False, "day", 16 * 3_600_000)
    assert (await ask(scripts, 1, day, 60, at_ms=16 * 3_600_000)).allowed


async def test_months_end_with_the_calendar(scripts: Scripts) -> None:
    month: Limits = (None, None, 100, 10)
    assert (await ask(scripts, 0, month, 100, compute_s=10)).allowed
    to_february = (17 * 24 - 8) * 3_600_000
    assert await ask(scripts, 1, month, 1, compute_s=1) == Budgeted(False, "month", to_february)
    assert not (await ask(scripts, 1, month, 1, at_ms=to_february - 1)).allowed
    only_compute: Limits = (None, None, None, 10)
    assert (await ask(scripts, 2, only_compute, compute_s=11)).limit == "compute"
    assert (await ask(scripts, 1, month, 1, at_ms=to_february)).allowed


async def test_a_minute_fills_all_the_time_and_may_be_overdrawn(scripts: Scripts) -> None:
    minute: Limits = (60, None, None, None)
    assert (await ask(scripts, 0, minute, 60)).allowed
    assert await ask(scripts, 1, minute, 10) == Budgeted(False, "minute", 10_000)
    assert (await ask(scripts, 1, minute, 10, at_ms=10_000)).allowed
    await settle(scripts, 1, 100, at_ms=10_000)  # it used 90 more than was reserved
    assert await ask(scripts, 2, minute, 1, at_ms=10_000) == Budgeted(False, "minute", 91_000)
    assert (await ask(scripts, 2, minute, 1_000, at_ms=10_000 + 150_000)).allowed, "a full bucket allows any request"


async def test_the_end_replaces_what_was_reserved_once(scripts: Scripts, redis: Any) -> None:
    limits: Limits = (None, 100, 100, 100)
    await ask(scripts, 0, limits, 90, compute_s=90)
    assert await settle(scripts, 0, 10, spent_s=20)
    async with unchanged(redis):
        assert not await settle(scripts, 0, 10, spent_s=20)
        assert not await settle(scripts, 5, 10)
    assert (await ask(scripts, 1, limits, 90, compute_s=80)).allowed
    assert (await ask(scripts, 2, limits, 1)).limit in ("day", "month")


@pytest.mark.parametrize("later_ms", [DAY_MS, 31 * DAY_MS], ids=["another day", "another month"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first of its day", "after another"])
async def test_what_a_run_used_counts_in_the_day_of_its_end(scripts: Scripts, later_ms: int, is_first: bool) -> None:
    limits: Limits = (None, 100, None, 100)
    await ask(scripts, 0, limits, 80, compute_s=80)
    await ask(scripts, 1, limits, 10, compute_s=10)
    if not is_first:
        assert (await ask(scripts, 2, limits, 40, at_ms=later_ms)).allowed, "another day's reservations are over"
    assert await settle(scripts, 0, 55, spent_s=55, at_ms=later_ms)
    if is_first:
        assert (await ask(scripts, 2, limits, 40, at_ms=later_ms)).allowed
    assert (await ask(scripts, 3, limits, 6, at_ms=later_ms)).limit == "day"
    assert (await ask(scripts, 3, limits, 5, at_ms=later_ms)).allowed
    await settle(scripts, 2, 0, at_ms=later_ms)
    assert (await ask(scripts, 4, limits, 40, at_ms=later_ms)).allowed, "one of this day gives its own back"
    month_s = 45 if later_ms == 31 * DAY_MS else 35  # in the same month ten seconds are still reserved
    assert not (await ask(scripts, 5, limits, compute_s=month_s + 1, at_ms=later_ms)).allowed
    assert (await ask(scripts, 5, limits, compute_s=month_s, at_ms=later_ms)).allowed


@pytest.mark.parametrize("lost", [False, True])
async def test_all_runs_of_a_prediction_are_left_to_settle_at_its_end(driver: QueueDriver, lost: bool) -> None:
    claim = await driver.claimed(budgeted=True)
    seq = await driver.begin(claim)
    used = Used(runs=1, ms=15_000, input_tokens=30, output_tokens=7)
    if lost:
        await driver.scripts.advance(
            claim.id, token=claim.token, seq=seq, ran_ms=0, events=[], used=used, now_ms=driver.now_ms
        )
        driver.pass_time(20)
        await driver.reap()
    else:
        await driver.release(claim, spent=False, used=used)
    await driver.finish(await driver.claim_one(), used=Used(runs=1, ms=500, input_tokens=30, output_tokens=9))
    unsettled = keys.unsettled(partition_of(claim.id))
    assert await driver.counts(unsettled) == {f"{claim.id} acme": "15500 76"}
    await driver.redis.delete(unsettled)


async def test_the_time_of_a_lost_run_is_left_to_settle_too(driver: QueueDriver) -> None:
    claim = await driver.claimed(budgeted=True)
    await driver.begin(claim)
    driver.pass_time(20)
    await driver.reap()
    await driver.cancel(claim.id)
    unsettled = keys.unsettled(partition_of(claim.id))
    assert await driver.counts(unsettled) == {f"{claim.id} acme": "15000 0"}
    await driver.redis.delete(unsettled)


async def test_one_that_never_ran_is_settled_with_nothing(driver: QueueDriver) -> None:
    waits = await driver.submit(budgeted=True)
    await driver.cancel(waits)
    unsettled = keys.unsettled(partition_of(waits))
    assert await driver.counts(unsettled) == {f"{waits} acme": "0 0"}
    await driver.redis.delete(unsettled)
