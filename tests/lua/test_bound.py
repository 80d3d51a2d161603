"""bound sets how much a queue accepts: everything, a number, or only what can start at once."""

import pytest

from director.broker.replies import Admission
from director.core.errors import QueueRefused
from tests.support.keyspace import unchanged
from tests.support.queue_driver import QueueDriver


async def refusal(driver: QueueDriver, **options: object) -> QueueRefused:
    """Return the refusal of a submit, which writes nothing."""
    async with unchanged(driver.redis):
        with pytest.raises(QueueRefused) as refused:
            await driver.submit(**options)
    return refused.value


async def test_a_queue_accepts_everything_by_default(driver: QueueDriver) -> None:
    await driver.submit_many(50)
    assert (await driver.stats()).mode == "absorb"


async def test_a_bounded_queue_accepts_up_to_its_bound(driver: QueueDriver) -> None:
    await driver.bound("bounded", 3)
    for account in ("a", "b", "c"):
        await driver.submit(account=account)
    refused = await refusal(driver, account="d", weight=3, idempotency=("digest", "body"))
    assert (refused.code, refused.limit, refused.eta_s) == ("queue_full", 3, None)
    stats = await driver.stats()
    assert (stats.mode, stats.max_queued, stats.waiting) == ("bounded", 3, 3)


async def test_a_refusal_estimates_when_a_permit_becomes_free(driver: QueueDriver) -> None:
    await driver.have_slots(4)
    await driver.bound("bounded", 0)
    assert (await refusal(driver)).retry_after_s == 1, "run times are unknown"
    await driver.bound("absorb")
    await driver.run(await driver.claimed(), 10)
    await driver.bound("bounded", 0)
    assert (await refusal(driver)).retry_after_s == 3, "four slots that take ten seconds for each"


async def test_a_rejecting_queue_accepts_as_many_as_it_has_slots(driver: QueueDriver) -> None:
    await driver.bound("reject")
    refused = await refusal(driver)
    assert (refused.code, refused.limit) == ("no_capacity", 0), "no director is there"
    await driver.have_slots(2)
    await driver.submit_many(2)
    refused = await refusal(driver)
    assert (refused.code, refused.limit) == ("no_capacity", 2)
    claims = await driver.claim(2)
    assert (await refusal(driver)).code == "no_capacity", "slots that are at work are not free"
    await driver.finish(claims[0])
    await driver.submit()
    await refusal(driver)


async def test_a_rejecting_queue_accepts_nothing_while_nothing_can_start(driver: QueueDriver) -> None:
    await driver.have_slots(2)
    await driver.bound("reject")
    await driver.pause()
    assert (await refusal(driver)).code == "no_capacity"
    await driver.pause(paused=False)
    await driver.cancel(await driver.submit())
    driver.pass_time(21)
    assert (await refusal(driver)).code == "no_capacity", "its directors went silent"


@pytest.mark.parametrize(("mode", "limit"), [("bounded", 1), ("reject", None), ("absorb", None)])
async def test_a_repeated_submit_gets_its_answer_and_no_refusal(
    driver: QueueDriver, mode: Admission, limit: int | None
) -> None:
    await driver.have_slots(1)
    await driver.bound(mode, limit)
    options = {"most_queued": 1} if mode == "absorb" else {}
    prediction_id = await driver.submit(idempotency=("digest", "body"), **options)
    async with unchanged(driver.redis):
        assert await driver.submit(prediction_id, **options) == prediction_id
        assert await driver.submit(idempotency=("digest", "body"), **options) == prediction_id
    await refusal(driver, idempotency=("another digest", "body"), **options)


async def test_the_idempotency_key_of_a_refused_submit_stays_free(driver: QueueDriver) -> None:
    await driver.bound("bounded", 0)
    await refusal(driver, idempotency=("digest", "body"))
    await driver.bound("absorb")
    await driver.submit(idempotency=("digest", "another body"))
    assert (await driver.stats()).max_queued is None


async def test_the_limit_of_the_account_is_reported_before_the_bound(driver: QueueDriver) -> None:
    await driver.bound("bounded", 1)
    await driver.submit()
    assert (await refusal(driver, most_queued=1)).code == "too_many_queued"


async def test_setting_the_same_bound_twice_has_one_effect(driver: QueueDriver) -> None:
    await driver.bound("bounded", 7)
    async with unchanged(driver.redis):
        await driver.bound("bounded", 7)


@pytest.mark.parametrize(("mode", "max_queued"), [("bounded", None), ("absorb", 3), ("reject", 3)])
async def test_only_a_bounded_queue_has_a_bound(driver: QueueDriver, mode: str, max_queued: int | None) -> None:
    with pytest.raises(ValueError, match="max_queued"):
        await driver.bound(mode, max_queued)
