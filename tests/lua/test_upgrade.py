"""This release serves predictions of an early one, which have no arrival and no counts, and keeps fields of a later
one.
"""

import pytest

from director.broker import keys
from director.broker.replies import Repair
from director.core.ids import PredictionId
from director.core.policy import Policy
from director.core.schema import Claim
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver

NEW_IN_META = ("lifetime_ms", "breaker_after", "breaker_cool_ms", "breaker_mode")


@pytest.fixture
async def driver(driver: QueueDriver) -> QueueDriver:
    """Return a driver of a queue that only a director of the former release has registered."""
    await driver.redis.hdel(keys.meta(driver.queue), *NEW_IN_META)
    return driver


async def former(driver: QueueDriver, *, stream: int = 3, **fields: object) -> PredictionId:
    """Write a prediction as the former release's enqueue did: every field, and no other."""
    redis, queue, prediction_id = driver.redis, driver.queue, driver.new_id()
    mid = await redis.xadd(keys.stream(queue, "normal", stream), {"id": prediction_id, "cost": "1"})
    record: dict[str, object] = {
        "status": "starting",
        "created": driver.now_ms,
        "attempt": 0,
        "claims": 0,
        "seq": 1,
        "token": "",
        "account": ACCOUNT,
        "model": MODEL,
        "version": VERSION,
        "queue": queue,
        "lane": "normal",
        "shard": str(stream),
        "cost": "1",
        "stream": stream,
        "mid": mid,
        **fields,
    }
    await redis.hset(keys.record(prediction_id), mapping=record)
    await redis.set(keys.input_data(prediction_id), b"{}")
    await redis.rpush(keys.events(prediction_id), f"created {driver.now_ms} ")
    await redis.zadd(keys.live(queue), {prediction_id: driver.now_ms})
    if "deadline" in fields:
        await redis.zadd(keys.deadline(queue), {prediction_id: fields["deadline"]})
    mask = int(await driver.meta("mask:normal") or 0) | 1 << stream
    await redis.hset(keys.meta(queue), "mask:normal", mask)
    return prediction_id


async def former_claim(driver: QueueDriver) -> Claim:
    """Return a claim of a director of the former release, which counted nothing."""
    await former(driver)
    claim = await driver.claim_one(consumer="former")
    await driver.redis.delete(keys.running(driver.queue))
    return claim


async def all_is_even(driver: QueueDriver) -> None:
    """Check that no wrong count is left once nothing waits or runs."""
    assert await driver.claim_all() == []
    assert await driver.reconcile() == (0, {})
    assert await driver.counts(keys.queued(driver.queue)) == {}
    assert await driver.counts(keys.running(driver.queue)) == {}
    assert {await driver.meta(f"{what}:normal") for what in ("ready", "backlogged")} <= {"", "0"}
    await driver.have_slots(2, consumer="former")
    ids = [await driver.submit(streams=[1]) for _ in range(3)]
    assert await driver.entries() == {1: ids[:2]}, "and what comes is counted right"
    assert await driver.backlog() == ids[2:]
    assert [claim.id for claim in await driver.claim(5)] == ids


@pytest.mark.parametrize("new", [0, 3], ids=["alone", "beside new ones"])
async def test_former_records_are_served_in_order(driver: QueueDriver, new: int) -> None:
    ids = [await former(driver) for _ in range(3)] + await driver.submit_many(new, streams=[3])
    claims = await driver.claim_all()
    assert [claim.id for claim in claims] == ids
    driver.pass_time(2)
    for claim in claims:
        assert await driver.finish(claim, ran_ms=2000)
    assert (await driver.stats()).service_ms == 2000
    await all_is_even(driver)


async def return_it(driver: QueueDriver, claim: Claim, how: str) -> None:
    match how:
        case "released":
            assert await driver.release(claim) == "waiting"
        case "retried":
            assert await driver.release(claim, spent=True, delay_s=5) == "delayed"
            driver.pass_time(5)
            assert await driver.promote() == 1
        case "director_lost":
            driver.pass_time(15)
            assert await driver.reap() == {claim.id: "waiting"}
        case "lease_lost":
            await driver.redis.delete(keys.lease(driver.queue))
            assert await driver.recover(3) == ("0-0", {claim.id: "waiting"})


@pytest.mark.parametrize("crowded", [False, True], ids=["alone", "among others"])
@pytest.mark.parametrize("how", ["released", "retried", "director_lost", "lease_lost"])
async def test_a_former_claim_comes_back_and_runs(driver: QueueDriver, how: str, crowded: bool) -> None:
    claim = await former_claim(driver)
    others = await driver.submit_many(4 * crowded)
    await return_it(driver, claim, how)
    again = await driver.claim_all()
    assert {claim.id for claim in again} == {claim.id, *others}
    for one in again:
        await driver.run(one, 1)
    await all_is_even(driver)


async def test_a_former_claim_is_extended_and_finished(driver: QueueDriver) -> None:
    claim = await former_claim(driver)
    assert await driver.extend(claim, consumer="former") == ["held"]
    await driver.run(claim, 1)
    await all_is_even(driver)


async def test_a_former_record_can_be_canceled(driver: QueueDriver) -> None:
    assert await driver.cancel(await former(driver)) == "canceled"
    await all_is_even(driver)


async def test_a_former_record_expires(driver: QueueDriver) -> None:
    prediction_id = await former(driver, deadline=driver.now_ms + 1000, late="aborted")
    driver.pass_time(1)
    assert await driver.expire() == (1, 0)
    assert (await driver.record(prediction_id)).status == "aborted"
    await all_is_even(driver)


async def test_a_former_record_has_an_outlook_and_is_counted(driver: QueueDriver) -> None:
    ids = [await former(driver) for _ in range(2)]
    outlook = await driver.outlook(ids[1])
    assert (outlook.ahead, outlook.reason) == (1, "no_director")
    assert (await driver.stats()).waiting == 2
    stats = await driver.stats()
    assert (stats.mode, stats.breaker, stats.slots, stats.tally) == ("absorb", "", 0, {})


async def test_a_former_record_dies_and_is_revived(driver: QueueDriver) -> None:
    prediction_id = await former(driver)
    for _ in range(3):
        became = await driver.release(await driver.claim_one(), spent=True, error="It broke.", code="broken")
    assert became == "dead"
    assert await driver.revive(prediction_id)
    await driver.run(await driver.claim_one(), 1)
    await all_is_even(driver)


@pytest.mark.parametrize(("lost", "repair"), [("entry", "placed"), ("mask", "offered")])
async def test_a_former_record_is_reconciled(driver: QueueDriver, lost: str, repair: Repair) -> None:
    prediction_id = await former(driver)
    assert await driver.reconcile() == (0, {}), "well as it is"
    if lost == "entry":
        stream, mid = keys.stream(driver.queue, "normal", 3), await driver.field(prediction_id, "mid")
        await driver.redis.xdel(stream, mid)
    else:
        await driver.redis.hset(keys.meta(driver.queue), "mask:normal", 0)
    assert await driver.reconcile() == (0, {prediction_id: repair})
    await driver.run(await driver.claim_one(), 1)
    await all_is_even(driver)


async def test_limits_apply_to_what_is_counted_from_now_on(driver: QueueDriver) -> None:
    ids = []
    for _ in range(3):
        ids.append(await former(driver))
        driver.pass_time(0.001)
    ids.append(await driver.submit(most_running=1))
    served = []
    while claims := await driver.claim(9):
        assert len(claims) == 1
        served.append(claims[0].id)
        await driver.run(claims[0], 1)
    assert served == ids


async def test_the_policy_of_the_first_new_director_applies(driver: QueueDriver) -> None:
    claim = await former_claim(driver)
    await driver.scripts.register(driver.queue, version=VERSION, policy=Policy(breaker_after=2, lifetime_s=60))
    late = await driver.submit()
    assert (await driver.record(late)).deadline == driver.now_ms + 60_000
    assert (await driver.record(claim.id)).deadline is None


async def test_fields_of_a_later_release_are_left_alone(driver: QueueDriver) -> None:
    prediction_id = driver.new_id()
    mid = await driver.redis.xadd(
        keys.stream(driver.queue, "normal", 3), {"id": prediction_id, "cost": "1", "of_tomorrow": "x"}
    )
    await driver.submit(prediction_id, streams=[3])
    own = await driver.field(prediction_id, "mid")
    await driver.redis.xdel(keys.stream(driver.queue, "normal", 3), own)
    await driver.redis.hset(keys.record(prediction_id), mapping={"mid": mid, "of_tomorrow": "x"})
    await driver.redis.hset(keys.meta(driver.queue), "of_tomorrow", "x")
    claim = await driver.claim_one()
    assert await driver.release(claim, spent=True) == "waiting"
    await driver.run(await driver.claim_one(), 1)
    assert (await driver.field(prediction_id, "of_tomorrow"), await driver.meta("of_tomorrow")) == ("x", "x")
    assert await driver.entries() == {}
