"""retire forgets directors that are long silent, but none with a pending entry."""

import pytest

from director.broker import keys
from director.core.ids import LANES
from tests.support.keyspace import unchanged
from tests.support.queue_driver import QueueDriver

HOUR_S = 3600


async def consumers(driver: QueueDriver) -> set[str]:
    """Return all consumers of all groups."""
    found = set()
    for lane in LANES:
        for number in range(32):
            stream = keys.stream(driver.queue, lane, number)
            if await driver.redis.exists(stream):
                rows = await driver.redis.xinfo_consumers(stream, keys.GROUP)
                found |= {row["name"].decode() for row in rows}
    return found


async def test_a_long_silent_director_is_forgotten_everywhere(driver: QueueDriver) -> None:
    for lane in LANES:
        await driver.submit(streams=[5], lane=lane)
    for claim in await driver.claim(3, consumer="gone"):
        await driver.finish(claim)
    await driver.extend(consumer="gone")
    driver.pass_time(HOUR_S)
    await driver.extend(consumer="here")
    assert await driver.retire() == "gone"
    assert list(await driver.members(keys.directors(driver.queue))) == ["here"]
    assert await consumers(driver) == set()
    assert await driver.redis.hkeys(keys.last(driver.queue)) == []


async def test_a_director_with_a_recent_heartbeat_stays(driver: QueueDriver) -> None:
    await driver.submit()
    await driver.finish(await driver.claim_one())
    await driver.extend()
    driver.pass_time(HOUR_S - 0.001)
    async with unchanged(driver.redis):
        assert await driver.retire() == ""


@pytest.mark.parametrize("lane", LANES)
async def test_a_director_with_pending_entries_stays(driver: QueueDriver, lane: str) -> None:
    claim = await driver.claimed(consumer="gone", lane=lane, streams=[15])
    await driver.extend(consumer="gone")
    driver.pass_time(HOUR_S)
    async with unchanged(driver.redis):
        assert await driver.retire() == ""
    assert await driver.reap() == {claim.id: "waiting"}
    assert await driver.retire() == "gone"
    assert (await driver.claim_one()).id == claim.id


async def test_pending_entries_above_a_shrink_keep_a_director_too(driver: QueueDriver) -> None:
    await driver.submit(streams=[15])
    await driver.claim_one(consumer="gone")
    await driver.extend(consumer="gone")
    await driver.scripts.resize(driver.queue, streams=1)
    driver.pass_time(HOUR_S)
    assert await driver.retire() == ""


async def test_a_director_that_must_stay_protects_no_other_and_one_goes_a_call(driver: QueueDriver) -> None:
    await driver.claimed(consumer="a")
    for name in ("a", "b", "c"):
        await driver.extend(consumer=name)
        driver.pass_time(1)
    driver.pass_time(HOUR_S)
    assert [await driver.retire() for _ in range(3)] == ["b", "c", ""]


async def test_a_director_that_returns_is_known_again(driver: QueueDriver) -> None:
    await driver.extend()
    driver.pass_time(HOUR_S)
    assert await driver.retire() == "d1"
    claim = await driver.claimed()
    assert await driver.extend(claim) == ["held"]
    assert await driver.finish(claim)
