"""pause: a queue that hands nothing out, loses nothing, and goes on when it is resumed."""

import pytest

from director.core.errors import UnknownQueue
from director.core.ids import QueueName
from tests.support.keyspace import dump
from tests.support.queue_driver import MODEL, QueueDriver

pytestmark = pytest.mark.anyio


async def test_a_paused_queue_takes_work_in_and_hands_none_out(driver: QueueDriver) -> None:
    await driver.pause()
    prediction_id = await driver.submit()
    assert await driver.claim() == []
    await driver.pause(paused=False)
    assert (await driver.claim_one()).id == prediction_id


async def test_what_is_claimed_runs_on(driver: QueueDriver) -> None:
    await driver.submit()
    claim = await driver.claim_one()
    await driver.pause()
    await driver.begin(claim)
    assert await driver.extend(claim) == ["held"]
    assert await driver.finish(claim, seq=2)


async def test_resuming_rings(driver: QueueDriver) -> None:
    await driver.pause()
    await driver.submit()
    await driver.hear_bell()
    await driver.pause(paused=False)
    assert await driver.hear_bell()


async def test_pausing_does_not_ring_nor_does_a_claim_that_gets_nothing(driver: QueueDriver) -> None:
    await driver.submit()
    await driver.hear_bell()
    await driver.pause()
    assert await driver.claim() == []
    assert not await driver.hear_bell()


async def test_pausing_twice_is_pausing_once(driver: QueueDriver) -> None:
    await driver.pause()
    before = await dump(driver.redis)
    await driver.pause()
    assert await dump(driver.redis) == before


async def test_an_unknown_queue_is_an_error(driver: QueueDriver) -> None:
    before = await dump(driver.redis)
    with pytest.raises(UnknownQueue):
        await driver.scripts.pause(QueueName(f"{MODEL}:000000000000"), paused=True)
    assert await dump(driver.redis) == before
