"""enlist keeps every accepted prediction in its account's list, which does not grow for ever."""

from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.ids import PredictionId, lowest_id_at, new_prediction_id
from tests.support.keyspace import unchanged
from tests.support.queue_driver import ACCOUNT, MODEL

OLDEST = lowest_id_at(1_000)


async def listed(redis: Redis) -> list[str]:
    return [name.decode() for name in await redis.zrange(keys.listing(ACCOUNT), 0, -1)]


async def enlist(scripts: Scripts, at_ms: int, *, oldest: PredictionId = OLDEST) -> PredictionId:
    prediction_id = new_prediction_id(model=MODEL, now_ms=at_ms)
    await scripts.enlist(prediction_id, account=ACCOUNT, oldest=oldest)
    return prediction_id


async def test_ids_are_in_order_of_time(redis: Redis, scripts: Scripts) -> None:
    ids = {at: await enlist(scripts, at) for at in (5_000, 2_000, 9_000)}
    assert await listed(redis) == [ids[2_000], ids[5_000], ids[9_000]]


async def test_a_repeated_call_has_one_effect(redis: Redis, scripts: Scripts) -> None:
    prediction_id = await enlist(scripts, 2_000)
    async with unchanged(redis):
        await scripts.enlist(prediction_id, account=ACCOUNT, oldest=OLDEST)


async def test_each_call_drops_a_few_old_ids(redis: Redis, scripts: Scripts) -> None:
    for at in range(1_000, 1_010):
        await enlist(scripts, at)
    kept = [await enlist(scripts, 3_000, oldest=lowest_id_at(2_000))]
    assert len(await listed(redis)) == 3
    kept.append(await enlist(scripts, 3_001, oldest=lowest_id_at(2_000)))
    assert await listed(redis) == kept
