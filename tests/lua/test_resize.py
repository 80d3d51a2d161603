"""resize changes the number of streams and strands nothing in removed ones."""

import pytest

from tests.support.keyspace import unchanged
from tests.support.queue_driver import QueueDriver


async def test_shrinking_four_to_two_does_not_strand_an_entry_of_the_third(driver: QueueDriver) -> None:
    """The design that this queue comes from counts streams from 1 where they begin at 0, and loses this one."""
    await driver.scripts.resize(driver.queue, streams=4)
    prediction_id = await driver.submit(streams=[2])
    assert await driver.scripts.resize(driver.queue, streams=2) == (2, 3)
    assert (await driver.claim_one()).id == prediction_id


async def test_a_claimed_entry_keeps_its_stream_readable_until_it_ends(driver: QueueDriver) -> None:
    claim = await driver.claimed(streams=[9])
    assert await driver.scripts.resize(driver.queue, streams=4) == (4, 10)
    async with unchanged(driver.redis):
        assert await driver.scripts.resize(driver.queue, streams=4) == (4, 10)
    assert await driver.extend(claim) == ["held"]
    await driver.finish(claim)
    assert await driver.scripts.resize(driver.queue, streams=4) == (4, 4)


async def test_growing_serves_the_new_streams(driver: QueueDriver) -> None:
    await driver.have_slots(32)
    await driver.scripts.resize(driver.queue, streams=2)
    low = await driver.submit(streams=[20])
    assert await driver.scripts.resize(driver.queue, streams=32) == (32, 32)
    high = await driver.submit(streams=[20])
    assert await driver.entries() == {0: [low], 20: [high]}
    assert {claim.id for claim in await driver.claim_all()} == {low, high}


@pytest.mark.parametrize("streams", [0, 33, -1])
async def test_a_number_of_streams_above_the_mask_is_refused(driver: QueueDriver, streams: int) -> None:
    async with unchanged(driver.redis):
        with pytest.raises(ValueError, match="1 to 32"):
            await driver.scripts.resize(driver.queue, streams=streams)
