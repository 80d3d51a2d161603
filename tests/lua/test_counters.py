"""A queue counts accepted, started and terminal predictions, and starts within the objective."""

import pytest

from director.broker import keys
from director.broker.replies import QueueStats
from tests.support.queue_driver import QueueDriver


def counted(stats: QueueStats) -> tuple[int, int, int]:
    return stats.accepted, stats.started, stats.ended


def judged(stats: QueueStats) -> dict[str, int]:
    return {name: many for name, many in stats.tally.items() if name.startswith(("met:", "missed:"))}


async def promise(driver: QueueDriver, *, lane: str = "normal", within_s: float = 10) -> None:
    await driver.redis.hset(keys.meta(driver.queue), f"within:{lane}", int(within_s * 1000))


async def test_accepted_started_and_terminal_predictions_are_counted(driver: QueueDriver) -> None:
    for lane in ("high", "normal", "low"):
        await driver.submit(lane=lane)
    assert counted(await driver.stats()) == (3, 0, 0)
    claims = await driver.claim(2)
    assert counted(await driver.stats()) == (3, 2, 0)
    for claim in claims:
        assert await driver.finish(claim)
    assert counted(await driver.stats()) == (3, 2, 2)
    assert (await driver.stats()).tally["accepted:high"] == 1


async def test_a_call_repeated_after_a_lost_reply_counts_once(driver: QueueDriver) -> None:
    await promise(driver)
    prediction_id = await driver.submit()
    await driver.submit(prediction_id)
    claim = await driver.claim_one(nonce="n1")
    await driver.claim_one(nonce="n1")
    assert await driver.finish(claim)
    assert await driver.finish(claim)
    stats = await driver.stats()
    assert counted(stats) == (1, 1, 1)
    assert judged(stats) == {"met:normal": 1}


@pytest.mark.parametrize("end", ["finished", "canceled"])
async def test_a_second_claim_or_a_late_end_is_not_counted(driver: QueueDriver, end: str) -> None:
    await promise(driver)
    prediction_id = await driver.submit()
    assert await driver.release(await driver.claim_one()) == "waiting"
    driver.pass_time(60)
    assert await driver.release(await driver.claim_one(), spent=True) == "waiting"
    if end == "finished":
        assert await driver.finish(await driver.claim_one())
    else:
        assert await driver.cancel(prediction_id) == "canceled"
    stats = await driver.stats()
    assert counted(stats) == (1, 1, 1)
    assert judged(stats) == {"met:normal": 1}


async def test_a_start_is_judged_by_its_own_lane_to_the_millisecond(driver: QueueDriver) -> None:
    await promise(driver, lane="high", within_s=5)
    await promise(driver, lane="low", within_s=60)
    for lane in ("high", "normal", "low"):
        await driver.submit(lane=lane)
    driver.pass_time(5)
    await driver.submit(lane="high")
    await driver.claim(1)
    driver.now_ms += 1
    await driver.submit(lane="high")
    driver.pass_time(5)
    assert len(await driver.claim(9)) == 4
    assert judged(await driver.stats()) == {"met:high": 2, "missed:high": 1, "met:low": 1}


async def test_one_call_counts_all_its_claims(driver: QueueDriver) -> None:
    await promise(driver)
    await driver.submit_many(3)
    driver.pass_time(20)
    await driver.claim(3)
    tally = (await driver.stats()).tally
    assert (tally["started"], tally["missed:normal"], tally["waited_ms"]) == (3, 3, 60_000)


async def test_a_prediction_that_never_started_misses_its_objective_after_the_limit(driver: QueueDriver) -> None:
    await promise(driver)
    soon, late = await driver.submit(), await driver.submit()
    await driver.submit(lifetime_ms=30_000)
    assert await driver.cancel(soon) == "canceled"
    driver.pass_time(11)
    assert await driver.cancel(late) == "canceled"
    driver.pass_time(20)
    assert await driver.expire() == (1, 0)
    stats = await driver.stats()
    assert counted(stats) == (3, 0, 3)
    assert judged(stats) == {"missed:normal": 2}


async def test_a_revived_dead_letter_counts_again_without_an_objective(driver: QueueDriver) -> None:
    await promise(driver)
    dead = await driver.die()
    driver.pass_time(3600)
    assert await driver.revive(dead)
    assert await driver.finish(await driver.claim_one())
    stats = await driver.stats()
    assert counted(stats) == (2, 2, 2)
    assert judged(stats) == {"met:normal": 1}
