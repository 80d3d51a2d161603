"""unregister forgets a queue of which nothing is left and changes nothing of any other."""

import pytest

from director.broker import keys
from director.core.errors import UnknownQueue
from tests.support.keyspace import dump, unchanged
from tests.support.queue_driver import QueueDriver

LONG_S = 61


async def unregister(driver: QueueDriver) -> str:
    return await driver.scripts.unregister(driver.queue, now_ms=driver.now_ms)


async def refused(driver: QueueDriver) -> str:
    """Return the refusal, which changes nothing."""
    async with unchanged(driver.redis):
        return await unregister(driver)


async def test_an_unused_queue_leaves_nothing(driver: QueueDriver) -> None:
    async with unchanged(driver.redis):
        assert await driver.scripts.unregister(driver.queue, only_asks=True, now_ms=driver.now_ms) == "done"
    for _ in range(2):
        assert await unregister(driver) == "done"
        assert [name for name in await dump(driver.redis) if ":q:" in name] == []
    with pytest.raises(UnknownQueue):
        await driver.submit()


async def test_upper_streams_left_by_a_resize_are_removed_with_the_queue(driver: QueueDriver) -> None:
    for number in range(16):
        await driver.submit(streams=[number])
    for claim in await driver.claim_all():
        assert await driver.finish(claim)
    assert await driver.scripts.resize(driver.queue, streams=4) == (4, 4)
    assert await unregister(driver) == "done"
    assert [name for name in await dump(driver.redis) if ":q:" in name] == []


async def test_an_entry_above_the_read_streams_keeps_the_queue(driver: QueueDriver) -> None:
    await driver.redis.xadd(keys.stream(driver.queue, "low", 31), {"id": "lost"})
    assert await refused(driver) == "live"
    await driver.redis.delete(keys.stream(driver.queue, "low", 31))


async def test_terminal_predictions_keep_their_records_and_leave_no_queue_keys(driver: QueueDriver) -> None:
    first, second = await driver.submit(), await driver.submit(lane="low")
    for claim in await driver.claim(2):
        await driver.begin(claim)
        assert await driver.finish(claim, output=b"1")
    await driver.extend(consumer="d1")
    driver.pass_time(LONG_S)
    assert await unregister(driver) == "done"
    assert [name for name in await dump(driver.redis) if ":q:" in name] == []
    for prediction_id in (first, second):
        stored = await driver.scripts.get(prediction_id)
        assert stored.record.status == "succeeded"


@pytest.mark.parametrize("stage", ["waiting", "running", "delayed"])
async def test_a_live_prediction_keeps_the_queue(driver: QueueDriver, stage: str) -> None:
    await driver.submit()
    if stage == "running":
        await driver.begin(await driver.claim_one())
    elif stage == "delayed":
        assert await driver.release(await driver.claim_one(), spent=True, delay_s=9) == "delayed"
    assert await refused(driver) == "live"


async def test_an_entry_missing_from_every_index_keeps_the_queue(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    await driver.redis.delete(keys.live(driver.queue))
    assert await refused(driver) == "live"
    await driver.redis.zadd(keys.live(driver.queue), {prediction_id: driver.now_ms})


async def test_a_dead_letter_keeps_the_queue(driver: QueueDriver) -> None:
    await driver.die()
    driver.pass_time(LONG_S)
    assert await refused(driver) == "dead"


async def test_a_live_director_keeps_the_queue(driver: QueueDriver) -> None:
    await driver.extend(consumer="d1")
    driver.pass_time(LONG_S - 2)
    assert await refused(driver) == "served"
    driver.pass_time(2)
    assert await unregister(driver) == "done"
