"""cancel ends a waiting prediction at once and asks the holder of a running one."""

from director.broker import keys
from director.core.ids import partition_of
from tests.support.keyspace import unchanged
from tests.support.queue_driver import QueueDriver


async def test_a_waiting_prediction_ends_at_once_and_is_never_claimed(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(lifetime_ms=60_000, webhook="https://example.com", webhook_events="completed")
    assert await driver.cancel(prediction_id) == "canceled"
    record = await driver.record(prediction_id)
    assert (record.status, record.completed, record.started) == ("canceled", driver.now_ms, None)
    assert await driver.entries() == {}
    assert await driver.members(keys.live(driver.queue)) == {}
    assert await driver.members(keys.deadline(driver.queue)) == {}
    assert await driver.members(keys.owed(partition_of(prediction_id))) == {prediction_id: driver.now_ms}
    async with unchanged(driver.redis):
        assert await driver.cancel(prediction_id) == "over"
    assert await driver.claim() == []


async def test_the_holder_learns_by_its_channel_and_by_its_heartbeat(driver: QueueDriver) -> None:
    claim = await driver.claimed(consumer="d3")
    async with driver.redis.pubsub(ignore_subscribe_messages=True) as listener:
        await listener.subscribe(keys.kick_channel("d3"))
        await listener.get_message(timeout=5)
        assert await driver.cancel(claim.id) == "asked"
        message = await listener.get_message(timeout=5)
    assert message["data"] == claim.id.encode()
    assert await driver.extend(claim, consumer="d3") == ["user"]
    assert not (await driver.record(claim.id)).is_terminal


async def test_another_account_cannot_see_that_it_exists(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(account="mine")
    async with unchanged(driver.redis):
        assert await driver.cancel(prediction_id, account="theirs") == "unknown"
        assert await driver.cancel(driver.new_id(), account="theirs") == "unknown"
