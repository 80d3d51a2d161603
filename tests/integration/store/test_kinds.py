"""Test queues of kinds other than predictions: they exist beside the queue of a version and do not affect it."""

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.core.ids import QueueName, queue_name
from director.core.policy import Policy
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.keyspace import dump
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver


async def register(catalog: Catalog, *, attempts: int = 3) -> QueueName:
    policy = Policy(streams=4, size=1, attempts=attempts)
    return await catalog.register_kind(MODEL, VERSION, "training", schema=OPEN_SCHEMA, server="", policy=policy)


def test_queue_of_another_kind_shares_the_partition_of_the_model() -> None:
    trainings = queue_name(MODEL, VERSION, "training")
    assert trainings == "acme/echo:a1a1a1a1a1a1~training"
    assert keys.queue_partition(trainings) == keys.queue_partition(queue_name(MODEL, VERSION))


async def test_other_kind_has_its_own_streams_and_policy(catalog: Catalog, queue: QueueName, redis: Redis) -> None:
    version = await catalog.version(MODEL, VERSION)
    assert version is not None
    assert await catalog.of_kind(version, "training") is None
    before = await redis.hgetall(keys.meta(queue))
    trainings = await register(catalog, attempts=7)
    known = await catalog.of_kind(version, "training")
    assert (known.queue, known.streams, known.size) == (trainings, 4, 1)
    assert await catalog.of_kind(version, "") == version
    assert await redis.hgetall(keys.meta(queue)) == before, "that of predictions is as its directors have it"
    assert await redis.hget(keys.meta(trainings), "attempts") == b"7"


async def test_keepers_find_another_kind_but_the_version_list_does_not(catalog: Catalog, queue: QueueName) -> None:
    trainings = await register(catalog)
    assert await catalog.queues() == [queue, trainings]
    assert await catalog.version_ids(MODEL) == [VERSION]


async def test_prediction_queue_is_created_for_an_unknown_version(catalog: Catalog) -> None:
    trainings = await register(catalog)
    assert await catalog.queues() == [queue_name(MODEL, VERSION), trainings]
    version = await catalog.version(MODEL, VERSION)
    assert version.queue == queue_name(MODEL, VERSION)


async def test_repeated_registration_changes_nothing(catalog: Catalog, redis: Redis) -> None:
    await register(catalog)
    before = await dump(redis)
    await register(catalog)
    assert await dump(redis) == before


@pytest.mark.parametrize("kind", ["", "procedure"])
async def test_cancel_reaches_no_other_kind(driver: QueueDriver, kind: str) -> None:
    prediction_id = await driver.submit(kind="training")
    before = await dump(driver.redis)
    assert await driver.scripts.cancel(prediction_id, account=ACCOUNT, kind=kind) == "unknown"  # type: ignore[arg-type]
    assert await dump(driver.redis) == before
    assert await driver.scripts.cancel(prediction_id, account=ACCOUNT, kind="training") == "canceled"
