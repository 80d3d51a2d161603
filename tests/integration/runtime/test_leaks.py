"""Test the check that ends every test with a server: it reports exactly what would never be removed."""

import pytest

from director.broker import keys
from director.core.ids import partition_of
from tests.support.keyspace import dump, leaks
from tests.support.queue_driver import ACCOUNT, QueueDriver


async def test_working_queue_leaks_nothing(driver: QueueDriver) -> None:
    waiting = await driver.submit(lifetime_ms=60_000)
    await driver.scripts.enlist(waiting, account=ACCOUNT, oldest=waiting)
    for _ in range(2):
        await driver.submit(webhook="https://example.com", webhook_events="completed")
    finished, released = await driver.claim(2)
    await driver.finish(finished, output=b"1")
    await driver.release(released, spent=True, delay_s=60)
    assert await leaks(driver.redis) == []
    await driver.redis.delete(keys.owed(partition_of(waiting)))


@pytest.mark.parametrize("part", [keys.record, keys.input_data, keys.output_data, keys.events])
async def test_ended_prediction_must_have_a_lifetime(driver: QueueDriver, part: object) -> None:
    assert callable(part)
    prediction_id = await driver.submit()
    await driver.finish(await driver.claim_one(), output=b"1")
    await driver.redis.persist(part(prediction_id))
    assert await leaks(driver.redis) == [part(prediction_id)]
    await driver.redis.delete(part(prediction_id))


@pytest.mark.parametrize("index", [keys.live, keys.lease, keys.delayed, keys.deadline])
async def test_index_must_not_name_an_ended_prediction(driver: QueueDriver, index: object) -> None:
    assert callable(index)
    prediction_id = await driver.submit()
    await driver.finish(await driver.claim_one())
    await driver.redis.zadd(index(driver.queue), {prediction_id: 1})
    assert await leaks(driver.redis) == [index(driver.queue)]
    await driver.redis.delete(index(driver.queue))


@pytest.mark.parametrize("name", ["stray", "{p1}:stray", "{p721}:q:acme/echo:a1a1a1a1a1a1:bell"])
async def test_unlisted_key_is_a_leak(driver: QueueDriver, name: str) -> None:
    await driver.redis.set(name, "1")
    assert await leaks(driver.redis) == [name]
    await driver.redis.delete(name)


async def test_dump_shows_a_changed_byte_and_a_changed_lifetime(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(data=b"1")
    before = await dump(driver.redis)
    assert await dump(driver.redis) == before
    await driver.redis.pexpire(keys.input_data(prediction_id), 60_000)
    assert await dump(driver.redis) != before
    await driver.redis.set(keys.input_data(prediction_id), b"2")
    assert await dump(driver.redis) != before
