"""Idle work is handed out only while a claim finds nothing else, in turns of its own, and is no demand."""

import random
from collections.abc import Awaitable, Callable

import pytest

from director.broker import keys
from director.core.ids import LANES
from director.core.policy import Objective, Policy
from director.core.schema import Claim
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


MANY = 9


@pytest.mark.parametrize(
    ("slots", "spare", "started"),
    [(4, 1, 3), (4, 2, 2), (4, 3, 1), (4, 0, MANY), (4, 4, MANY), (1, 1, MANY), (0, 1, MANY)],
    ids=["spare-1", "spare-2", "spare-3", "no-spare", "all-spare", "one-slot", "no-heartbeat-yet"],
)
async def test_idle_work_leaves_slots_free_where_there_are_more(
    driver: QueueDriver, slots: int, spare: int, started: int
) -> None:
    await settled(driver, spare_slots=spare)
    await driver.have_slots(slots)
    await driver.submit_many(MANY, lane="idle", account="night")
    found = [await claimed(driver, count) for count in (2, 4, 4)]
    assert sum(map(len, found)) == started


async def test_spare_slots_are_those_of_all_directors_and_of_all_runs(driver: QueueDriver) -> None:
    await driver.have_slots(2, consumer="d1")
    await driver.have_slots(2, consumer="d2")
    await driver.submit_many(MANY, lane="idle", account="night")
    await driver.submit_many(2)
    assert await claimed(driver, 3, consumer="d1") == ["normal", "normal", "idle"]
    assert await claimed(driver, 1, consumer="d2") == []
    await driver.submit()
    assert await claimed(driver, 1, consumer="d2") == ["normal"]


async def test_a_lost_count_gives_no_idle_work_a_spare_slot(driver: QueueDriver) -> None:
    await driver.have_slots(4)
    await driver.submit_many(MANY, lane="idle", account="night")
    await driver.redis.hdel(keys.meta(driver.queue), "backlogged:idle")
    assert len(await driver.claim(4)) == 1, "a look at the lane, which corrects the count"


async def rings_at(driver: QueueDriver, act: Callable[[], Awaitable[object]]) -> bool:
    bell = keys.bell(driver.queue)
    await driver.redis.delete(bell)
    assert await claimed(driver) == []
    assert not await driver.redis.exists(bell), "none could start with one spare slot"
    await act()
    return bool(await driver.redis.exists(bell))


WAYS = {
    "finish": lambda driver, claim: driver.finish(claim),
    "release": lambda driver, claim: driver.release(claim, spent=True, delay_s=60),
    "dead letter": lambda driver, claim: driver.release(claim, spent=True),
    "more slots": lambda driver, claim: driver.have_slots(3, consumer="d2"),
    "fewer slots, none to spare": lambda driver, claim: driver.have_slots(1),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_slot_that_is_free_again_wakes_a_director_for_idle_work(driver: QueueDriver, way: str) -> None:
    await settled(driver, attempts=1 if way == "dead letter" else 3)
    await driver.have_slots(2)
    await driver.submit_many(3, lane="idle", account="night")
    [first] = await driver.claim(2, lease_s=999)
    assert await rings_at(driver, lambda: WAYS[way](driver, first))
    assert await claimed(driver, 1) == ["idle"]


async def test_a_lost_claim_wakes_a_director_for_idle_work(driver: QueueDriver) -> None:
    await driver.have_slots(2)
    await driver.submit_many(2, lane="idle", account="night")
    await driver.claim(2, lease_s=5)
    driver.pass_time(6)
    assert await rings_at(driver, driver.reap)


async def test_a_director_that_was_silent_wakes_one_for_idle_work(driver: QueueDriver) -> None:
    for consumer in ("d1", "d2"):
        await driver.have_slots(2, consumer=consumer)
    await driver.submit_many(3, lane="idle", account="night")
    await driver.claim(1, lease_s=999)
    driver.pass_time(21)
    await driver.have_slots(2)
    driver.pass_time(1)
    assert await rings_at(driver, lambda: driver.have_slots(2, consumer="d2"))


async def test_an_end_without_room_for_idle_work_wakes_none(driver: QueueDriver) -> None:
    await driver.have_slots(2)
    call, other = await driver.claimed(lease_s=999), await driver.claimed(lease_s=999)
    await driver.submit(lane="idle", account="night")
    assert not await rings_at(driver, lambda: driver.finish(call))
    assert await rings_at(driver, lambda: driver.finish(other))


async def test_ends_wake_none_for_idle_work_that_may_not_run(driver: QueueDriver) -> None:
    await driver.have_slots(2)
    await driver.submit(lane="idle", account="night")
    await driver.pause(account="night")
    claim = await driver.claimed()
    assert not await rings_at(driver, lambda: driver.finish(claim))


async def test_a_claim_of_other_work_wakes_none_for_idle_work_without_room(driver: QueueDriver) -> None:
    await driver.have_slots(2)
    await driver.submit_many(3, lane="idle", account="night")
    await driver.submit()
    await driver.redis.delete(keys.bell(driver.queue))
    assert await claimed(driver, 2) == ["normal"]
    assert not await driver.redis.exists(keys.bell(driver.queue))


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
async def test_other_work_never_waits_while_it_leaves_the_spare_slot_free(driver: QueueDriver, seed: int) -> None:
    """Three slots, idle runs of 10 s without end, and other runs of 2 s that begin at least 2 s apart."""
    dice, idle_runs = random.Random(seed), 0
    await driver.have_slots(3)
    await driver.submit_many(60, lane="idle", account="night")
    running: list[tuple[int, Claim]] = []
    next_ms = driver.now_ms + int(1000 * dice.uniform(0, 10))
    for _ in range(60):
        driver.now_ms = min([next_ms, *(ends_ms for ends_ms, _ in running)])
        for over in [each for each in running if each[0] <= driver.now_ms]:
            running.remove(over)
            await driver.finish(over[1])
        came = None
        if next_ms <= driver.now_ms:
            came, next_ms = await driver.submit(), driver.now_ms + int(1000 * dice.uniform(2, 8))
        found = await driver.claim(3 - len(running), lease_s=10_000) if len(running) < 3 else []
        assert came is None or came in [claim.id for claim in found], "it waits"
        idle_runs += sum(claim.record.lane == "idle" for claim in found)
        running += [(driver.now_ms + (10_000 if c.record.lane == "idle" else 2_000), c) for c in found]
    assert idle_runs >= 10, "idle work uses the other slots"
