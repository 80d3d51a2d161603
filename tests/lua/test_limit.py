"""limit bounds one account's running and waiting predictions in a queue, and sets its weight."""

import pytest

from director.broker import keys
from director.core.errors import QueueRefused
from director.core.ids import LANES
from director.core.schema import Claim
from director.core.states import Status
from tests.support.keyspace import unchanged
from tests.support.queue_driver import QueueDriver, enqueue


async def accounts(driver: QueueDriver, count: int = 9) -> list[str]:
    return [claim.record.account for claim in await driver.claim(count)]


@pytest.mark.parametrize(("slots", "most"), [(9, 2), (0, 2), (0, 0)], ids=["ready", "in a backlog", "limit of zero"])
async def test_predictions_above_the_limit_are_not_handed_out(driver: QueueDriver, slots: int, most: int) -> None:
    await driver.have_slots(slots)
    ids = await driver.submit_many(5, streams=[0], most_running=most)
    assert [claim.id for claim in await driver.claim(9)] == ids[:most]
    assert await driver.claim(9) == []
    assert await driver.backlog() == ids[most:], "in their order"


async def test_claims_of_all_lanes_count_together(driver: QueueDriver) -> None:
    for lane in LANES:
        await driver.submit_many(2, lane=lane, most_running=2)
    assert len(await driver.claim(9)) == 2
    assert await driver.claim(9) == []


@pytest.mark.parametrize("slots", [9, 0], ids=["same stream", "backlogs"])
async def test_a_limited_account_blocks_no_other(driver: QueueDriver, slots: int) -> None:
    await driver.have_slots(slots)
    await driver.submit_many(3, account="limited", streams=[0], most_running=1)
    await driver.submit_many(2, account="other", streams=[0])
    await driver.submit_many(2, account="third", streams=[0], most_running=1)
    assert sorted(await accounts(driver)) == ["limited", "other", "other", "third"]


async def test_a_prediction_put_back_loses_no_attempt_claim_or_turn(driver: QueueDriver) -> None:
    await driver.have_slots(9)
    first, second = [await driver.submit(streams=[0], most_running=1) for _ in range(2)]
    claim = await driver.claim_one()
    before = await driver.record(second)
    assert await driver.claim() == []
    record = await driver.record(second)
    assert (record.attempt, record.claims, record.seq, record.token) == (0, 0, before.seq, "")
    assert await driver.entries() == {0: [first]}
    assert await driver.pending() == {first: "d1"}
    await driver.finish(claim)
    assert (await driver.claim_one()).record.attempt == 1


HOWS = ["succeeds", "fails", "released", "retried", "canceled", "late", "director_lost", "lease_lost"]


async def end_it(driver: QueueDriver, claim: Claim, how: str) -> None:
    match how:
        case "succeeds":
            await driver.run(claim, 1)
        case "fails":
            await driver.finish(claim, Status.FAILED)
        case "released":
            assert await driver.release(claim) == "waiting"
        case "retried":
            assert await driver.release(claim, spent=True, delay_s=60) == "delayed"
        case "canceled":
            assert await driver.cancel(claim.id) == "asked"
            assert await driver.release(claim) == "canceled"
        case "late":
            driver.pass_time(20)
            assert await driver.expire() == (0, 1)
            assert await driver.reap() == {claim.id: "late"}
        case "director_lost":
            driver.pass_time(15)
            assert await driver.reap() == {claim.id: "waiting"}
        case "lease_lost":
            await driver.redis.delete(keys.lease(driver.queue))
            _, recovered = await driver.recover(int(await driver.field(claim.id, "stream")))
            assert recovered == {claim.id: "waiting"}


@pytest.mark.parametrize("how", HOWS)
async def test_an_end_lets_the_next_prediction_run_and_sends_a_wakeup(driver: QueueDriver, how: str) -> None:
    await driver.submit(most_running=1, lifetime_ms=20_000)
    await driver.submit_many(2, most_running=1)
    claim = await driver.claim_one()
    assert await driver.claim() == []
    await driver.hear_bell()
    await end_it(driver, claim, how)
    assert await driver.hear_bell()
    assert len(await driver.claim(9)) == 1, "one, and no more"


async def test_only_an_end_frees_a_permit_and_twice_is_once(driver: QueueDriver) -> None:
    ids = await driver.submit_many(5, most_running=1)
    claim = await driver.claim_one()
    await driver.cancel(ids[1])
    assert await driver.claim() == [], "a waiting prediction had no permit"
    for _ in range(2):
        assert await driver.finish(claim)
    assert len(await driver.claim(9)) == 1


@pytest.mark.parametrize(("most_running", "more"), [(3, 2), (None, 4)], ids=["raised", "removed"])
async def test_a_higher_limit_sends_a_wakeup_and_lets_more_run(
    driver: QueueDriver, most_running: int | None, more: int
) -> None:
    ids = await driver.submit_many(5, most_running=1)
    await driver.claim_one()
    assert await driver.claim() == []
    await driver.hear_bell()
    await driver.limit(most_running=most_running)
    assert await driver.hear_bell()
    assert [claim.id for claim in await driver.claim(9)] == ids[1 : 1 + more]


@pytest.mark.parametrize("most_running", [3, None])
async def test_a_submit_that_raises_the_limit_frees_other_lanes_too(
    driver: QueueDriver, most_running: int | None
) -> None:
    ids = [await driver.submit(lane="low", most_running=1) for _ in range(3)]
    claim = await driver.claim_one()
    assert await driver.claim() == []
    high = await driver.submit(lane="high", most_running=most_running)
    await driver.finish(claim)
    assert [claim.id for claim in await driver.claim(9)] == [high, *ids[1:]]


async def test_a_lowered_limit_stops_no_run_and_delays_new_ones(driver: QueueDriver) -> None:
    await driver.submit_many(6, most_running=3)
    claims = await driver.claim(9)
    assert len(claims) == 3
    await driver.limit(most_running=1)
    assert await driver.extend(*claims) == ["held"] * 3
    for claim in claims[:2]:
        await driver.finish(claim)
        assert await driver.claim() == []
    await driver.finish(claims[2])
    assert len(await driver.claim(9)) == 1


async def test_a_lowered_limit_applies_to_ready_predictions(driver: QueueDriver) -> None:
    await driver.have_slots(9)
    await driver.submit_many(3)
    await driver.limit(most_running=1)
    assert len(await driver.claim(9)) == 1


async def test_each_submit_brings_its_accounts_limits(driver: QueueDriver) -> None:
    told = []
    for options in ({"weight": 2, "most_running": 3}, {"weight": 0.5}, {"most_running": 7}, {}):
        await driver.submit(**options)
        told.append(await driver.counts(keys.limits(driver.queue)))
    assert told == [{"acme": "2 3 0"}, {"acme": "0.5  0"}, {"acme": "1 7 0"}, {}], "nothing is kept of an ordinary one"


async def test_a_new_weight_applies_to_waiting_predictions(driver: QueueDriver) -> None:
    for account in ("a", "b"):
        await driver.submit_many(12, account=account)
    await driver.claim(1)
    await driver.limit("b", weight=3)
    served = await accounts(driver, 12)
    assert (served.count("a"), served.count("b")) == (3, 9)


async def test_setting_the_same_limit_twice_has_one_effect(driver: QueueDriver) -> None:
    await driver.submit_many(3)
    await driver.limit(most_running=2)
    async with unchanged(driver.redis, expiry=False):
        await driver.limit(most_running=2)


async def test_an_account_without_predictions_is_not_recorded(driver: QueueDriver) -> None:
    await driver.limit(most_running=1)
    assert await driver.counts(keys.limits(driver.queue)) == {}
    await driver.submit(most_running=2)
    await driver.finish(await driver.claim_one())
    await driver.scripts.limit(driver.queue, "acme", weight=1, most_running=1, revision=1)
    await driver.submit(most_running=2)
    assert await driver.counts(keys.limits(driver.queue)) == {"acme": "1 1 1"}, "who had a limit is told all the same"


@pytest.mark.parametrize(("had", "has"), [(3, "2 3 1"), (None, "2  1")])
async def test_a_kept_limit_is_the_one_that_the_submit_brought(driver: QueueDriver, had: int | None, has: str) -> None:
    await driver.submit(most_running=had)
    await driver.scripts.limit(driver.queue, "acme", weight=2, most_running="kept", revision=1)
    assert await driver.counts(keys.limits(driver.queue)) == {"acme": has}


@pytest.mark.parametrize("most", [3, 0])
async def test_a_submit_above_the_waiting_limit_is_refused_and_nothing_written(driver: QueueDriver, most: int) -> None:
    await driver.submit_many(most, most_queued=most)
    async with unchanged(driver.redis):
        with pytest.raises(QueueRefused, match="too_many_queued") as refused:
            await driver.submit(most_queued=most, weight=5, most_running=1, idempotency=("digest", "body"))
    assert (refused.value.limit, refused.value.retry_after_s, refused.value.eta_s) == (most, 1, None)
    await driver.submit(account="other", most_queued=3)


async def test_delayed_retries_count_as_waiting_and_runs_do_not(driver: QueueDriver) -> None:
    await driver.submit_many(3, most_queued=3)
    first, second = await driver.claim(2)
    await driver.submit(most_queued=3)
    await driver.release(first, delay_s=60)
    with pytest.raises(QueueRefused):
        await driver.submit(most_queued=3)
    await driver.finish(second)
    with pytest.raises(QueueRefused):
        await driver.submit(most_queued=3)


@pytest.mark.parametrize("lane", LANES)
async def test_waiting_predictions_of_all_lanes_count_together(driver: QueueDriver, lane: str) -> None:
    for other in LANES:
        await driver.submit(lane=other, most_queued=3)
    with pytest.raises(QueueRefused):
        await driver.submit(lane=lane, most_queued=3)


async def test_a_start_an_end_or_an_expiry_makes_room(driver: QueueDriver) -> None:
    ids = [await driver.submit(most_queued=3, lifetime_ms=5_000) for _ in range(3)]
    await driver.claim_one()
    await driver.submit(most_queued=3)
    await driver.cancel(ids[1])
    await driver.submit(most_queued=3)
    driver.pass_time(5)
    assert await driver.expire() == (1, 1)
    await driver.submit(most_queued=3)
    with pytest.raises(QueueRefused):
        await driver.submit(most_queued=3)


async def test_a_submit_with_an_older_limit_does_not_restore_it(driver: QueueDriver) -> None:
    """An API may know an account's limits for some seconds longer than they hold."""
    await driver.submit_many(10, most_running=5, limits_rev=1)
    await driver.scripts.limit(driver.queue, "acme", weight=1, most_running=1, revision=2)
    await driver.submit(most_running=5, limits_rev=1)
    assert len(await driver.claim_all()) == 1
    await driver.submit(most_running=3, limits_rev=3)
    assert len(await driver.claim_all()) == 2


async def test_the_answer_to_a_submit_reflects_the_limits_it_brings(driver: QueueDriver) -> None:
    await driver.have_slots(8)
    await driver.submit(most_running=1)
    await driver.claim_one()
    accepted = await enqueue(
        driver.scripts,
        driver.new_id(),
        queue=driver.queue,
        account="acme",
        model="acme/echo",
        version="a1" * 32,
        shard=(0,),
        most_running=2,
        limits_rev=1,
        now_ms=driver.now_ms,
    )
    assert accepted.outlook.reason == "waiting_its_turn"
