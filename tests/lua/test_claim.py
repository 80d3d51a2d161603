"""claim hands each waiting prediction to one holder, in a fair order, and ends late ones on the way."""

from collections import Counter

import pytest

from director.broker import keys
from director.broker.scripts import MOST_CLAIMS
from director.core.schema import Claim
from director.core.states import Status
from tests.support.keyspace import unchanged
from tests.support.queue_driver import QueueDriver


async def test_a_claim_returns_record_input_lease_and_token(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(data=b'{"n":1}')
    claim = await driver.claim_one(consumer="d7", nonce="abc", lease_s=15)
    assert (claim.id, claim.token, bytes(claim.input)) == (prediction_id, "abc-1", b'{"n":1}')
    assert (claim.record.holder, claim.record.attempt, claim.record.claims) == ("d7", 1, 1)
    assert claim.record.status == "starting", "its run has not begun"
    assert claim.record == await driver.record(prediction_id)
    assert await driver.members(keys.lease(driver.queue)) == {prediction_id: driver.now_ms + 15_000}
    assert await driver.pending() == {prediction_id: "d7"}


async def test_an_empty_queue_hands_out_nothing_and_writes_no_claim(driver: QueueDriver) -> None:
    assert await driver.claim(5) == []
    assert await driver.redis.exists(keys.last(driver.queue), keys.lease(driver.queue)) == 0


async def test_streams_take_turns_over_calls(driver: QueueDriver) -> None:
    await driver.have_slots(32)
    whale = [await driver.submit(streams=[1]) for _ in range(5)]
    minnow = await driver.submit(streams=[8])
    served = [(await driver.claim_one()).id for _ in range(3)]
    assert served == [whale[0], minnow, whale[1]]


@pytest.mark.parametrize(("lanes", "shares"), [(["low"], {"low": 12}), (["low", "normal"], {"normal": 9, "low": 3})])
async def test_other_lanes_share_the_turns_of_an_empty_lane(
    driver: QueueDriver, lanes: list[str], shares: dict[str, int]
) -> None:
    for lane in lanes:
        await driver.submit_many(12, lane=lane)
    assert Counter(claim.record.lane for claim in await driver.claim(12)) == shares


async def test_a_lane_of_blocked_tenants_saves_no_turns(driver: QueueDriver) -> None:
    await driver.pause(account="held")
    for lane, account in [("low", "held")] * 30 + [("high", "acme")] * 120:
        await driver.submit(lane=lane, account=account)
    for _ in range(100):
        await driver.finish(await driver.claim_one())
    await driver.pause(account="held", paused=False)
    served = Counter([claim.record.lane for _ in range(18) for claim in await driver.claim(1)])
    assert served == {"high": 16, "low": 2}


async def test_a_repeated_call_gets_the_same_answer_and_no_more_claims(driver: QueueDriver) -> None:
    await driver.submit_many(4)
    first = await driver.claim(2, nonce="abc")
    async with unchanged(driver.redis):
        assert await driver.claim(2, nonce="abc") == first
    await driver.pause()
    assert await driver.claim(2, nonce="abc") == first


async def test_another_consumer_with_the_same_nonce_is_another_call(driver: QueueDriver) -> None:
    first, second = [await driver.submit(streams=[0]) for _ in range(2)]
    assert (await driver.claim_one(consumer="d1", nonce="abc")).id == first
    assert (await driver.claim_one(consumer="d2", nonce="abc")).id == second


async def test_a_claim_sends_a_wakeup_only_while_more_waits(driver: QueueDriver) -> None:
    await driver.submit_many(2)
    await driver.hear_bell()
    await driver.claim(1)
    assert await driver.hear_bell()
    await driver.claim(1)
    await driver.hear_bell()
    assert await driver.claim(1) == []
    assert not await driver.hear_bell()


@pytest.mark.parametrize(
    ("late", "started_once", "status", "code"),
    [
        ("aborted", False, Status.ABORTED, ""),
        ("", False, Status.FAILED, "deadline_exceeded"),
        ("aborted", True, Status.CANCELED, "deadline_exceeded"),
        ("", True, Status.CANCELED, "deadline_exceeded"),
    ],
)
async def test_a_prediction_past_its_deadline_ends_by_the_table(
    driver: QueueDriver, late: str, started_once: bool, status: Status, code: str
) -> None:
    in_time = await driver.submit(account="other", lifetime_ms=10_001)
    prediction_id = await driver.submit(lifetime_ms=10_000, deadline_status=late)
    if started_once:
        [claim] = [claim for claim in await driver.claim(2) if claim.id == prediction_id]
        await driver.begin(claim)
        await driver.release(claim, spent=True)
    driver.pass_time(10)
    assert {claim.id for claim in await driver.claim(5)} == (set() if started_once else {in_time})
    record = await driver.record(prediction_id)
    assert (record.status, record.code, record.completed) == (status, code, driver.now_ms)
    assert prediction_id not in [name for ids in (await driver.entries()).values() for name in ids]
    assert prediction_id not in await driver.pending()


async def test_a_prediction_that_misses_its_start_deadline_fails(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(start_by_ms=10_000)
    driver.pass_time(10)
    assert await driver.claim() == []
    record = await driver.record(prediction_id)
    assert (record.status, record.code) == ("failed", "start_by_exceeded")


async def test_too_many_attempts_make_a_dead_letter(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    for _ in range(MOST_CLAIMS):
        assert await driver.release(await driver.claim_one()) == "waiting"
    assert await driver.claim() == []
    record = await driver.record(prediction_id)
    assert (record.status, record.code, record.attempt) == ("failed", "too_many_claims", 0)
    assert await driver.members(keys.dead(driver.queue)) == {prediction_id: driver.now_ms}


async def test_last_claim_that_is_refused_ends_with_the_words_of_the_server(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    for number in range(MOST_CLAIMS):
        is_last = number == MOST_CLAIMS - 1
        claim = await driver.claim_one()
        assert await driver.release(claim, error="429: too large", code="refused") == ("dead" if is_last else "waiting")
    record = await driver.record(prediction_id)
    assert (record.status, record.code, record.attempt) == ("failed", "too_many_claims", 0)
    assert record.error.endswith("ever starting. 429: too large")
    assert await driver.members(keys.dead(driver.queue)) == {prediction_id: driver.now_ms}


async def test_a_claim_ends_at_most_64_predictions_and_then_sends_a_wakeup(driver: QueueDriver) -> None:
    dead = [await driver.submit(streams=[0], lifetime_ms=1_000) for _ in range(70)]
    driver.pass_time(1)
    alive = await driver.submit(streams=[0])
    await driver.hear_bell()
    assert await driver.claim() == []
    ended = [prediction_id for prediction_id in dead if (await driver.record(prediction_id)).is_terminal]
    assert ended == dead[:64]
    assert await driver.hear_bell()
    assert (await driver.claim_one()).id == alive


@pytest.mark.parametrize("is_known", [True, False], ids=["of a moved prediction", "without a record"])
async def test_a_stray_entry_is_dropped(driver: QueueDriver, is_known: bool) -> None:
    prediction_id = await driver.submit(streams=[0])
    stray = prediction_id if is_known else driver.new_id()
    await driver.redis.xadd(keys.stream(driver.queue, "normal", 0), {"id": stray, "cost": "1"})
    assert [claim.id for claim in await driver.claim(5)] == [prediction_id]
    assert await driver.entries() == {0: [prediction_id]}


async def test_a_destroyed_group_is_created_again_without_double_claims(driver: QueueDriver) -> None:
    first = await driver.submit(streams=[0])
    waiting = [await driver.submit(streams=[0]) for _ in range(2)]
    held = await driver.claim_one()
    assert held.id == first
    await driver.redis.xgroup_destroy(keys.stream(driver.queue, "normal", 0), keys.GROUP)
    assert [claim.id for claim in await driver.claim(5, consumer="d2")] == waiting
    assert await driver.extend(held) == ["held"]
    assert (await driver.pending())[first] == "d1", "the heartbeat takes the entry back from who only read it"
    assert await driver.finish(held)


async def test_what_is_admitted_behind_an_entry_that_nothing_showed_is_claimed_next(driver: QueueDriver) -> None:
    """The reply to the first claim has no room for it, and no later claim would look into its stream."""
    await driver.have_slots(1)
    ready, backlogged = [await driver.submit(streams=[0]) for _ in range(2)]
    assert await driver.backlog() == [backlogged]
    await driver.redis.hset(keys.meta(driver.queue), "mask:normal", 0)
    assert [claim.id for claim in await driver.claim(1)] == [ready]
    assert [claim.id for claim in await driver.claim(1)] == [backlogged]


@pytest.mark.parametrize("lost", ["group", "stream"])
async def test_a_holder_keeps_its_claim_without_its_group_or_stream(driver: QueueDriver, lost: str) -> None:
    held = await driver.claimed(streams=[0])
    stream = keys.stream(driver.queue, "normal", 0)
    await (driver.redis.delete(stream) if lost == "stream" else driver.redis.xgroup_destroy(stream, keys.GROUP))
    driver.pass_time(5)
    assert await driver.extend(held) == ["held"]
    assert await driver.members(keys.lease(driver.queue)) == {held.id: driver.now_ms + 15_000}
    following = await driver.submit(streams=[0])
    assert [claim.id for claim in await driver.claim(5)] == [following]
    assert await driver.finish(held)


async def test_the_highest_stream_of_the_widest_queue_is_served(driver: QueueDriver) -> None:
    await driver.scripts.resize(driver.queue, streams=32)
    ids = {await driver.submit(streams=[number]) for number in (0, 30, 31)}
    assert {claim.id for claim in await driver.claim(5)} == ids
    assert await driver.redis.hget(keys.meta(driver.queue), "mask:normal") is not None


async def test_a_prediction_without_its_input_ends_without_a_run(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    await driver.redis.delete(keys.input_data(prediction_id))
    assert await driver.claim() == []
    record = await driver.record(prediction_id)
    assert (record.status, record.code) == ("failed", "input_lost")


async def test_claim_replies_the_record_as_it_is_stored(driver: QueueDriver) -> None:
    """Long texts, any character, and fields that a release or a revival emptied stay as they are in MessagePack."""

    async def is_as_stored(claim: Claim) -> bool:
        return claim.record == await driver.record(claim.id)

    await driver.submit(webhook="http://h/\x00é" + "y" * 70_000, url="http://ü" + "x" * 300, cost=2.5, metered=True)
    claim = await driver.claim_one(nonce="kept")
    assert await is_as_stored(claim)
    assert list(await driver.claim(nonce="kept")) == [claim]
    await driver.begin(claim)
    assert await driver.release(claim) == "waiting"
    claim = await driver.claim_one()
    assert claim.record.started is None
    assert await is_as_stored(claim)
    while await driver.release(claim, spent=True) != "dead":
        claim = await driver.claim_one()
    assert await driver.scripts.revive(claim.id, now_ms=driver.now_ms)
    assert await is_as_stored(await driver.claim_one())
