"""reconcile puts a prediction that no claim would find back into its stream and changes nothing else."""

from unittest.mock import ANY

import pytest

from director.broker import keys
from director.broker.replies import Repair
from director.core.ids import LANES, PredictionId
from director.core.policy import Policy
from director.core.schema import Claim
from tests.support.keyspace import dump, unchanged
from tests.support.queue_driver import VERSION, QueueDriver


async def stream_of(driver: QueueDriver, prediction_id: PredictionId) -> str:
    return keys.stream(driver.queue, "normal", int(await driver.field(prediction_id, "stream")))


async def harm(driver: QueueDriver, prediction_id: PredictionId, how: str) -> None:
    """Do what an operator could do to the stream of a prediction."""
    redis, stream = driver.redis, await stream_of(driver, prediction_id)
    match how:
        case "entry_deleted":
            assert await redis.xdel(stream, await driver.field(prediction_id, "mid")) == 1
        case "stream_deleted":
            assert await redis.delete(stream) == 1
        case "group_set_to_the_end":
            await redis.xgroup_create(stream, keys.GROUP, "0")
            await redis.xgroup_setid(stream, keys.GROUP, "$")
        case "group_created_at_the_end":
            await redis.xgroup_destroy(stream, keys.GROUP)
            await redis.xgroup_create(stream, keys.GROUP, "$")
        case "read_by_a_stranger" | "consumer_deleted":
            await redis.xgroup_create(stream, keys.GROUP, "0")
            assert await redis.xreadgroup(keys.GROUP, "stranger", {stream: ">"}, count=1)
            if how == "consumer_deleted":
                assert await redis.xgroup_delconsumer(stream, keys.GROUP, "stranger") == 1


@pytest.mark.parametrize(
    "how",
    [
        "entry_deleted",
        "stream_deleted",
        "group_set_to_the_end",
        "group_created_at_the_end",
        "read_by_a_stranger",
        "consumer_deleted",
    ],
)
async def test_a_prediction_that_no_claim_would_find_returns_to_a_stream(driver: QueueDriver, how: str) -> None:
    await driver.have_slots(32)
    prediction_id = await driver.submit(streams=[3])
    well = await driver.submit(streams=[5])
    await harm(driver, prediction_id, how)
    await driver.hear_bell()
    assert await driver.reconcile() == (0, {prediction_id: "placed"})
    assert await driver.hear_bell()
    async with unchanged(driver.redis):
        assert await driver.reconcile() == (0, {})
    assert await driver.entries() == {3: [prediction_id], 5: [well]}
    assert {claim.id for claim in await driver.claim_all()} == {prediction_id, well}


async def test_the_next_claim_recreates_a_lost_group_without_double_runs(driver: QueueDriver) -> None:
    await driver.have_slots(32)
    waiting, held = await driver.submit(streams=[3]), await driver.submit(streams=[3])
    claim = await driver.claim_one()
    held, waiting = claim.id, waiting if claim.id == held else held
    await driver.redis.xgroup_destroy(await stream_of(driver, waiting), keys.GROUP)
    assert await driver.reconcile() == (0, {})
    assert [again.id for again in await driver.claim_all(consumer="d2")] == [waiting]
    assert await driver.finish(claim)


async def test_a_retry_missing_from_the_delayed_list_waits_again(driver: QueueDriver, claim: Claim) -> None:
    await driver.release(claim, spent=True, delay_s=5)
    await driver.redis.delete(keys.delayed(driver.queue))
    assert await driver.reconcile() == (0, {claim.id: "placed"})
    assert (await driver.claim_one()).record.attempt == 2


async def test_a_claim_without_a_lease_gets_one_and_is_recovered_later(driver: QueueDriver, claim: Claim) -> None:
    await driver.redis.delete(keys.lease(driver.queue))
    assert await driver.reconcile() == (0, {claim.id: "leased"})
    assert await driver.members(keys.lease(driver.queue)) == {claim.id: driver.now_ms + 15_000}
    driver.pass_time(15)
    assert await driver.reap() == {claim.id: "waiting"}


async def test_a_claim_without_an_entry_is_left_to_its_holder(driver: QueueDriver, claim: Claim) -> None:
    await harm(driver, claim.id, "stream_deleted")
    assert await driver.reconcile() == (0, {})
    assert await driver.finish(claim)


async def test_a_terminal_prediction_is_forgotten_and_keeps_its_end(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    await driver.cancel(prediction_id)
    before = await dump(driver.redis) | {keys.meta(driver.queue): ANY}
    await driver.redis.zadd(keys.live(driver.queue), {prediction_id: 1})
    assert await driver.reconcile() == (0, {prediction_id: "forgotten"})
    assert await dump(driver.redis) == before


async def test_a_dead_letter_is_forgotten_with_its_record(driver: QueueDriver) -> None:
    await driver.scripts.register(driver.queue, version=VERSION, policy=Policy(breaker_after=0))
    older, newer = await driver.die(), await driver.die()
    await driver.redis.delete(keys.record(older))
    assert await driver.reconcile() == (0, {})
    assert list(await driver.members(keys.dead(driver.queue))) == [newer]
    async with unchanged(driver.redis):
        assert await driver.reconcile() == (0, {})


async def test_a_healthy_queue_is_not_changed(driver: QueueDriver) -> None:
    for number in range(4):
        await driver.submit(streams=[number], lane=LANES[number % 3])
    held, delayed, ended = await driver.claim(3)
    await driver.release(delayed, spent=True, delay_s=5)
    await driver.finish(ended)
    await driver.begin(held)
    await driver.hear_bell()
    async with unchanged(driver.redis):
        assert await driver.reconcile() == (0, {})


async def test_slices_with_a_carried_rank_cover_all_despite_removals(driver: QueueDriver) -> None:
    await driver.have_slots(32)
    expected: dict[PredictionId, Repair] = {}
    for number in range(25):
        prediction_id = await driver.submit(account=f"t{number}", streams=[number % 4])
        driver.pass_time(1)
        if number % 3 == 0:
            await harm(driver, prediction_id, "entry_deleted")
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
