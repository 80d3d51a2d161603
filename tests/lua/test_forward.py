"""forward makes webhooks of one account due that a host missed which answers again."""

from typing import Any

import pytest

from director.broker import keys
from director.core.ids import PredictionId, new_prediction_id, partition_of
from tests.support.keyspace import dump
from tests.support.queue_driver import ACCOUNT, MODEL, START_MS, QueueDriver

pytestmark = pytest.mark.usefixtures("nothing_stays_owed")

HOST = "receiver.example"
PARTITION = partition_of(new_prediction_id(model=MODEL, now_ms=START_MS))


async def note(driver: QueueDriver, prediction_id: PredictionId, outcome: str, *delay_s: float, **options: Any) -> str:
    return await driver.deliver(
        prediction_id, outcome, *delay_s, **{"account": ACCOUNT, "host": HOST, "is_away": True, **options}
    )


async def failed(driver: QueueDriver, delay_s: float = 60, **options: Any) -> PredictionId:
    """Return a terminal prediction whose first webhook attempt failed."""
    prediction_id = await driver.submit(webhook=f"https://{HOST}", webhook_events="completed")
    await driver.finish(await driver.claim_one())
    assert await note(driver, prediction_id, "failed", delay_s, **options) == "noted"
    return prediction_id


async def forward(driver: QueueDriver, *, limit: int = 9, account: str = ACCOUNT) -> int:
    return await driver.scripts.forward(PARTITION, account, HOST, limit=limit, now_ms=driver.now_ms)


async def test_webhooks_that_this_host_missed_become_due(driver: QueueDriver) -> None:
    waiting = [await failed(driver, 60 * number) for number in (1, 2, 3)]
    assert await driver.due() == []
    assert await forward(driver) == 3
    assert sorted(await driver.due()) == sorted(waiting)
    assert await forward(driver) == 0


@pytest.mark.parametrize(
    "options",
    [{"host": "other.example"}, {"account": "other"}, {"is_away": False}],
    ids=["another host", "another account", "the host answered"],
)
async def test_webhooks_that_wait_for_something_else_are_kept(driver: QueueDriver, options: dict[str, Any]) -> None:
    await failed(driver, 600, **options)
    assert await forward(driver) == 0
    assert await driver.due() == []


async def test_the_soonest_webhooks_come_first_up_to_the_limit(driver: QueueDriver) -> None:
    late, soon, sooner = [await failed(driver, delay_s) for delay_s in (300, 60, 30)]
    assert await forward(driver, limit=2) == 2
    assert sorted(await driver.due()) == sorted([soon, sooner])
    assert await forward(driver, limit=2) == 1
    assert await driver.due() == [late]


async def test_an_early_attempt_that_fails_takes_no_step(driver: QueueDriver) -> None:
    prediction_id = await failed(driver)
    due_ms = driver.now_ms + 60_000
    for number, asked_s in ((2, 0), (3, 30)):
        driver.pass_time(10)
        assert await forward(driver) == 1
        record = await driver.record(prediction_id)
        assert record.is_early
        assert record.next_webhook_attempt == due_ms
        assert await driver.due() == [prediction_id]
        for _ in range(2):  # its answer is lost
            await note(driver, prediction_id, "failed", asked_s, is_early=True, known=number - 1)
        assert await driver.members(keys.owed(PARTITION)) == {prediction_id: due_ms}
        record = await driver.record(prediction_id)
        assert (record.webhook_attempts, record.webhook_attempts_before, record.is_early) == (number, number - 1, False)
    await note(driver, prediction_id, "failed", 600, is_early=True)
    assert await driver.members(keys.owed(PARTITION)) == {prediction_id: driver.now_ms + 600_000}, "its receiver asked"


async def test_an_early_attempt_that_is_put_off_comes_when_it_was_due(driver: QueueDriver) -> None:
    prediction_id = await failed(driver, 600)
    due_ms = driver.now_ms + 600_000
    assert await forward(driver) == 1
    assert await driver.due() == [prediction_id]
    await note(driver, prediction_id, "put_off", 30)
    assert await driver.members(keys.owed(PARTITION)) == {prediction_id: due_ms}
    assert not (await driver.record(prediction_id)).is_early


@pytest.mark.parametrize("delay_s", [30, 900])
@pytest.mark.parametrize("is_early", [True, False], ids=["brought forward", "on time"])
@pytest.mark.parametrize("later_ms", [0, 5])
async def test_an_attempt_is_put_off_once_although_the_reply_is_lost(
    driver: QueueDriver, is_early: bool, delay_s: float, later_ms: int
) -> None:
    prediction_id = await (failed(driver, 600) if is_early else under_way(driver))
    if is_early:
        assert await forward(driver) == 1
        assert await driver.due() == [prediction_id]
    due_ms = max(driver.now_ms + 1000 * delay_s, driver.now_ms + 600_000 if is_early else 0)
    for number in range(3):
        await note(driver, prediction_id, "put_off", delay_s)
        late_ms = 0 if is_early and delay_s < 600 else number * later_ms  # by the time of the repetition
        assert await driver.members(keys.owed(PARTITION)) == {prediction_id: due_ms + late_ms}
        record = await driver.record(prediction_id)
        assert (record.next_webhook_attempt, record.is_early) == (due_ms + late_ms, False)
        assert record.forwarded == (None if is_early and delay_s < 600 else 0)
        driver.now_ms += later_ms
    assert await forward(driver) == 1
    assert (await driver.record(prediction_id)).is_early is (is_early and delay_s < 600)


@pytest.mark.parametrize("how", ["forward", "redeliver"])
async def test_an_attempt_that_was_put_off_is_never_early(driver: QueueDriver, how: str) -> None:
    prediction_id = await under_way(driver)
    for _ in range(2):
        await note(driver, prediction_id, "put_off", 600)
        if how == "forward":
            assert await forward(driver) == 1
        else:
            await driver.scripts.redeliver(prediction_id, account=None, now_ms=driver.now_ms)
        assert await driver.due() == [prediction_id]
        assert not (await driver.record(prediction_id)).is_early
    await note(driver, prediction_id, "failed", 15)
    assert await driver.members(keys.owed(PARTITION)) == {prediction_id: driver.now_ms + 15_000}
    assert await forward(driver) == 1
    assert (await driver.record(prediction_id)).is_early, "the next one is as usual"


async def test_a_mark_of_another_attempt_counts_for_nothing(driver: QueueDriver) -> None:
    prediction_id = await failed(driver)
    assert await forward(driver) == 1
    # as release 0.3.0 notes the next failure: it leaves the mark
    await driver.redis.hset(keys.record(prediction_id), "next_telling", str(driver.now_ms + 90_000))
    assert not (await driver.record(prediction_id)).is_early


async def test_a_removed_record_does_not_come_back(driver: QueueDriver) -> None:
    prediction_id = await failed(driver)
    await driver.redis.delete(keys.record(prediction_id))
    assert await forward(driver) == 0
    assert await driver.redis.exists(keys.record(prediction_id)) == 0


async def test_a_delivery_reports_whether_others_wait_for_its_host(driver: QueueDriver) -> None:
    gone, first, second = [await failed(driver) for _ in range(3)]
    assert await note(driver, gone, "gone") == "noted", "it was no delivery"
    assert await note(driver, first, "delivered") == "others"
    assert await note(driver, second, "delivered") == "noted"
    assert await note(driver, second, "delivered") == ""


async def test_an_attempt_under_way_is_left_alone(driver: QueueDriver) -> None:
    prediction_id = await under_way(driver)
    before = await driver.members(keys.owed(PARTITION))
    assert await forward(driver) == 0
    assert await driver.members(keys.owed(PARTITION)) == before
    assert await driver.due() == []
    assert prediction_id in before


async def under_way(driver: QueueDriver) -> PredictionId:
    """Return a prediction whose second attempt a courier has begun."""
    prediction_id = await failed(driver, 5)
    driver.pass_time(5)
    assert await driver.due() == [prediction_id]
    return prediction_id


async def test_a_webhook_that_is_no_longer_owed_does_not_return(driver: QueueDriver) -> None:
    given_up, revived = await failed(driver), await driver.die(webhook=f"https://{HOST}", webhook_events="completed")
    await note(driver, revived, "failed", 60)
    await note(driver, given_up, "given_up")
    await driver.revive(revived)
    assert await forward(driver) == 0
    assert await driver.members(keys.owed(PARTITION)) == {}


async def test_a_webhook_requested_again_is_due_once(driver: QueueDriver) -> None:
    prediction_id = await failed(driver)
    await driver.scripts.redeliver(prediction_id, account=None, now_ms=driver.now_ms)
    assert await driver.due() == [prediction_id]
    assert await forward(driver) == 0
    assert await driver.due() == []


async def test_a_postponed_webhook_has_no_attempt_and_comes_on_time(driver: QueueDriver) -> None:
    prediction_id = await under_way(driver)
    told = (await driver.record(prediction_id)).webhook_attempts, await driver.kinds(prediction_id)
    assert await note(driver, prediction_id, "put_off", 90) == "noted"
    assert ((await driver.record(prediction_id)).webhook_attempts, await driver.kinds(prediction_id)) == told
    assert (await driver.record(prediction_id)).webhook_outcome == "failed"
    driver.pass_time(89)
    assert await driver.due() == []
    driver.pass_time(1)
    assert await driver.due() == [prediction_id]


@pytest.mark.parametrize("how", ["forward", "redeliver"])
async def test_a_postponed_webhook_can_be_brought_forward(driver: QueueDriver, how: str) -> None:
    prediction_id = await under_way(driver)
    await note(driver, prediction_id, "put_off", 600)
    if how == "forward":
        assert await forward(driver) == 1
    else:
        await driver.scripts.redeliver(prediction_id, account=None, now_ms=driver.now_ms)
    assert await driver.due() == [prediction_id]


async def test_a_hosts_list_ends_with_its_last_owed_webhook(driver: QueueDriver) -> None:
    never = await driver.submit(webhook=f"https://{HOST}", webhook_events="completed")
    await driver.finish(await driver.claim_one())
    assert await note(driver, never, "delivered") == "noted"
    assert not [name for name in await dump(driver.redis) if ":owed" in name], "nothing waited for the host"
    waiting = [await failed(driver) for _ in range(2)]
    assert await driver.lifetime_s(keys.away(PARTITION, ACCOUNT, HOST)) == 4 * 24 * 3600
    for prediction_id in waiting:
        await note(driver, prediction_id, "delivered")
    assert await driver.redis.exists(keys.away(PARTITION, ACCOUNT, HOST)) == 0


async def test_a_hosts_list_is_bounded(driver: QueueDriver) -> None:
    prediction_id = await failed(driver)
    index = keys.away(PARTITION, ACCOUNT, HOST)
    await driver.redis.zadd(index, {f"other{number}": number for number in range(9_999)})
    await failed(driver)
    assert await driver.redis.zcard(index) == 10_000
    assert await driver.redis.zscore(index, prediction_id) is not None
