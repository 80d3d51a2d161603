"""Check that only queues that may show a fault are looked at more closely, with one bounded question for all."""

import time

import msgspec
import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.core.clock import SystemClock
from director.core.data_bytes import Counted
from director.core.policy import Objective, Policy
from director.core.states import Status
from director.keeper.shares import Shares
from director.operate.findings import Closer, Expiry, Heaviest, Neglected, Usual
from director.operate.overview import CloserLook
from director.store.account_data import Holder
from director.store.accounts import LASTING_MS, Accounts, digest
from director.store.catalog import Catalog
from director.store.directors import About, Directors, EndsFound, RunFound
from director.store.owed import Owed
from tests.support.queue_driver import VERSION, QueueDriver

MINUTE_MS = 60_000


@pytest.fixture
def past(driver: QueueDriver) -> QueueDriver:
    """Return the queue by a clock of a minute ago."""
    driver.now_ms = time.time_ns() // 1_000_000 - MINUTE_MS
    return driver


async def looked(driver: QueueDriver, redis: Redis, catalog: Catalog) -> Closer:
    closer = CloserLook(redis, Owed(redis, catalog))
    return await closer.look({driver.queue: await driver.scripts.stats(driver.queue)}, owed=1)


async def test_healthy_queue_has_no_further_facts(past: QueueDriver, redis: Redis, catalog: Catalog) -> None:
    await past.submit()
    closer = await looked(past, redis, catalog)
    assert abs(closer.now_ms - time.time_ns() // 1_000_000) < MINUTE_MS
    assert closer.redis_ms > 0
    assert (closer.neglected, closer.heaviest, closer.letters, closer.burns, closer.failing) == ({}, {}, {}, {}, [])


async def test_neglected_work_is_counted_by_queue(past: QueueDriver, redis: Redis, catalog: Catalog) -> None:
    await past.submit()
    await past.submit(lifetime_ms=5_000)
    await past.claim_one()
    closer = await looked(past, redis, catalog)
    assert closer.neglected == {past.queue: Neglected(expired_leases=1, due_deadlines=1)}


async def test_heaviest_account_is_named_only_in_a_crowd(past: QueueDriver, redis: Redis, catalog: Catalog) -> None:
    for _ in range(99):
        await past.submit(account="noisy")
    assert (await looked(past, redis, catalog)).heaviest == {}
    await past.submit(account="noisy")
    assert (await looked(past, redis, catalog)).heaviest == {}, "no other account is there"
    await past.submit(account="quiet")
    heaviest = (await looked(past, redis, catalog)).heaviest
    assert heaviest == {past.queue: Heaviest(account="noisy", waiting=100, accounts=2)}


async def test_hour_of_an_objective_is_read_only_while_it_burns(
    past: QueueDriver, redis: Redis, catalog: Catalog
) -> None:
    promised = {"normal": Objective(share=0.95, within_s=5)}
    await past.scripts.register(past.queue, version=VERSION, policy=Policy(objectives=promised))  # type: ignore[arg-type]
    await past.submit()
    assert (await looked(past, redis, catalog)).burns == {}
    past.pass_time(55)
    await past.scripts.sample(past.queue, period_s=10, most=360, now_ms=past.now_ms)
    [windows] = (await looked(past, redis, catalog)).burns[past.queue].values()
    assert {name: burn.missed for name, burn in windows.items()} == {"5m": 1, "1h": 1}


async def test_usual_times_are_read_only_where_a_run_takes_long(
    past: QueueDriver, redis: Redis, catalog: Catalog
) -> None:
    known = {"service_ms": 500, "service_dev": 20, "service_n": 9, "service_cost": 2}
    await redis.hset(keys.meta(past.queue), mapping=known)  # type: ignore[misc]
    queues = {past.queue: await past.scripts.stats(past.queue)}
    closer, there = CloserLook(redis, Owed(redis, catalog)), Directors(redis)
    for ago_s, usual in ((5, {}), (75, {past.queue: Usual(mean_s=0.5, deviation_s=0.02, runs=9, cost=2)})):
        oldest = RunFound(id=past.new_id(), since_ms=time.time_ns() // 1_000_000 - ago_s * 1000, limit_s=1800)
        about = msgspec.json.encode(About(oldest=oldest))
        await past.scripts.extend(past.queue, consumer="d1", lease_s=15, claims=[], slots=1, about=about)
        assert (await closer.look(queues, await there.of([past.queue]), owed=0)).usual == usual


async def test_newest_error_is_read_only_where_most_runs_fail(
    past: QueueDriver, redis: Redis, catalog: Catalog
) -> None:
    claim = await past.claimed()
    seq = await past.begin(claim)
    past.pass_time(4)
    assert await past.finish(claim, Status.FAILED, error="no rows" + "x" * 9_000, seq=seq)
    queues = {past.queue: await past.scripts.stats(past.queue)}
    closer, there = CloserLook(redis, Owed(redis, catalog)), Directors(redis)
    for failed, known in ((4, []), (5, [claim.id])):
        about = msgspec.json.encode(About(ends=EndsFound(ended=failed, failed=failed, failed_id=claim.id)))
        await past.scripts.extend(past.queue, consumer="d1", lease_s=15, claims=[], slots=1, about=about)
        failures = (await closer.look(queues, await there.of([past.queue]), owed=0)).failures
        assert list(failures) == known
    assert (failures[claim.id].ran_s, failures[claim.id].error[:8], len(failures[claim.id].error)) == (
        4,
        "no rowsx",
        1000,
    )


async def test_account_with_the_most_data_is_what_a_keeper_found(
    past: QueueDriver, redis: Redis, catalog: Catalog
) -> None:
    await Accounts(redis).create("quiet")
    await Accounts(redis).create("noisy")
    later_ms = time.time_ns() // 1_000_000 + MINUTE_MS
    for name, size in {"quiet": 10, "noisy": 30}.items():
        await past.scripts.weigh(name, Counted(size, later_ms))
    shares = Shares(redis, SystemClock())
    await shares.run_once()
    assert (await looked(past, redis, catalog)).holder is None, "there is room for all"
    before = (await redis.config_get("maxmemory"))["maxmemory"]
    await redis.config_set("maxmemory", int((await redis.info("memory"))["used_memory"] / 0.6))
    try:
        await shares.run_once()
        holder = (await looked(past, redis, catalog)).holder
    finally:
        await redis.config_set("maxmemory", before)
    assert holder == Holder(account="noisy", bytes=30, total=40, accounts=2)


@pytest.mark.not_on("cluster", why="only one of its masters would be full")
async def test_account_with_the_most_data_stays_known_while_redis_is_full(
    past: QueueDriver, redis: Redis, catalog: Catalog
) -> None:
    await Accounts(redis).create("noisy")
    await past.scripts.weigh("noisy", Counted(30, time.time_ns() // 1_000_000 + MINUTE_MS))
    shares, before = Shares(redis, SystemClock()), (await redis.config_get("maxmemory"))["maxmemory"]
    try:
        await redis.config_set("maxmemory", int((await redis.info("memory"))["used_memory"] / 0.6))
        await shares.run_once()
        await redis.config_set("maxmemory", 1)
        for key in (keys.data_first(), keys.data_share()):
            await redis.pexpire(key, 5_000)
        await shares.run_once()
        assert [await redis.pttl(key) > 5_000 for key in (keys.data_first(), keys.data_share())] == [True, True]
        holder = (await looked(past, redis, catalog)).holder
    finally:
        await redis.config_set("maxmemory", before)
    assert holder == Holder(account="noisy", bytes=30, total=30, accounts=1)


async def test_token_that_is_used_and_expires_soon_is_noted(past: QueueDriver, redis: Redis, catalog: Catalog) -> None:
    accounts, now_ms = Accounts(redis), SystemClock().now_ms()
    soon = await accounts.create_token("amber", expires_ms=now_ms + 3_600_000)
    await redis.hset(keys.token(digest(soon)), "created", now_ms - LASTING_MS)  # type: ignore[misc]
    others = [await accounts.create_token("basalt", expires_ms=now_ms + days * 86_400_000) for days in (1, 8)]
    for token in (soon, *others):  # one was made for a day, one expires later
        await accounts.create_token("amber", expires_ms=now_ms + 7_200_000)  # it is not used
        assert await accounts.authenticate(token)
    assert (await looked(past, redis, catalog)).expiring == [Expiry("amber", digest(soon)[:16], now_ms + 3_600_000)]
    found = await accounts.tokens.find(soon)
    assert found is not None
    await accounts.tokens.remove(found)
    assert (await looked(past, redis, catalog)).expiring == []
