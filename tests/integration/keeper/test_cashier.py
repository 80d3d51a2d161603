"""Check that reserved compute is settled by what the runs took, soon after the end and once."""

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import PredictionId, new_prediction_id, partition_of
from director.core.usage import Used
from director.keeper.cashier import LOOK_S, UNBORN_S, Cashier
from director.keeper.registry import GLANCE_S, Registry
from director.runtime.sweep import LIMIT
from director.store.accounts import Accounts
from director.store.catalog import Catalog
from tests.support.clock import FakeClock
from tests.support.queue_driver import ACCOUNT, MODEL, QueueDriver

DAY_S = 100_000


@pytest.fixture
def cashier(redis: Redis, scripts: Scripts, catalog: Catalog, clock: FakeClock) -> Cashier:
    return Cashier(redis, scripts, Registry(redis, catalog, clock), clock)


async def reserved(driver: QueueDriver, asked_s: float = 60) -> PredictionId:
    """Enqueue a prediction, with this much of its account's day reserved."""
    prediction_id = await driver.submit(metered=True)
    assert (await driver.scripts.reserve(ACCOUNT, DAY_S, id=prediction_id, asked_s=asked_s)).allowed
    return prediction_id


async def used(redis: Redis) -> tuple[float, float]:
    usage = await Accounts(redis).usage(ACCOUNT, day=SystemClock().now_ms() // 86_400_000)
    return usage.spent_s, usage.reserved_s


async def test_only_runs_count_as_compute(cashier: Cashier, driver: QueueDriver, redis: Redis) -> None:
    await reserved(driver)
    await driver.run(await driver.claim_one(), 4)
    waits, canceled = [await reserved(driver) for _ in range(2)]
    await driver.cancel(canceled)
    assert await used(redis) == (0, 180)
    assert await cashier.run_once() == 2
    assert await used(redis) == (4, 60)
    assert not await redis.exists(keys.unspent(partition_of(waits)))


async def test_one_sweep_settles_more_than_one_call_takes(cashier: Cashier, driver: QueueDriver, redis: Redis) -> None:
    for _ in range(LIMIT + 1):
        await driver.cancel(await reserved(driver, 1))
    assert await cashier.run_once() == LIMIT + 1
    assert await used(redis) == (0, 0)


async def test_two_cashiers_count_a_run_once(cashier: Cashier, driver: QueueDriver, scripts: Scripts) -> None:
    prediction_id = await reserved(driver)
    await driver.run(await driver.claim_one(), 4)
    await scripts.spend(ACCOUNT, prediction_id=prediction_id, spent_s=4)
    assert await cashier.run_once() == 1
    assert await used(driver.redis) == (4, 0)


async def test_ended_prediction_is_settled_by_the_next_look(
    cashier: Cashier, driver: QueueDriver, clock: FakeClock, redis: Redis
) -> None:
    prediction_id = await reserved(driver)
    assert await cashier.run_once() == 0
    await driver.cancel(prediction_id)
    clock.pass_time(GLANCE_S)
    assert await cashier.run_once() == 1


async def set_aside(driver: QueueDriver, prediction_id: PredictionId, redis: Redis) -> None:
    """Reserve this much of its account's credit, for a prediction that may never be created."""
    await Accounts(redis).create(ACCOUNT)
    assert (await driver.scripts.reserve(ACCOUNT, None, in_all=100, id=prediction_id, asked_s=10)).allowed


async def in_all(redis: Redis) -> tuple[float, float]:
    usage = await Accounts(redis).usage(ACCOUNT, day=0)
    return usage.total_spent_s, usage.total_reserved_s


async def test_credit_reserved_for_an_uncreated_prediction_is_freed(
    cashier: Cashier, driver: QueueDriver, clock: FakeClock, redis: Redis
) -> None:
    await set_aside(driver, driver.new_id(), redis)
    waits = await driver.submit(metered=True)
    await set_aside(driver, waits, redis)
    assert await cashier.run_once() == 0, "it may be on its way"
    clock.pass_time(UNBORN_S + 1)
    assert await cashier.run_once() == 1
    assert await in_all(redis) == (0, 10)
    assert await redis.hget(keys.credit(ACCOUNT), waits) == b"10000"


async def test_compute_of_the_day_reserved_for_an_uncreated_prediction_is_freed(
    cashier: Cashier, driver: QueueDriver, clock: FakeClock, redis: Redis
) -> None:
    await Accounts(redis).create(ACCOUNT)
    await reserved(driver)
    assert (await driver.scripts.reserve(ACCOUNT, DAY_S, id=driver.new_id(), asked_s=10)).allowed
    assert await cashier.run_once() == 0, "it may be on its way"
    clock.pass_time(UNBORN_S + 1)
    assert await cashier.run_once() == 1
    assert await used(redis) == (0, 60)


async def test_credit_of_a_deleted_ended_prediction_is_spent(
    cashier: Cashier, driver: QueueDriver, clock: FakeClock, redis: Redis
) -> None:
    await cashier.run_once()
    prediction_id = await driver.submit(metered=True)
    await set_aside(driver, prediction_id, redis)
    await driver.run(await driver.claim_one(), 4)
    await redis.delete(keys.record(prediction_id))
    clock.pass_time(UNBORN_S + LOOK_S)
    assert await cashier._free_unborn() == 0
    assert await cashier.run_once() == 1
    assert await in_all(redis) == (4, 0)


async def test_one_look_frees_all_uncreated_predictions(
    cashier: Cashier, driver: QueueDriver, clock: FakeClock, redis: Redis
) -> None:
    await Accounts(redis).create(ACCOUNT)
    for _ in range(700):  # more than the server keeps in one piece
        await driver.scripts.reserve(ACCOUNT, None, in_all=10_000, id=driver.new_id(), asked_s=1)
    clock.pass_time(UNBORN_S + 1)
    assert await cashier.run_once() == 700
    assert await in_all(redis) == (0, 0)
    assert sorted(await redis.hkeys(keys.credit(ACCOUNT))) == [b"reserved", b"spent"]


async def test_tokens_are_settled_by_what_the_runs_used(
    cashier: Cashier, driver: QueueDriver, scripts: Scripts, redis: Redis
) -> None:
    limits = (None, 1_000, None, None)
    ran, canceled = [await driver.submit(budgeted=True) for _ in range(2)]
    for prediction_id in (ran, canceled):
        await scripts.budget(ACCOUNT, prediction_id, limits, tokens=400, compute_s=0)
    assert not (await scripts.budget(ACCOUNT, PredictionId("p"), limits, tokens=400, compute_s=0)).allowed
    await driver.finish(await driver.claim_one(), used=Used(runs=1, input_tokens=90, output_tokens=10))
    await driver.cancel(canceled)
    assert await cashier.run_once() == 2
    assert await cashier.run_once() == 0
    assert (await scripts.budget(ACCOUNT, PredictionId("p"), limits, tokens=900, compute_s=0)).allowed


async def test_tokens_of_a_prediction_that_was_never_created_are_freed(
    cashier: Cashier, scripts: Scripts, clock: FakeClock, redis: Redis
) -> None:
    await Accounts(redis).create(ACCOUNT)
    limits = (None, 1_000, None, None)
    unborn = new_prediction_id(model=MODEL, now_ms=clock.now_ms())
    await scripts.budget(ACCOUNT, unborn, limits, tokens=1_000, compute_s=0)
    await cashier.run_once()
    clock.pass_time(max(UNBORN_S, LOOK_S) + 1)
    assert await cashier.run_once() == 1
    assert (await scripts.budget(ACCOUNT, PredictionId("p"), limits, tokens=1_000, compute_s=0)).allowed
