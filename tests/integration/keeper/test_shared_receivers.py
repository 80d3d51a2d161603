"""A receiver that several webhooks share: what arrives there takes nothing from the schedule of what fails there."""

import time
from collections.abc import AsyncGenerator

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import PredictionId, new_prediction_id, partition_of
from director.core.policy import Policy
from director.core.schema import Claim
from director.core.webhooks import host_of
from director.keeper.courier import AFTER, FREE_S, INTERVAL_S, Breakers, Courier
from director.keeper.registry import Registry
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.webhooks.delivery import Schedule, Webhooks
from director.webhooks.sender import AllowList, Sender
from tests.support.clock import FakeClock
from tests.support.queue_driver import ACCOUNT, VERSION, QueueDriver
from tests.support.sink import Answer, Sink, sink

OTHER = "neighbour"
ARRIVALS = 20
LATER = Schedule.parse("1h,1h,1h,1h")  # nothing becomes due by itself while a test runs


@pytest.fixture
def past(driver: QueueDriver) -> QueueDriver:
    driver.now_ms = time.time_ns() // 1_000_000 - 60_000
    return driver


@pytest.fixture
async def shared() -> AsyncGenerator[Sink]:
    async with sink() as receiver:
        yield receiver


@pytest.fixture
async def webhooks(redis: Redis, scripts: Scripts) -> AsyncGenerator[Webhooks]:
    accounts = Accounts(redis)
    for account in (ACCOUNT, OTHER):
        await accounts.create_token(account)
    sender = Sender(AllowList.parse("loopback"), timeout_s=10)
    yield Webhooks(scripts, accounts, sender, SystemClock(), LATER)
    await sender.aclose()


@pytest.fixture
def courier(redis: Redis, scripts: Scripts, registry: Registry, webhooks: Webhooks, clock: FakeClock) -> Courier:
    return Courier(redis, scripts, registry, webhooks, SystemClock(), breakers=Breakers(clock))


async def owe(past: QueueDriver, url: str, *, account: str = ACCOUNT) -> Claim:
    await past.submit(webhook=url, webhook_events="completed", account=account)
    claim = await past.claim_one()
    assert await past.finish(claim, output=b"1")
    return claim


async def make_due(past: QueueDriver, *ids: PredictionId) -> None:
    """Let the time of the next attempt come."""
    for each in ids:
        await past.redis.hset(keys.record(each), "next_telling", "0")
    await past.redis.zadd(keys.owed(partition_of(ids[0])), dict.fromkeys(ids, 0), xx=True)


async def steps(past: QueueDriver, prediction_id: PredictionId) -> int:
    record = await past.record(prediction_id)
    return record.webhook_attempts - record.webhook_attempts_before


def path(receiver: Sink, name: str) -> str:
    return receiver.url.replace("/hook", name)


@pytest.mark.parametrize("status", [404, 401, 302, 429, 500, 503])
@pytest.mark.parametrize("account", [ACCOUNT, OTHER])
async def test_arrivals_at_a_host_take_no_step_of_a_failing_one(
    courier: Courier, webhooks: Webhooks, past: QueueDriver, shared: Sink, account: str, status: int
) -> None:
    async with sink() as alone:
        for receiver in (shared, alone):
            receiver.by_path["/bad"] = Answer(status=status)
        beside, control = [(await owe(past, path(receiver, "/bad"))).id for receiver in (shared, alone)]
        await courier.run_once()
        for _ in range(ARRIVALS):
            assert (await webhooks.deliver((await owe(past, shared.url, account=account)).id)).outcome == "delivered"
            await courier.run_once()
        assert (await past.record(beside)).webhook_outcome == "failed"
        assert await steps(past, beside) == await steps(past, control) == 1
        may_come_early = account == ACCOUNT and status >= 500
        assert shared.targets.count("/bad") == alone.targets.count("/bad") + may_come_early
        for number in (2, 3, 4):
            await make_due(past, beside, control)
            await courier.run_once()
            assert await steps(past, beside) == await steps(past, control) == number
    await past.redis.delete(keys.owed(partition_of(beside)))


async def test_a_closing_breaker_brings_forward_no_other_accounts_webhook(
    courier: Courier, past: QueueDriver, shared: Sink, clock: FakeClock, catalog: Catalog, scripts: Scripts
) -> None:
    queue = await catalog.register("acme/other", VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    elsewhere = QueueDriver(past.redis, scripts, queue)
    elsewhere.now_ms = past.now_ms
    shared.by_path["/bad"] = Answer(status=500)
    there = new_prediction_id(model="acme/other", now_ms=past.now_ms)
    await elsewhere.submit(there, webhook=path(shared, "/bad"), webhook_events="completed", account=OTHER)
    assert await elsewhere.finish(await elsewhere.claim_one())
    here = (await owe(past, path(shared, "/bad"), account=OTHER)).id
    shared.answer = Answer(status=500)
    away = [(await owe(past, shared.url)).id for _ in range(AFTER)]
    assert (await courier.run_once()).outcomes == {"failed": AFTER + 2}
    shared.answer = Answer()
    clock.pass_time(INTERVAL_S)
    await make_due(past, away[0])
    assert (await courier.run_once()).outcomes == {"delivered": 1}
    assert (await courier.run_once()).outcomes == {"delivered": AFTER - 1}, "only those of the same account"
    assert [await steps(past, each) for each in (here, there)] == [1, 1]
    for each in (here, there):
        await past.redis.delete(keys.owed(partition_of(each)))


async def test_a_refusal_that_closes_a_breaker_brings_forward_what_was_put_off(
    courier: Courier, past: QueueDriver, shared: Sink, clock: FakeClock
) -> None:
    shared.answer = Answer(status=500)
    ids = [(await owe(past, shared.url)).id for _ in range(AFTER)]
    await courier.run_once()
    await make_due(past, *ids)
    assert (await courier.run_once()).put_off == AFTER
    shared.answer, shared.by_path["/missing"] = Answer(), Answer(status=404)
    clock.pass_time(INTERVAL_S)
    missing = (await owe(past, path(shared, "/missing"))).id
    assert (await courier.run_once()).outcomes == {"failed": 1}, "the host answers, though this receiver is missing"
    assert (await courier.run_once()).outcomes == {"delivered": AFTER}
    await past.redis.delete(keys.owed(partition_of(missing)))


async def test_a_free_interval_goes_to_a_webhook_that_waits_for_a_later_one(
    courier: Courier, webhooks: Webhooks, past: QueueDriver, shared: Sink, clock: FakeClock
) -> None:
    """Its receiver is well again, and another process has delivered the webhooks that had the earlier intervals."""
    shared.answer = Answer(status=500)
    ids = [(await owe(past, shared.url)).id for _ in range(AFTER)]
    await courier.run_once()
    await make_due(past, *ids)
    assert (await courier.run_once()).put_off == AFTER
    shared.answer = Answer()
    last = max(ids, key=(await past.members(keys.owed(partition_of(ids[0])))).__getitem__)
    for each in ids:
        if each != last:
            await past.scripts.deliver(
                each, outcome="delivered", delay_s=None, account=ACCOUNT, host=host_of(shared.url)
            )
    assert (await courier.run_once()).outcomes == {}, "the interval has not come"
    clock.pass_time(INTERVAL_S + FREE_S)
    assert (await courier.run_once()).outcomes == {"delivered": 1}


async def test_a_free_interval_makes_one_webhook_of_all_partitions_due(
    courier: Courier, past: QueueDriver, shared: Sink, clock: FakeClock, catalog: Catalog, scripts: Scripts
) -> None:
    shared.answer = Answer(status=500)
    ids = []
    for model in ("acme/second", "acme/third", "acme/fourth"):
        queue = await catalog.register(model, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
        driver = QueueDriver(past.redis, scripts, queue)
        driver.now_ms = past.now_ms
        for _ in range(2):
            ids.append(new_prediction_id(model=model, now_ms=past.now_ms))
            await driver.submit(ids[-1], webhook=shared.url, webhook_events="completed")
            assert await driver.finish(await driver.claim_one())
    assert (await courier.run_once()).outcomes == {"failed": len(ids)}
    for each in ids:
        await make_due(past, each)
    assert (await courier.run_once()).put_off == len(ids)
    clock.pass_time(INTERVAL_S + FREE_S)
    found = await courier.run_once()
    assert (found.outcomes, found.put_off) == ({"failed": 1}, 0)
    for each in ids:
        await past.redis.delete(keys.owed(partition_of(each)))


async def test_webhooks_that_a_host_missed_arrive_once_it_answers(
    courier: Courier, webhooks: Webhooks, past: QueueDriver, shared: Sink
) -> None:
    shared.answers.extend([Answer(status=503), Answer(reset=True), Answer(status=404)])
    unavailable, broken, missing = [(await owe(past, shared.url)).id for _ in range(3)]
    for each in (unavailable, broken, missing):
        await webhooks.deliver(each)
    await webhooks.deliver((await owe(past, shared.url)).id)
    assert (await courier.run_once()).outcomes == {"delivered": 2}
    assert [(await past.record(each)).webhook_outcome for each in (unavailable, broken, missing)] == [
        "delivered",
        "delivered",
        "failed",
    ]
    await past.redis.delete(keys.owed(partition_of(missing)))


async def test_each_step_has_at_most_one_early_attempt(
    courier: Courier, webhooks: Webhooks, past: QueueDriver, shared: Sink
) -> None:
    shared.by_path["/bad"] = Answer(status=500)
    bad = (await owe(past, path(shared, "/bad"))).id
    await courier.run_once()
    for number in (1, 2):
        for _ in range(3):
            await webhooks.deliver((await owe(past, shared.url)).id)
            await courier.run_once()
        assert (await steps(past, bad), shared.targets.count("/bad")) == (number, 2 * number)
        await make_due(past, bad)
        await courier.run_once()
    await past.redis.delete(keys.owed(partition_of(bad)))


async def test_a_requested_attempt_takes_no_step_of_the_schedule(
    courier: Courier, past: QueueDriver, shared: Sink
) -> None:
    shared.answer = Answer(status=404)
    bad = (await owe(past, shared.url)).id
    await courier.run_once()
    due = await past.redis.zscore(keys.owed(partition_of(bad)), bad)
    for _ in range(10):
        assert await past.scripts.redeliver(bad, account=ACCOUNT) == "owed"
        assert (await courier.run_once()).outcomes == {"failed": 1}
    assert len(shared.received) == 11
    assert await steps(past, bad) == 1
    assert await past.redis.zscore(keys.owed(partition_of(bad)), bad) == due
    await past.redis.delete(keys.owed(partition_of(bad)))


async def test_a_count_that_ran_ahead_of_time_gives_nothing_up(
    courier: Courier, past: QueueDriver, shared: Sink
) -> None:
    shared.answer = Answer(status=404)
    bad = (await owe(past, shared.url)).id
    await past.redis.hset(keys.record(bad), "tellings", "15")  # as a keeper of 0.3.0 beside a busy receiver left it
    assert (await courier.run_once()).outcomes == {"failed": 1}
    await past.redis.hset(keys.record(bad), "completed", str(past.now_ms - 4 * 3_600_000))
    await make_due(past, bad)
    assert (await courier.run_once()).outcomes == {"given_up": 1}
