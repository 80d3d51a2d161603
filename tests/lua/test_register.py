"""register creates a queue or refreshes its policy. Its streams are changed by resize."""

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.ids import QueueName
from director.core.policy import Objective, Objectives, Policy
from tests.support.keyspace import dump, unchanged
from tests.support.queue_driver import VERSION, QueueDriver

QUEUE = QueueName("acme/new:0123456789ab")
POLICY = Policy(
    streams=8, size=3, attempts=5, on_lost="fail", backoff_s=2, backoff_cap_s=30, data_ttl_s=60, record_ttl_s=120
)


async def test_a_new_queue_has_its_size_and_policy(redis: Redis, scripts: Scripts) -> None:
    assert await scripts.register(QUEUE, version="v1", policy=POLICY)
    assert await redis.hgetall(keys.meta(QUEUE)) == {
        b"version": b"v1",
        b"streams": b"8",
        b"read": b"8",
        b"size": b"3",
        b"attempts": b"5",
        b"on_lost": b"fail",
        b"backoff_ms": b"2000",
        b"backoff_cap_ms": b"30000",
        b"data_ttl_ms": b"60000",
        b"record_ttl_ms": b"120000",
        b"lifetime_ms": b"",
        b"breaker_after": b"5",
        b"breaker_cool_ms": b"30000",
        b"breaker_mode": b"hold",
        b"spare_slots": b"1",
        b"objectives": b"",
        b"within:high": b"",
        b"within:normal": b"",
        b"within:low": b"",
    }


async def test_registering_again_refreshes_the_policy_of_the_same_version(redis: Redis, scripts: Scripts) -> None:
    await scripts.register(QUEUE, version="v1", policy=POLICY)
    assert await scripts.register(QUEUE, version="v1", policy=replace(POLICY, streams=2, size=1, attempts=1))
    meta = await redis.hgetall(keys.meta(QUEUE))
    assert (meta[b"streams"], meta[b"size"], meta[b"attempts"]) == (b"8", b"3", b"1"), "resize changes the streams"
    async with unchanged(redis):
        assert not await scripts.register(QUEUE, version="v2", policy=POLICY)


async def test_objectives_are_measured_as_soon_as_they_are_registered(driver: QueueDriver) -> None:
    objectives: Objectives = {"normal": Objective(share=0.9, within_s=1.5)}
    await driver.scripts.register(driver.queue, version=VERSION, policy=Policy(objectives=objectives))
    assert (await driver.stats()).objectives == objectives
    await driver.submit()
    await driver.submit(lane="high")
    driver.pass_time(2)
    assert len(await driver.claim(2)) == 2
    assert (await driver.stats()).tally["missed:normal"] == 1
    await driver.scripts.register(driver.queue, version=VERSION, policy=Policy())
    await driver.submit()
    await driver.claim_one()
    stats = await driver.stats()
    assert stats.objectives == {}
    assert {name for name in stats.tally if name.startswith(("met:", "missed:"))} == {"missed:normal"}


async def test_objectives_of_a_newer_release_are_not_shown(driver: QueueDriver, redis: Redis) -> None:
    await redis.hset(keys.meta(driver.queue), "objectives", '{"normal":{"share":0.9,"within_s":1,"new":1}}')
    assert (await driver.stats()).objectives == {}


@pytest.mark.parametrize("streams", [0, 33])
async def test_a_number_of_streams_above_the_mask_is_refused(redis: Redis, scripts: Scripts, streams: int) -> None:
    with pytest.raises(ValueError, match="1 to 32"):
        await scripts.register(QUEUE, version="v1", policy=replace(POLICY, streams=streams))
    assert await dump(redis) == {}
