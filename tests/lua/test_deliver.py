"""due and deliver give each owed webhook to one courier at a time and record the outcome."""

import pytest

from director.broker import keys
from director.core.ids import PredictionId, new_prediction_id, partition_of
from tests.support.keyspace import unchanged
from tests.support.queue_driver import MODEL, START_MS, QueueDriver

PARTITION = partition_of(new_prediction_id(model=MODEL, now_ms=START_MS))


@pytest.fixture
async def owed(driver: QueueDriver, nothing_stays_owed: None) -> PredictionId:
    """Return a terminal prediction whose webhook is not delivered yet."""
    prediction_id = await driver.submit(webhook="https://example.com", webhook_events="completed")
    await driver.finish(await driver.claim_one(), grace_s=10)
    return prediction_id


async def test_a_webhook_is_due_after_its_holders_time_is_over(driver: QueueDriver, owed: PredictionId) -> None:
    driver.pass_time(9.999)
    assert await driver.due() == [], "its director may deliver it"
    driver.pass_time(0.001)
    for _ in range(2):
        assert await driver.due() == [owed]
        assert await driver.due() == [], "one courier has it"
        driver.pass_time(30)


async def test_a_delivered_webhook_is_no_longer_owed(driver: QueueDriver, owed: PredictionId) -> None:
    assert await driver.deliver(owed)
    assert await driver.members(keys.owed(PARTITION)) == {}
    record = await driver.record(owed)
    assert (record.webhook_outcome, record.webhook_attempts) == ("delivered", 1)
    async with unchanged(driver.redis):
        assert not await driver.deliver(owed, "failed", 5)


async def test_a_failed_webhook_is_due_again_after_the_delay(driver: QueueDriver, owed: PredictionId) -> None:
    assert await driver.deliver(owed, "failed", 5)
    assert await driver.members(keys.owed(PARTITION)) == {owed: driver.now_ms + 5_000}
    assert (await driver.record(owed)).webhook_outcome == "failed"
    assert await driver.lifetime_s(keys.record(owed)) == 7 * 86_400, "as before"


async def test_deliver_does_not_recreate_a_missing_record(driver: QueueDriver, owed: PredictionId) -> None:
    await driver.redis.delete(keys.record(owed))
    assert await driver.deliver(owed, "given_up", None)
    assert await driver.redis.exists(keys.record(owed), keys.owed(PARTITION)) == 0


async def test_data_of_an_owed_webhook_stays_until_it_is_delivered(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(webhook="https://example.com", webhook_events="completed")
    await driver.finish(await driver.claim_one(), output=b"1")
    data = [make(prediction_id) for make in (keys.input_data, keys.output_data, keys.events)]
    assert {await driver.lifetime_s(key) for key in data} == {4 * 24 * 3600}
    await driver.deliver(prediction_id, "failed", 5)
    assert {await driver.lifetime_s(key) for key in data} == {4 * 24 * 3600}
    await driver.deliver(prediction_id)
    assert {await driver.lifetime_s(key) for key in data} == {3600}


async def test_a_dead_letter_with_a_delivered_webhook_can_be_revived(driver: QueueDriver) -> None:
    prediction_id = await driver.die(webhook="https://example.com", webhook_events="completed")
    await driver.deliver(prediction_id)
    assert await driver.lifetime_s(keys.input_data(prediction_id)) == 7 * 24 * 3600


async def events(driver: QueueDriver, prediction_id: PredictionId) -> list[bytes]:
    replayed = await driver.scripts.replay(prediction_id, after=0, count=1000, most_bytes=1 << 20)
    assert [event.seq for event in replayed.events] == list(range(1, len(replayed.events) + 1))
    assert (await driver.record(prediction_id)).seq == len(replayed.events)
    return [event.data for event in replayed.events if event.kind == "webhook"]


async def test_each_attempt_is_an_event(driver: QueueDriver, owed: PredictionId) -> None:
    await driver.deliver(owed, "failed", 5, status=500, host="example.com")
    await driver.deliver(owed, "failed", 9, host="example.com")
    await driver.deliver(owed, "delivered", status=204, host="example.com")
    assert await events(driver, owed) == [
        b"completed failed 500 1 %d example.com" % (driver.now_ms + 5_000),
        b"completed failed - 2 %d example.com" % (driver.now_ms + 9_000),
        b"completed delivered 204 3 - example.com",
    ]


async def test_a_failure_noted_twice_is_counted_once(driver: QueueDriver, owed: PredictionId) -> None:
    for known in (0, 0, 1, 1):
        assert await driver.deliver(owed, "failed", 5, known=known)
    assert (await driver.record(owed)).webhook_attempts == 2 == len(await events(driver, owed))


async def test_a_webhook_that_arrived_is_never_owed_again(driver: QueueDriver, owed: PredictionId) -> None:
    await driver.deliver(owed, "failed", 5)
    assert await driver.deliver(owed, "delivered", known=0)
    assert await driver.members(keys.owed(PARTITION)) == {}


async def test_readers_of_a_prediction_are_notified_of_an_attempt(driver: QueueDriver, owed: PredictionId) -> None:
    async with driver.redis.pubsub() as listener:
        await listener.subscribe(keys.channel(owed))
        await listener.get_message(timeout=5)
        await driver.deliver(owed, "failed", 5)
        heard = await listener.get_message(timeout=5)
    assert heard["data"] == str((await driver.record(owed)).seq).encode()


async def test_removed_events_do_not_come_back(driver: QueueDriver, owed: PredictionId) -> None:
    await driver.redis.delete(keys.events(owed))
    assert await driver.deliver(owed, "failed", 5)
    assert await driver.redis.exists(keys.events(owed)) == 0
    assert (await driver.record(owed)).webhook_attempts == 1


async def test_the_number_of_attempt_events_is_bounded(driver: QueueDriver, owed: PredictionId) -> None:
    for _ in range(103):
        await driver.deliver(owed, "failed", 0)
    assert len(await events(driver, owed)) == 100
    assert (await driver.record(owed)).webhook_attempts == 103


async def test_a_webhook_outlives_its_queue_and_its_data_does_not(driver: QueueDriver, owed: PredictionId) -> None:
    assert await driver.scripts.unregister(driver.queue) == "done"
    assert await driver.deliver(owed)
    assert await driver.members(keys.owed(PARTITION)) == {}
    assert 0 < await driver.lifetime_s(keys.input_data(owed)) <= 3600
