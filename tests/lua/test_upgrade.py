"""Test that what a later release adds is left alone."""

from director.broker import keys
from tests.support.queue_driver import QueueDriver


async def test_fields_of_a_later_release_are_left_alone(driver: QueueDriver) -> None:
    prediction_id = driver.new_id()
    mid = await driver.redis.xadd(
        keys.stream(driver.queue, "normal", 3), {"id": prediction_id, "cost": "1", "of_tomorrow": "x"}
    )
    await driver.submit(prediction_id, streams=[3])
    own = await driver.field(prediction_id, "mid")
    await driver.redis.xdel(keys.stream(driver.queue, "normal", 3), own)
    await driver.redis.hset(keys.record(prediction_id), mapping={"mid": mid, "of_tomorrow": "x"})
    await driver.redis.hset(keys.meta(driver.queue), "of_tomorrow", "x")
    claim = await driver.claim_one()
    assert await driver.release(claim, spent=True) == "waiting"
    await driver.run(await driver.claim_one(), 1)
    assert (await driver.field(prediction_id, "of_tomorrow"), await driver.meta("of_tomorrow")) == ("x", "x")
    assert await driver.entries() == {}
