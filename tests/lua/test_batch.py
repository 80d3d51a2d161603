"""A fault of one item of a batch touches no other item, and leaves nothing that the reconciler cannot see."""

import asyncio
from typing import Any

import pytest
from redis.exceptions import ResponseError

from director.broker import keys
from director.core.clock import SystemClock
from director.core.errors import BackendFull
from director.core.policy import Policy
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.keyspace import unchanged
from tests.support.queue_driver import ACCOUNT, MODEL, QueueDriver

# a field that an end needs, and a value that no script writes
BROKEN = [("seq", ""), ("claimed", "long ago"), ("cost", "much")]


async def together(*calls: Any) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize(("field", "value"), BROKEN)
async def test_end_with_a_broken_record_changes_nothing_of_it(driver: QueueDriver, field: str, value: str) -> None:
    await driver.submit_many(3)
    claims = await driver.claim(3)
    broken = claims[1]
    kept = await driver.redis.hget(keys.record(broken.id), field)
    await driver.redis.hset(keys.record(broken.id), field, value)
    first, refused, third = await together(*(driver.finish(claim, ran_ms=5, output=b"1") for claim in claims))
    assert (first, third) == (True, True)
    assert isinstance(refused, ResponseError)
    assert (await driver.stats()).claimed == 1
    assert await driver.extend(broken) == ["held"]
    await driver.redis.hset(keys.record(broken.id), field, kept)
    assert await driver.finish(broken, ran_ms=5, output=b"1")
    assert (await driver.stats()).tally["ended"] == 3
    assert await driver.entries() == {}


async def test_fault_of_what_ends_share_leaves_each_its_claim(driver: QueueDriver) -> None:
    await driver.submit_many(3)
    claims = await driver.claim(3)
    running = keys.running(driver.queue)
    kept = await driver.redis.hget(running, ACCOUNT)
    await driver.redis.hset(running, ACCOUNT, "many")
    answers = await together(*map(driver.finish, claims))
    assert [isinstance(answer, ResponseError) for answer in answers] == [True] * 3
    assert ((await driver.stats()).live, (await driver.stats()).claimed) == (3, 3)
    await driver.redis.hset(running, ACCOUNT, kept)
    assert await together(*map(driver.finish, claims)) == [True] * 3
    assert (await driver.stats()).live == 0
    assert await driver.entries() == {}


async def test_end_whose_events_are_no_list_is_written_but_for_them(driver: QueueDriver) -> None:
    await driver.submit_many(3)
    claims = await driver.claim(3)
    await driver.redis.set(keys.events(claims[0].id), "no list", px=10_000)
    assert await together(*map(driver.finish, claims)) == [True] * 3, "the second try finds it finished"
    for claim in claims:
        assert (await driver.record(claim.id)).status == "succeeded"
    assert (await driver.stats()).live == 0
    assert await driver.entries() == {}


async def test_enqueue_over_a_broken_key_writes_nothing_of_it(driver: QueueDriver) -> None:
    await driver.have_slots(1)
    ids = [driver.new_id() for _ in range(4)]
    await driver.redis.set(keys.record(ids[1]), "no record", px=60_000)
    await driver.redis.set(keys.events(ids[2]), "no list", px=60_000)
    answers = await together(*map(driver.submit, ids))
    assert [isinstance(answer, ResponseError) for answer in answers] == [False, True, True, False]
    assert set(await driver.members(keys.live(driver.queue))) == {ids[0], ids[3]}
    assert [claim.id for claim in await driver.claim(4)] == [ids[0], ids[3]]
    await driver.redis.delete(keys.record(ids[1]))


async def test_item_that_is_there_twice_is_carried_out_once(driver: QueueDriver) -> None:
    prediction_id = driver.new_id()
    assert await together(*(driver.submit(prediction_id) for _ in range(3))) == [prediction_id] * 3
    assert (await driver.stats()).tally == {"accepted:normal": 1}
    claim = await driver.claim_one()
    assert await together(driver.finish(claim), driver.finish(claim)) == [True, True]
    assert (await driver.stats()).tally["ended"] == 1
    assert (await driver.kinds(claim.id)).count("completed") == 1


async def test_same_idempotency_key_in_one_batch_makes_one_prediction(driver: QueueDriver) -> None:
    key = ("a" * 32, "b" * 32)
    first, *others = await together(*(driver.submit(idempotency=key) for _ in range(3)))
    assert others == [first, first]
    assert (await driver.stats()).live == 1


async def test_refused_item_leaves_its_neighbours_accepted(driver: QueueDriver) -> None:
    answers = await together(*(driver.submit(most_queued=2) for _ in range(5)))
    assert [getattr(answer, "code", "") for answer in answers] == ["", "", *["too_many_queued"] * 3]
    assert (await driver.stats()).live == 2


async def test_limits_of_a_refused_item_do_not_hold_for_the_next(driver: QueueDriver) -> None:
    await driver.have_slots(2)
    await driver.bound("reject")
    await driver.claimed()
    refused, made = await together(driver.submit(most_running=1, most_queued=0, limits_rev=2), driver.submit())
    assert refused.code == "too_many_queued"
    assert [claim.id for claim in await driver.claim()] == [made]


async def test_item_of_a_batch_has_the_place_of_a_single_one(driver: QueueDriver) -> None:
    lanes = ("normal", "high", "high", "normal", "low", "high", "normal", "low")
    catalog = Catalog(driver.redis, driver.scripts, SystemClock())
    queue = await catalog.register(MODEL, "b2" * 32, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    alone = QueueDriver(driver.redis, driver.scripts, queue)
    singly = [await alone.submit(lane=lane) for lane in lanes]
    at_once = await together(*(driver.submit(lane=lane) for lane in lanes))
    places = [await driver.redis.hget(keys.record(one), "place") for one in (*singly, *at_once)]
    expected = places[: len(lanes)]
    assert places[len(lanes) :] == expected
    assert len(set(expected)) > len(lanes) / 2, "they differ"


async def test_full_server_refuses_a_batch_and_writes_nothing(driver: QueueDriver) -> None:
    await driver.submit()
    await driver.redis.config_set("maxmemory", "1")
    try:
        async with unchanged(driver.redis):
            answers = await together(*(driver.submit() for _ in range(8)))
        assert {type(answer) for answer in answers} == {BackendFull}
        assert all(answer.is_untouched for answer in answers)
    finally:
        await driver.redis.config_set("maxmemory", "0")


async def test_broken_record_does_not_hold_up_those_read_with_it(driver: QueueDriver) -> None:
    await driver.have_slots(9)
    ids = await driver.submit_many(4, streams=[0])
    await driver.redis.hset(keys.record(ids[1]), "attempt", "")
    assert [claim.id for claim in await driver.claim(4)] == [ids[0], ids[2], ids[3]]
    assert await driver.redis.zcard(keys.lease(driver.queue)) == 3
    await driver.redis.hset(keys.record(ids[1]), "attempt", 0)
