"""limit bounds one account's running and waiting predictions in a queue, and sets its weight."""

import pytest

from director.broker import keys
from director.core.errors import QueueRefused
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
