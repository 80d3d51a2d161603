"""Idle work is handed out only while a claim finds nothing else, in turns of its own, and is no demand."""

import random

import pytest

from director.broker import keys
from director.core.ids import LANES
from director.core.policy import Objective, Policy
from tests.support.keyspace import unchanged
from tests.support.queue_driver import VERSION, QueueDriver


async def claimed(driver: QueueDriver, count: int = 9, **options: object) -> list[str]:
    return [claim.record.lane for claim in await driver.claim(count, **options)]  # type: ignore[arg-type]


async def test_idle_work_goes_after_all_others_and_fills_the_rest(driver: QueueDriver) -> None:
    await driver.have_slots(9)
    await driver.submit_many(3, lane="idle", account="night")
    for lane in LANES:
        await driver.submit(lane=lane)
    assert await claimed(driver, 3) == ["high", "normal", "low"]
    assert await claimed(driver, 2) == ["idle", "idle"]
    await driver.submit(lane="low")
    assert await claimed(driver, 9) == ["low", "idle"]
    assert await claimed(driver) == []


async def settled(driver: QueueDriver, **policy: int) -> None:
    await driver.scripts.register(driver.queue, version=VERSION, policy=Policy(**policy))


@pytest.mark.parametrize(
    ("slots", "spare", "started"),
    [(4, 1, 3), (4, 2, 2), (4, 0, 4), (4, 4, 1), (4, 9, 1), (1, 1, 1), (0, 1, 1)],
    ids=["four-spare-1", "four-spare-2", "no-spare", "all-spare", "more-than-all", "one-slot", "no-heartbeat-yet"],
)
async def test_idle_work_leaves_slots_free_but_may_use_one(
    driver: QueueDriver, slots: int, spare: int, started: int
) -> None:
    await settled(driver, spare_slots=spare)
    await driver.have_slots(slots)
    await driver.submit_many(9, lane="idle", account="night")
    found = [await claimed(driver, count) for count in (2, 4, 4)]
    assert sum(map(len, found)) == started


async def test_spare_slots_are_those_of_all_directors_and_of_all_runs(driver: QueueDriver) -> None:
    await driver.have_slots(2, consumer="d1")
    await driver.have_slots(2, consumer="d2")
    await driver.submit_many(9, lane="idle", account="night")
    await driver.submit_many(2)
    assert await claimed(driver, 2, consumer="d1") == ["normal", "normal"]
    assert await claimed(driver, 2, consumer="d2") == ["idle"]
    await driver.submit()
    assert await claimed(driver, 1, consumer="d2") == ["normal"]


async def test_an_end_wakes_a_director_for_idle_work_that_left_its_slot_free(driver: QueueDriver) -> None:
    await driver.have_slots(2)
    await driver.submit_many(3, lane="idle", account="night")
    [first] = await driver.claim(2, lease_s=999)
    bell = keys.bell(driver.queue)
    await driver.redis.delete(bell)
    assert await claimed(driver) == []
    assert not await driver.redis.exists(bell), "none could start with one spare slot"
    await driver.finish(first)
    assert await driver.redis.exists(bell)
    assert await claimed(driver, 2) == ["idle"]


async def test_ends_wake_none_for_idle_work_that_may_not_run(driver: QueueDriver) -> None:
    await driver.have_slots(2)
    await driver.submit(lane="idle", account="night")
    await driver.pause(account="night")
    bell = keys.bell(driver.queue)
    claim = await driver.claimed()
    await driver.redis.delete(bell)
    await driver.finish(claim)
    assert not await driver.redis.exists(bell)


@pytest.mark.parametrize("seed", range(5))
async def test_no_claim_takes_idle_work_while_another_waits(driver: QueueDriver, seed: int) -> None:
    dice = random.Random(seed)
    await driver.have_slots(2)
    await driver.submit_many(40, lane="idle", account="night")
    waiting = running = 0
    for step in range(60):
        if dice.random() < 0.4:
            await driver.submit(lane=dice.choice(LANES), account=dice.choice("ab"), most_running=dice.choice([None, 9]))
            waiting += 1
        found = await driver.claim(1, consumer=dice.choice(["d1", "d2"]), lease_s=10_000)
        others = [claim for claim in found if claim.record.lane != "idle"]
        assert len(others) == min(waiting, 1), f"step {step}: one of the others waits, and idle work went"
        waiting -= len(others)
        running += len(found)
        for claim in found:
            await driver.finish(claim)
    assert waiting == 0 or running == 60


async def test_idle_work_of_two_accounts_takes_turns(driver: QueueDriver) -> None:
    await driver.have_slots(9)
    for account in ("a", "b"):
        await driver.submit_many(4, lane="idle", account=account)
    found = [claim.record.account for _ in range(8) for claim in await driver.claim(1, lease_s=999)]
    assert sorted(found[:2]) == sorted(found[2:4]) == sorted(found[4:6]) == ["a", "b"]


async def test_idle_work_starts_while_others_may_not_run(driver: QueueDriver) -> None:
    await driver.submit(account="held")
    await driver.pause(account="held")
    await driver.submit(lane="idle", account="night")
    assert await claimed(driver) == ["idle"]


async def test_idle_work_is_shown_as_such_and_is_no_demand(driver: QueueDriver) -> None:
    await driver.have_slots(1)
    one, two = [await driver.submit(lane="idle", most_running=1) for _ in range(2)]
    other = await driver.submit()
    outlooks = [await driver.outlook(each) for each in (one, two, other)]
    assert [(each.position, each.ahead, each.reason) for each in outlooks] == [
        *((1, 1, "idle"), (2, 2, "idle")),
        (1, 0, "waiting_its_turn"),
    ]
    assert outlooks[0].p50_ms is None
    told = await driver.scripts.demand(driver.queue, soon_s=60, now_ms=driver.now_ms)
    assert told.runnable == 1
    stats = await driver.stats()
    assert (stats.low, stats.normal, stats.waiting, stats.accepted) == (2, 1, 3, 3)


async def test_idle_work_has_no_objective(driver: QueueDriver) -> None:
    policy = Policy(objectives={"low": Objective(share=0.9, within_s=1)})
    await driver.scripts.register(driver.queue, version=VERSION, policy=policy)
    canceled = await driver.submit(lane="idle")
    await driver.submit(lane="idle")
    driver.pass_time(60)
    await driver.cancel(canceled)
    await driver.claim_one()
    assert [name for name in (await driver.stats()).tally if name.startswith(("met", "missed"))] == []


async def test_idle_poll_beside_a_held_idle_account_writes_nothing(driver: QueueDriver) -> None:
    await driver.submit(lane="idle")
    await driver.pause(account="acme")
    assert await claimed(driver) == []
    async with unchanged(driver.redis):
        assert await claimed(driver) == []
    await driver.pause(account="acme", paused=False)
    assert await driver.hear_bell()
    assert await claimed(driver) == ["idle"]


async def test_retry_and_lost_claim_of_idle_work_stay_idle(driver: QueueDriver) -> None:
    await driver.have_slots(3)
    await driver.submit(lane="idle")
    claim = await driver.claim_one()
    await driver.release(claim, spent=True, delay_s=1)
    await driver.submit()
    driver.pass_time(1)
    await driver.promote()
    assert await claimed(driver, 1) == ["normal"]
    assert await claimed(driver, 1, lease_s=5) == ["idle"]
    driver.pass_time(6)
    assert list((await driver.reap()).values())
    assert (await driver.stats()).low + (await driver.stats()).delayed == 1


@pytest.mark.parametrize("lost", ["turns", "backlog", "mask"])
async def test_reconcile_brings_lost_idle_work_back(driver: QueueDriver, lost: str) -> None:
    prediction_id = await driver.submit(lane="idle")
    if lost == "turns":
        await driver.redis.delete(keys.vtime(driver.queue, "idle"))
    elif lost == "backlog":
        await driver.redis.delete(keys.backlog(driver.queue, "idle", "acme"))
    else:
        await driver.redis.hdel(keys.meta(driver.queue), "mask:idle", "backlogged:idle")
    await driver.reconcile()
    await driver.reconcile()
    assert [claim.id for claim in await driver.claim(9)] == [prediction_id]


async def test_queue_of_idle_work_cannot_be_forgotten(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(lane="idle")
    assert await driver.scripts.unregister(driver.queue, now_ms=driver.now_ms) == "live"
    await driver.cancel(prediction_id)
    assert await driver.scripts.unregister(driver.queue, now_ms=driver.now_ms) == "done"


@pytest.mark.parametrize("seed", range(3))
async def test_other_work_waits_for_at_most_one_idle_run_of_a_slot(driver: QueueDriver, seed: int) -> None:
    """Two slots, runs of 10 s, idle work without end, and less of other work than the slots can do."""
    dice = random.Random(seed)
    run_s, began_ms = 10.0, driver.now_ms
    await driver.submit_many(60, lane="idle", account="night")
    free_s, next_s = [0.0, dice.uniform(0, run_s)], dice.uniform(0, run_s)
    came: dict[str, float] = {}
    waits: list[float] = []
    while len(waits) < 10:
        now_s = min(free_s)
        while next_s <= now_s:
            driver.now_ms = began_ms + int(next_s * 1000)
            came[await driver.submit()] = next_s
            next_s += run_s * dice.uniform(0.8, 2)
        driver.now_ms = began_ms + int(now_s * 1000)
        claim = await driver.claim_one(lease_s=10_000)
        if claim.id in came:
            waits.append(now_s - came[claim.id])
        await driver.finish(claim)
        free_s[free_s.index(now_s)] = now_s + run_s
    assert max(waits) <= run_s
    assert max(waits) > 0, "idle work held the slots"
