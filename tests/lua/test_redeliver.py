"""redeliver makes a webhook owed again and starts no attempt beside one in progress."""

from typing import Any

import pytest

from director.broker import keys
from director.broker.replies import Redelivered
from director.core.ids import PredictionId
from tests.support.keyspace import unchanged
from tests.support.queue_driver import ACCOUNT, QueueDriver

pytestmark = pytest.mark.usefixtures("nothing_stays_owed")

HOUR_S = 3600
OWED_S = 4 * 24 * HOUR_S


async def redeliver(driver: QueueDriver, prediction_id: PredictionId, account: str | None = ACCOUNT) -> Redelivered:
    return await driver.scripts.redeliver(prediction_id, account=account, now_ms=driver.now_ms)


async def ended(driver: QueueDriver, **options: Any) -> PredictionId:
    options = {"webhook": "https://example.com", "webhook_events": "completed", **options}
    prediction_id = await driver.submit(**options)
    await driver.finish(await driver.claim_one(), output=b"1", grace_s=45)
    return prediction_id


async def told(driver: QueueDriver, outcome: str = "delivered") -> PredictionId:
    """Return a terminal prediction whose webhook is no longer owed."""
    prediction_id = await ended(driver)
    assert await driver.deliver(prediction_id, outcome)
    return prediction_id


@pytest.mark.parametrize("outcome", ["delivered", "gone", "refused", "given_up"])
async def test_a_webhook_that_is_no_longer_owed_becomes_due_once(driver: QueueDriver, outcome: str) -> None:
    prediction_id = await told(driver, outcome)
    driver.pass_time(60)
    for _ in range(2):
        assert await redeliver(driver, prediction_id) == "owed"
    assert await driver.due() == [prediction_id]
    assert await redeliver(driver, prediction_id) == "owed"
    assert await driver.due() == []


@pytest.mark.parametrize("outcome", ["delivered", "gone", "refused", "given_up"])
async def test_redelivery_of_what_is_owed_leaves_a_settled_webhook(driver: QueueDriver, outcome: str) -> None:
    prediction_id = await ended(driver)
    assert await driver.deliver(prediction_id, "failed", 7200)

    async def only_if_owed() -> Redelivered:
        return await driver.scripts.redeliver(prediction_id, account=None, only_owed=True, now_ms=driver.now_ms)

    assert [await only_if_owed(), await only_if_owed()] == ["owed", "owed"]
    assert await driver.due() == [prediction_id]
    assert await driver.deliver(prediction_id, outcome)
    async with unchanged(driver.redis):
        assert await only_if_owed() == "settled"


async def test_a_redelivery_restarts_the_schedule_and_continues_the_attempt_count(driver: QueueDriver) -> None:
    prediction_id = await told(driver)
    driver.pass_time(60)
    await redeliver(driver, prediction_id)
    record = await driver.record(prediction_id)
    assert (record.webhook_attempts, record.webhook_attempts_before, record.owed_since) == (1, 1, driver.now_ms)
    assert await driver.deliver(prediction_id, "failed", 5)
    assert (await driver.record(prediction_id)).webhook_attempts == 2


async def test_data_lives_while_the_webhook_is_owed_and_an_hour_longer(driver: QueueDriver) -> None:
    prediction_id = await told(driver)
    data = [make(prediction_id) for make in (keys.input_data, keys.output_data, keys.events)]
    assert {await driver.lifetime_s(key) for key in data} == {HOUR_S}
    await redeliver(driver, prediction_id)
    assert {await driver.lifetime_s(key) for key in data} == {OWED_S}
    assert await driver.lifetime_s(keys.record(prediction_id)) == 7 * 24 * HOUR_S, "and no record is shortened"
    assert await driver.deliver(prediction_id)
    assert {await driver.lifetime_s(key) for key in data} == {HOUR_S}


async def test_a_waiting_webhook_becomes_due_and_keeps_its_schedule(driver: QueueDriver) -> None:
    prediction_id = await ended(driver)
    assert await driver.deliver(prediction_id, "failed", 7200)
    assert await redeliver(driver, prediction_id) == "owed"
    assert (await driver.record(prediction_id)).webhook_attempts_before == 0
    assert await driver.due() == [prediction_id]


@pytest.mark.parametrize(("holder", "hold_s"), [("courier", 30), ("director", 45)])
async def test_no_attempt_begins_beside_another(driver: QueueDriver, holder: str, hold_s: int) -> None:
    prediction_id = await ended(driver)
    if holder == "courier":
        assert await driver.deliver(prediction_id, "failed", 0)
        assert await driver.due() == [prediction_id]
    assert await redeliver(driver, prediction_id) == "owed"
    assert await driver.due() == []
    driver.pass_time(hold_s)  # the holder died
    assert await driver.due() == [prediction_id]


async def test_only_the_owner_or_an_operator_can_request_a_redelivery(driver: QueueDriver) -> None:
    prediction_id = await told(driver)
    async with unchanged(driver.redis):
        assert await redeliver(driver, prediction_id, "stranger") == "unknown"
        assert await redeliver(driver, driver.new_id(), None) == "unknown"
    assert await redeliver(driver, prediction_id, None) == "owed"


async def test_an_impossible_redelivery_is_refused_and_changes_nothing(driver: QueueDriver) -> None:
    no_hook = await ended(driver, webhook="", webhook_events="")
    no_end = await ended(driver, webhook_events="start,output")
    removed = await told(driver)
    await driver.redis.delete(keys.input_data(removed), keys.output_data(removed), keys.events(removed))
    waits = await driver.submit(webhook="https://example.com", webhook_events="completed")
    async with unchanged(driver.redis):
        answers = [await redeliver(driver, one) for one in (no_hook, no_end, removed, waits)]
        assert answers == ["unwanted", "unwanted", "removed", "running"]


async def test_after_a_revival_the_next_end_has_the_whole_schedule(driver: QueueDriver) -> None:
    prediction_id = await driver.die(webhook="https://example.com", webhook_events="completed")
    assert await driver.deliver(prediction_id)
    assert await redeliver(driver, prediction_id) == "owed"
    assert await driver.revive(prediction_id)
    assert await redeliver(driver, prediction_id) == "running"
    record = await driver.record(prediction_id)
    assert (record.webhook_attempts, record.webhook_attempts_before, record.owed_since) == (0, 0, None)
