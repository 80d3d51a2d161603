"""Every end of a prediction with reserved compute is noted with its run time, for the keeper to spend."""

import pytest

from director.broker import keys
from director.core.ids import PredictionId, partition_of
from director.core.schema import Claim
from director.core.states import Status
from tests.support.queue_driver import ACCOUNT, QueueDriver


async def noted(driver: QueueDriver, prediction_id: PredictionId) -> int | None:
    """Return the noted milliseconds."""
    return (await driver.members(keys.unspent(partition_of(prediction_id)))).get(f"{prediction_id} {ACCOUNT}")


async def end_without_run(driver: QueueDriver, how: str) -> PredictionId:
    options = {"start_by_ms": 1000} if how == "too late to start" else {"lifetime_ms": 1000}
    prediction_id = await driver.submit(metered=True, **options)
    match how:
        case "canceled":
            await driver.cancel(prediction_id)
        case "too late to start":
            driver.pass_time(2)
            assert await driver.expire() == (1, 0)
        case "past its deadline":
            driver.pass_time(2)
            assert await driver.claim() == []
        case "without its input":
            await driver.redis.delete(keys.input_data(prediction_id))
            assert await driver.claim() == []
        case "stopped before its run":
            claim = await driver.claim_one()
            driver.pass_time(3)
            await driver.finish(claim, Status.CANCELED)
    return prediction_id


@pytest.mark.parametrize(
    "how", ["canceled", "too late to start", "past its deadline", "without its input", "stopped before its run"]
)
async def test_an_end_without_a_run_is_noted_as_zero(driver: QueueDriver, how: str) -> None:
    assert await noted(driver, await end_without_run(driver, how)) == 0


@pytest.mark.parametrize("is_begun", [True, False], ids=["started", "without a recorded start"])
async def test_a_run_is_noted_with_its_duration(driver: QueueDriver, is_begun: bool) -> None:
    claim = await driver.claimed(metered=True)
    driver.pass_time(2)
    seq = await driver.begin(claim) if is_begun else claim.record.seq
    driver.pass_time(4)
    assert await noted(driver, claim.id) is None
    assert await driver.finish(claim, ran_ms=4000, seq=seq)
    assert await noted(driver, claim.id) == 4000


async def test_a_lost_run_counts_until_its_lease_ends(driver: QueueDriver) -> None:
    given_back = await driver.claimed(metered=True)
    await driver.begin(given_back)
    driver.pass_time(5)
    await driver.release(given_back, spent=True)
    lost = await driver.claim_one(lease_s=15)
    driver.pass_time(1)
    await driver.begin(lost)
    driver.pass_time(3600)
    assert await driver.reap() == {given_back.id: "delayed"}
    driver.pass_time(60)
    assert await driver.promote() == 1
    last = await driver.claim_one()
    seq = await driver.begin(last)
    driver.pass_time(2)
    assert await driver.finish(last, ran_ms=2000, seq=seq)
    assert await noted(driver, given_back.id) == 5000 + 14_000 + 2000


async def test_a_dead_letter_counts_all_its_runs_and_none_after_revival(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(metered=True)
    became = ""
    while became != "dead":
        claim = await driver.claim_one()
        await driver.begin(claim)
        driver.pass_time(2)
        became = await driver.release(claim, spent=True)
    assert await noted(driver, prediction_id) == 6000
    assert await driver.revive(prediction_id)
    claim = await driver.claim_one()
    driver.pass_time(9)
    assert await driver.finish(claim, ran_ms=9000)
    assert await noted(driver, prediction_id) == 6000


async def test_a_prediction_without_a_reservation_is_not_noted(driver: QueueDriver, claim: Claim) -> None:
    await driver.begin(claim)
    await driver.release(claim, spent=True)
    await driver.run(await driver.claim_one(), 3)
    assert not await driver.redis.exists(keys.unspent(partition_of(claim.id)))
    assert await driver.field(claim.id, "ran_ms") == ""
