"""reconcile: what is nowhere stands in its stream again, and nothing that is well is touched."""

from collections.abc import Awaitable, Callable
from unittest.mock import ANY

import pytest

from director.broker import keys
from director.broker.scripts import Repair
from director.core.ids import LANES, PredictionId
from tests.support.keyspace import dump
from tests.support.queue_driver import QueueDriver

pytestmark = pytest.mark.anyio

Harm = Callable[[QueueDriver, PredictionId], Awaitable[object]]


async def stream_of(driver: QueueDriver, prediction_id: PredictionId) -> str:
    return keys.stream(driver.queue, "normal", int(await driver.field(prediction_id, "stream")))


async def delete_entry(driver: QueueDriver, prediction_id: PredictionId) -> None:
    stream = await stream_of(driver, prediction_id)
    assert await driver.redis.xdel(stream, await driver.field(prediction_id, "mid")) == 1


async def delete_stream(driver: QueueDriver, prediction_id: PredictionId) -> None:
    assert await driver.redis.delete(await stream_of(driver, prediction_id)) == 1


async def read_past_it(driver: QueueDriver, prediction_id: PredictionId) -> None:
    """As an operator does who sets the group to the end of its stream."""
    stream = await stream_of(driver, prediction_id)
    await driver.redis.xgroup_create(stream, keys.GROUP, "0")
    await driver.redis.xgroup_setid(stream, keys.GROUP, "$")


async def make_group_anew_at_the_end(driver: QueueDriver, prediction_id: PredictionId) -> None:
    stream = await stream_of(driver, prediction_id)
    await driver.redis.xgroup_destroy(stream, keys.GROUP)
    await driver.redis.xgroup_create(stream, keys.GROUP, "$")


async def read_by_a_stranger(driver: QueueDriver, prediction_id: PredictionId) -> None:
    stream = await stream_of(driver, prediction_id)
    await driver.redis.xgroup_create(stream, keys.GROUP, "0")
    assert await driver.redis.xreadgroup(keys.GROUP, "stranger", {stream: ">"}, count=1)


async def delete_the_consumer_that_read_it(driver: QueueDriver, prediction_id: PredictionId) -> None:
    await read_by_a_stranger(driver, prediction_id)
    assert await driver.redis.xgroup_delconsumer(await stream_of(driver, prediction_id), keys.GROUP, "stranger") == 1


HARMS: list[Harm] = [
    delete_entry,
    delete_stream,
    read_past_it,
    make_group_anew_at_the_end,
    read_by_a_stranger,
    delete_the_consumer_that_read_it,
]


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
async def test_what_no_claim_would_find_stands_in_a_stream_again(driver: QueueDriver, harm: Harm) -> None:
    await driver.have_slots(32)
    prediction_id = await driver.submit(streams=[3])
    well = await driver.submit(streams=[5])
    await harm(driver, prediction_id)
    await driver.hear_bell()
    assert await driver.reconcile() == (0, {prediction_id: "placed"})
    assert await driver.hear_bell()
    assert await driver.entries() == {3: [prediction_id], 5: [well]}
    assert {claim.id for claim in await driver.claim_all()} == {prediction_id, well}


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
async def test_repairing_twice_repairs_once(driver: QueueDriver, harm: Harm) -> None:
    prediction_id = await driver.submit(streams=[3])
    await harm(driver, prediction_id)
    await driver.reconcile()
    before = await dump(driver.redis)
    assert await driver.reconcile() == (0, {})
    assert await dump(driver.redis) == before


async def test_a_group_that_is_gone_is_no_harm_the_next_claim_makes_it_and_runs_nothing_twice(
    driver: QueueDriver,
) -> None:
    await driver.have_slots(32)
    waiting, held = await driver.submit(streams=[3]), await driver.submit(streams=[3])
    claim = await driver.claim_one()
    held, waiting = claim.id, waiting if claim.id == held else held
    await driver.redis.xgroup_destroy(await stream_of(driver, waiting), keys.GROUP)
    assert await driver.reconcile() == (0, {})
    assert [again.id for again in await driver.claim_all(consumer="d2")] == [waiting]
    assert await driver.finish(claim)


async def test_a_retry_that_no_list_has_any_more_waits_again(driver: QueueDriver) -> None:
    await driver.submit()
    claim = await driver.claim_one()
    await driver.release(claim, spent=True, delay_s=5)
    await driver.redis.delete(keys.delayed(driver.queue))
    assert await driver.reconcile() == (0, {claim.id: "placed"})
    assert (await driver.claim_one()).record.attempt == 2


async def test_a_claim_that_lost_its_lease_is_given_one_and_reaped_when_nobody_extends_it(driver: QueueDriver) -> None:
    await driver.submit()
    claim = await driver.claim_one()
    await driver.redis.delete(keys.lease(driver.queue))
    assert await driver.reconcile() == (0, {claim.id: "leased"})
    assert await driver.members(keys.lease(driver.queue)) == {claim.id: driver.now_ms + 15_000}
    driver.pass_time(15)
    assert await driver.reap() == {claim.id: "waiting"}


async def test_a_claim_that_lost_its_entry_is_its_holders_business(driver: QueueDriver) -> None:
    await driver.submit()
    claim = await driver.claim_one()
    await delete_stream(driver, claim.id)
    assert await driver.reconcile() == (0, {})
    assert await driver.finish(claim)


async def test_a_stream_that_claims_pass_by_is_offered_again(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(streams=[3])
    await driver.redis.hset(keys.meta(driver.queue), "mask:normal", 0)
    await driver.hear_bell()
    assert await driver.claim() == []
    assert await driver.reconcile() == (0, {prediction_id: "offered"})
    assert await driver.hear_bell()
    assert (await driver.claim_one()).id == prediction_id


async def test_what_has_no_record_is_forgotten(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    await driver.redis.delete(keys.record(prediction_id), keys.input_data(prediction_id), keys.events(prediction_id))
    assert await driver.reconcile() == (0, {prediction_id: "forgotten"})
    assert await driver.members(keys.live(driver.queue)) == {}
    assert await driver.claim() == []


async def test_what_has_ended_is_forgotten_and_stays_as_it_ended(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    await driver.cancel(prediction_id)
    before = await dump(driver.redis) | {keys.meta(driver.queue): ANY}
    await driver.redis.zadd(keys.live(driver.queue), {prediction_id: 1})
    assert await driver.reconcile() == (0, {prediction_id: "forgotten"})
    assert await dump(driver.redis) == before


async def test_nothing_that_is_well_is_touched(driver: QueueDriver) -> None:
    for number in range(4):
        await driver.submit(streams=[number], lane=LANES[number % 3])
    held, delayed, ended = await driver.claim(3)
    await driver.release(delayed, spent=True, delay_s=5)
    await driver.finish(ended)
    await driver.begin(held)
    await driver.hear_bell()
    before = await dump(driver.redis)
    assert await driver.reconcile() == (0, {})
    assert await dump(driver.redis) == before


async def test_slices_with_a_carried_rank_cover_all_though_some_are_forgotten(driver: QueueDriver) -> None:
    await driver.have_slots(32)
    expected: dict[PredictionId, Repair] = {}
    for number in range(25):
        prediction_id = await driver.submit(account=f"t{number}", streams=[number % 4])
        driver.pass_time(1)
        if number % 3 == 0:
            await delete_entry(driver, prediction_id)
            expected[prediction_id] = "placed"
        elif number % 3 == 1:
            await driver.redis.delete(
                keys.record(prediction_id), keys.input_data(prediction_id), keys.events(prediction_id)
            )
            expected[prediction_id] = "forgotten"
    repaired: dict[PredictionId, Repair] = {}
    start, slices = 0, 0
    while slices == 0 or start:
        start, batch = await driver.reconcile(start=start, count=4)
        repaired |= batch
        slices += 1
        assert len(batch) <= 4
    assert repaired == expected
    assert slices == 7
