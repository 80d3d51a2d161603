"""extend is the heartbeat: it moves valid leases and reports lost and canceled claims."""

from director.broker import keys
from director.broker.replies import Readiness
from tests.support.queue_driver import QueueDriver


async def test_a_heartbeat_moves_every_lease_that_holds(driver: QueueDriver) -> None:
    await driver.submit_many(3)
    claims = await driver.claim(3)
    driver.pass_time(5)
    assert await driver.extend(*claims, lease_s=20) == ["held"] * 3
    assert set((await driver.members(keys.lease(driver.queue))).values()) == {driver.now_ms + 20_000}


async def test_a_heartbeat_answers_for_each_claim(driver: QueueDriver) -> None:
    await driver.submit_many(4, streams=[0], lifetime_ms=60_000)
    held, finished, canceled, late = await driver.claim(4)
    await driver.finish(finished)
    await driver.cancel(canceled.id)
    await driver.redis.hset(keys.record(late.id), "cancel", "deadline")
    assert await driver.extend(held, finished, canceled, late) == ["held", "lost", "user", "deadline"]


async def test_a_passed_deadline_is_reported_after_a_callers_cancel(driver: QueueDriver) -> None:
    await driver.submit_many(2, lifetime_ms=10_000)
    late, canceled = await driver.claim(2)
    await driver.cancel(canceled.id)
    driver.pass_time(10)
    assert await driver.extend(late, canceled) == ["deadline", "user"], "no keeper was needed"


async def test_a_heartbeat_does_not_count_as_a_delivery(driver: QueueDriver) -> None:
    claim = await driver.claimed(streams=[0])
    for _ in range(3):
        await driver.extend(claim)
    [row] = await driver.redis.xpending_range(keys.stream(driver.queue, "normal", 0), keys.GROUP, "-", "+", 10)
    assert row["times_delivered"] == 1


async def test_slots_of_claiming_directors_are_summed_and_draining_ones_have_none(driver: QueueDriver) -> None:
    async def slots_after(consumer: str, slots: int, state: Readiness) -> int:
        await driver.scripts.extend(
            driver.queue, consumer=consumer, lease_s=15, claims=[], slots=slots, state=state, now_ms=driver.now_ms
        )
        return (await driver.scripts.stats(driver.queue, now_ms=driver.now_ms)).slots

    assert await slots_after("d1", 2, "ready") == 2
    assert await slots_after("d2", 4, "ready") == 6
    assert await slots_after("d1", 0, "starting") == 4
    assert await slots_after("d2", 0, "draining") == 0


async def test_a_heartbeat_keeps_a_directors_report_for_an_hour(driver: QueueDriver) -> None:
    key = keys.about(driver.queue, "d1")
    await driver.scripts.extend(driver.queue, consumer="d1", lease_s=15, claims=[], about=b'{"version":"1"}')
    assert await driver.redis.get(key) == b'{"version":"1"}'
    assert await driver.lifetime_s(key) == 3600
    assert await driver.extend(consumer="d1") == []
    assert await driver.members(keys.directors(driver.queue)) == {"d1": driver.now_ms}
    assert await driver.redis.get(key) == b'{"version":"1"}'
