"""sample records the state of a queue once in each period, and the changes since."""

import pytest

from director.broker import keys
from director.core.ids import QueueName
from director.core.samples import MOST, PERIOD_S, Sample
from director.store.queues import QueueHistory
from tests.support.keyspace import unchanged
from tests.support.queue_driver import MODEL, QueueDriver

NONE = {"high": 0, "normal": 0, "low": 0}


async def sample(driver: QueueDriver, *, most: int = MOST) -> bool:
    return await driver.scripts.sample(driver.queue, period_s=PERIOD_S, most=most, now_ms=driver.now_ms)


async def history(driver: QueueDriver) -> list[Sample]:
    return await QueueHistory(driver.redis).of(driver.queue)


async def test_a_sample_records_the_state_and_what_happened(driver: QueueDriver) -> None:
    for lane in ("high", "normal", "normal", "low"):
        await driver.submit(lane=lane)
    driver.pass_time(3)
    ended, delayed = await driver.claim(2)
    assert await driver.finish(ended)
    assert await driver.release(delayed, delay_s=60) == "delayed"
    await driver.claim_one()
    assert await sample(driver)
    waiting = {"high": 0, "normal": 1, "low": 0}
    assert await history(driver) == [
        Sample(
            at_ms=driver.now_ms,
            waiting=waiting,
            claimed=1,
            delayed=1,
            oldest_ms=3000,
            late=NONE,
            accepted={"high": 1, "normal": 2, "low": 1},
            started=3,
            ended=1,
            waited_ms=9000,
            met=NONE,
            missed=NONE,
        )
    ]


async def test_a_sample_counts_what_happened_since_the_last_one(driver: QueueDriver) -> None:
    await driver.submit()
    assert await sample(driver)
    for _ in range(3):
        driver.pass_time(PERIOD_S)
        await driver.submit()
        await driver.submit()
        assert await sample(driver)
    samples = await history(driver)
    assert [each.accepted["normal"] for each in samples] == [1, 2, 2, 2]
    assert [each.waiting["normal"] for each in samples] == [1, 3, 5, 7]


async def test_two_keepers_record_a_period_once(driver: QueueDriver) -> None:
    await driver.submit()
    assert await sample(driver)
    async with unchanged(driver.redis):
        driver.pass_time(0.5)
        assert await sample(driver), "the second one hears too that there is more to note"


async def test_an_idle_queue_is_sampled_once_and_then_left_alone(driver: QueueDriver) -> None:
    assert not await sample(driver)
    assert await history(driver) == []
    await driver.submit()
    assert await sample(driver)
    assert await driver.finish(await driver.claim_one())
    driver.pass_time(PERIOD_S)
    assert await sample(driver), "it ended something"
    driver.pass_time(PERIOD_S)
    assert not await sample(driver)
    assert [each.ended for each in await history(driver)] == [0, 1, 0]
    async with unchanged(driver.redis):
        driver.pass_time(PERIOD_S)
        assert not await sample(driver)


async def test_samples_are_bounded_in_number_and_expire(driver: QueueDriver) -> None:
    await driver.submit()
    for _ in range(5):
        assert await sample(driver, most=3)
        driver.pass_time(PERIOD_S)
    assert len(await history(driver)) == 3
    assert await driver.lifetime_s(keys.samples(driver.queue)) == 3 * PERIOD_S


async def test_lost_counters_start_again(driver: QueueDriver) -> None:
    await driver.submit_many(3)
    assert await driver.finish(await driver.claim_one()), "it came and went between samples"
    assert await sample(driver)
    await driver.redis.delete(keys.tally(driver.queue))
    await driver.submit()
    driver.pass_time(PERIOD_S)
    assert await sample(driver)
    found = [(each.accepted["normal"], each.started, each.ended, each.claimed) for each in await history(driver)]
    assert found == [(3, 1, 1, 0), (1, 0, 0, 0)]


async def test_a_long_clock_step_back_stops_no_sample(driver: QueueDriver) -> None:
    await driver.submit()
    assert await sample(driver)
    driver.pass_time(-3600)
    assert await sample(driver)
    assert len(await history(driver)) == 2


async def test_a_sample_counts_what_waits_past_its_objective(driver: QueueDriver) -> None:
    await driver.redis.hset(keys.meta(driver.queue), "within:normal", 10_000)
    await driver.submit_many(3)
    await driver.submit_many(2, lane="low")  # it has no objective
    driver.pass_time(10)
    await driver.submit()
    driver.now_ms += 1
    await driver.claim_one()
    await driver.submit(lane="high")
    assert await sample(driver)
    assert (await history(driver))[0].late == {"high": 0, "normal": 2, "low": 0}


async def test_a_sample_keeps_the_slots_a_director_has_beyond_the_last(driver: QueueDriver) -> None:
    for consumer, slots in (("d1", 4), ("d2", 1)):
        await driver.have_slots(slots, consumer=consumer)
    await driver.submit()
    assert await sample(driver)
    assert await driver.meta("slots_each") == "2.50"
    driver.pass_time(60)
    assert await sample(driver)
    assert await driver.meta("slots_each") == "2.50"


async def test_an_unknown_queue_has_no_history(driver: QueueDriver) -> None:
    unknown = QueueName(f"{MODEL}:000000000000")
    async with unchanged(driver.redis):
        assert not await driver.scripts.sample(unknown, period_s=PERIOD_S, most=MOST)


@pytest.mark.parametrize("others", ["idle", "planned", "retries"])
async def test_late_counts_no_work_without_an_objective(driver: QueueDriver, others: str) -> None:
    await driver.redis.hset(keys.meta(driver.queue), "within:normal", 10_000)
    if others == "retries":
        await driver.submit_many(20)
        for claim in await driver.claim(20):
            await driver.release(claim, delay_s=3600)
    else:
        later = {"start_after": driver.now_ms + 86_400_000}
        await driver.submit_many(20, account="night", **({"lane": "idle"} if others == "idle" else later))
    driver.pass_time(600)
    await driver.submit_many(5)
    driver.pass_time(1)
    assert await sample(driver)
    assert (await history(driver))[0].late["normal"] == 0
    driver.pass_time(10)
    assert await sample(driver)
    assert (await history(driver))[-1].late["normal"] == 5


async def test_idle_and_planned_work_does_not_arrive(driver: QueueDriver) -> None:
    await driver.have_slots(1)
    await driver.submit(lane="idle")
    planned = await driver.submit(start_after=driver.now_ms + 60_000)
    await sample(driver)
    assert (await history(driver))[0].accepted == NONE
    assert await surveyed(driver) == 0
    stats = await driver.stats()
    assert (stats.accepted, stats.count_accepted("low")) == (1, 1), "operators see idle work as low"
    driver.pass_time(60)
    for _ in range(2):
        await driver.promote()
        assert await surveyed(driver) == 1
    [claim] = await driver.claim(1)
    assert (claim.id, await driver.release(claim, spent=True, delay_s=1)) == (planned, "delayed")
    driver.pass_time(1)
    await driver.promote()
    await sample(driver)
    assert (await history(driver))[-1].accepted == {**NONE, "normal": 1}, "its retry did not arrive again"


async def surveyed(driver: QueueDriver) -> int:
    return (await driver.scripts.survey(driver.queue, now_ms=driver.now_ms)).accepted
