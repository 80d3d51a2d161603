"""A claim with a budget takes the prefix that fits, and a large prediction alone."""

import asyncio
import random

import pytest

from director.broker import keys
from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.ids import LANES
from director.core.states import Status
from tests.support.queue_driver import QueueDriver
from tests.support.servers import RedisServer


async def costs(driver: QueueDriver, *wanted: float, slots: int = 50, **options: object) -> None:
    """Submit these costs: into one stream while slots are free, else into a backlog."""
    await driver.have_slots(slots)
    for cost in wanted:
        await driver.submit(streams=[0], cost=cost, **options)


async def claimed(driver: QueueDriver, budget: float, *, count: int = 50, alone: bool = True) -> list[float]:
    return [claim.record.cost for claim in await driver.claim(count, budget=budget, alone=alone)]


async def tally(driver: QueueDriver) -> dict[str, int]:
    return {name: many for name, many in (await driver.stats()).tally.items() if name.startswith("batch_")}


everywhere = pytest.mark.parametrize("slots", [50, 1], ids=["ready", "in turn"])


@everywhere
async def test_a_batch_takes_what_fits_in_order(driver: QueueDriver, slots: int) -> None:
    await costs(driver, 1, 2, 3, 4, 5, slots=slots)
    assert await claimed(driver, 6.5) == [1, 2, 3]
    assert await claimed(driver, 9) == [4, 5], "an exact fit"
    assert await claimed(driver, 9) == []


@everywhere
async def test_a_small_prediction_does_not_pass_a_large_one(driver: QueueDriver, slots: int) -> None:
    await costs(driver, 3, 9, 1, slots=slots)
    [held] = await driver.claim(50, budget=5)
    assert held.record.cost == 3
    assert await driver.pending() == {held.id: "d1"}, "the others keep waiting"
    assert (await driver.stats()).waiting == 2
    assert await claimed(driver, 5) == [9], "it is first now, and goes alone"
    assert await claimed(driver, 5) == [1]


@everywhere
async def test_a_large_prediction_is_not_claimed_unless_it_can_go_alone(driver: QueueDriver, slots: int) -> None:
    await costs(driver, 9, 1, slots=slots)
    claims = await driver.claim(50, budget=5, alone=False)
    assert (claims, claims.why) == ([], "budget")
    assert await claimed(driver, 9, alone=False) == [9]


async def test_a_batch_fills_from_streams_and_then_by_turns(driver: QueueDriver) -> None:
    await driver.have_slots(2)
    for account, stream, cost in (("a", 1, 1), ("b", 2, 2), ("c", 3, 3), ("d", 4, 4)):
        await driver.submit(account=account, streams=[stream], cost=cost)
    assert await claimed(driver, 6) == [1, 2, 3]


async def test_an_oversized_prediction_ends_a_batch_and_an_empty_lane_does_not(driver: QueueDriver) -> None:
    await costs(driver, 1, 1, lane="low")
    await costs(driver, 4, lane="normal")
    assert await claimed(driver, 5) == [4, 1]
    await costs(driver, 9, lane="normal")
    await costs(driver, 1, lane="low")
    claims = await driver.claim(50, budget=5, alone=False)
    assert (claims, claims.why) == ([], "budget")


async def test_late_predictions_cost_no_budget(driver: QueueDriver) -> None:
    await costs(driver, 3, lifetime_ms=1_000)
    await costs(driver, 2, 2)
    driver.pass_time(1)
    assert await claimed(driver, 4) == [2, 2]


@everywhere
async def test_a_claim_without_budget_sends_a_wakeup_for_another_director(driver: QueueDriver, slots: int) -> None:
    await costs(driver, 9, slots=slots)
    assert await driver.hear_bell()
    claims = await driver.claim(50, budget=5, alone=False)
    assert (claims, claims.why) == ([], "budget")
    assert await driver.hear_bell()
    assert await claimed(driver, 5) == [9]
    assert not await driver.hear_bell(), "nothing is left"


async def test_a_probe_without_budget_sends_a_wakeup_for_another_director(driver: QueueDriver) -> None:
    await driver.submit(cost=9)
    await driver.redis.hset(keys.meta(driver.queue), mapping={"breaker": "open", "open_until": driver.now_ms})
    assert await driver.hear_bell()
    assert await claimed(driver, 5, alone=False) == []
    assert await driver.hear_bell()
    assert await claimed(driver, 5) == [9]
    assert await driver.meta("breaker") == "probing"


@everywhere
async def test_each_prediction_of_a_batch_has_its_own_claim(driver: QueueDriver, slots: int) -> None:
    await costs(driver, 1, 1, 1, slots=slots)
    first, second, third = await driver.claim(50, budget=5, nonce="abc")
    assert set(await driver.pending()) == {first.id, second.id, third.id}
    assert [claim.token for claim in (first, second, third)] == ["abc-1", "abc-2", "abc-3"]
    assert set(await driver.members(keys.lease(driver.queue))) == {first.id, second.id, third.id}
    await driver.finish(first)
    assert await driver.release(second) == "waiting"
    assert await driver.extend(third) == ["held"]
    assert (await driver.claim_one()).id == second.id


async def test_a_repeated_call_gets_the_same_answer(driver: QueueDriver) -> None:
    await costs(driver, 1, 2, 3, 4)
    first = await driver.claim(50, budget=6, nonce="abc")
    assert await driver.claim(50, budget=6, nonce="abc") == first
    assert await claimed(driver, 6) == [4]


async def test_a_limited_account_leaves_the_budget_to_others(driver: QueueDriver) -> None:
    await costs(driver, 2, 2, account="limited", most_running=1)
    await costs(driver, 2, account="other")
    assert await claimed(driver, 4) == [2, 2]
    assert await driver.counts(keys.running(driver.queue)) == {"limited": "1", "other": "1"}


async def test_the_reason_for_a_batchs_size_is_counted(driver: QueueDriver) -> None:
    await driver.submit()
    assert len(await driver.claim(5)) == 1
    assert await tally(driver) == {}, "it had no budget"
    await costs(driver, 1, 1, 1, 9, 1)
    assert await claimed(driver, 5, count=2) == [1, 1]
    assert await tally(driver) == {"batch_count": 1}
    assert await claimed(driver, 5) == [1]
    assert await tally(driver) == {"batch_count": 1, "batch_budget": 1}
    assert await claimed(driver, 5) == [9]
    assert await tally(driver) == {"batch_count": 1, "batch_budget": 1, "batch_oversize": 1}
    assert await claimed(driver, 5) == [1]
    assert await claimed(driver, 5) == [], "what hands out nothing is no batch"
    assert await tally(driver) == {"batch_count": 1, "batch_budget": 1, "batch_oversize": 1, "batch_empty": 1}


@pytest.mark.parametrize("seed", range(2))
async def test_thirty_two_concurrent_batches_never_exceed_budgets_or_share_a_prediction(
    driver: QueueDriver, server: RedisServer, seed: int
) -> None:
    dice = random.Random(seed)
    await driver.have_slots(40)
    ids = [
        await driver.submit(account=f"t{dice.randrange(9)}", lane=dice.choice(LANES), cost=dice.randint(1, 30) / 2)
        for _ in range(200)
    ]

    async def claimer(number: int) -> list[tuple[float, list[tuple[str, float]]]]:
        redis = client(server.url, connections=1)
        gatherer = Gatherer(redis)
        scripts, batches, turn = Scripts(gatherer), [], 0
        budgets = random.Random(100 * seed + number)
        try:
            while True:
                turn, budget = turn + 1, budgets.choice([2.0, 6.5, 10.0, 20.0])
                claims = await scripts.claim(
                    driver.queue,
                    consumer=f"d{number}",
                    nonce=f"n{number}-{turn}",
                    count=budgets.randint(1, 6),
                    lease_s=60,
                    budget=budget,
                    now_ms=driver.now_ms,
                )
                if not claims:
                    return batches
                batches.append((budget, [(claim.id, claim.record.cost) for claim in claims]))
                for claim in claims:
                    await scripts.finish(
                        claim.id,
                        queue=driver.queue,
                        token=claim.token,
                        status=Status.SUCCEEDED,
                        ran_ms=0,
                        now_ms=driver.now_ms,
                    )
        finally:
            await gatherer.aclose()
            await redis.aclose()

    batches = [batch for found in await asyncio.gather(*map(claimer, range(32))) for batch in found]
    assert sorted(prediction_id for _, batch in batches for prediction_id, _ in batch) == sorted(ids)
    over = [batch for budget, batch in batches if sum(cost for _, cost in batch) > budget]
    assert all(len(batch) == 1 for batch in over), "only a large one, alone"
    assert sum((await tally(driver)).values()) == len(batches)
    assert (await tally(driver))["batch_oversize"] == len(over)
