"""Check that the keeper's cross-checks find everything in large queues and under load."""

import asyncio
import random
import time

import anyio
import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import LANES, PredictionId
from director.keeper.reaper import Recoverer, ServerTime
from director.keeper.registry import Registry
from director.runtime.sweep import LIMIT
from director.store.catalog import Catalog
from tests.support.clock import FakeClock
from tests.support.queue_driver import QueueDriver

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("present")]


MANY = 100_000


@pytest.mark.heavy
async def test_orphan_behind_a_hundred_thousand_live_claims_is_found(
    redis: Redis, scripts: Scripts, catalog: Catalog, driver: QueueDriver
) -> None:
    hour_s = 3600.0
    for _ in range(MANY // 500):
        await asyncio.gather(*(driver.submit(streams=[3]) for _ in range(500)))
        while await driver.claim(64, lease_s=4 * hour_s):
            pass
    assert len(await driver.members(keys.lease(driver.queue))) == MANY
    orphan = await driver.submit(streams=[3])
    await driver.claim(1, lease_s=4 * hour_s)
    await redis.zrem(keys.lease(driver.queue), orphan)
    stream = keys.stream(driver.queue, "normal", 3)
    idle_ms = int(3 * hour_s * 1000)
    await redis.xclaim(stream, keys.GROUP, "d1", 0, [await driver.field(orphan, "mid")], idle=idle_ms, justid=True)

    for _ in range(50):  # a call that begins from the start each time scans the same entries, and never gets this far
        cursor, found = await driver.recover(3, cursor="0-0", count=LIMIT, idle_s=2 * hour_s)
        assert (cursor != "0-0", found) == (True, {})

    clock = FakeClock()
    contact = ServerTime(redis, scripts, clock, lease_s=hour_s)
    recoverer = Recoverer(redis, scripts, Registry(redis, catalog, clock, keep_s=0), contact, clock, hour_s)
    for _ in range(3):
        await contact.proven_ms()
        clock.pass_time(hour_s / 2)
    found_ids, rounds, slowest_s, is_complete = [], 0, 0.0, False
    while not is_complete:
        began_s = time.monotonic()
        recovered = await recoverer.run_once()
        slowest_s = max(slowest_s, time.monotonic() - began_s)
        found_ids += [name for name, _ in recovered.claims]
        is_complete = recovered.is_complete
        rounds += 1
    print(f"{rounds} rounds, the slowest {slowest_s * 1000:.1f} ms")
    assert found_ids == [orphan]
    assert (await driver.claim_one(consumer="d2")).id == orphan
    await redis.flushall()  # the fixture would look at each of these keys


LEASE_S = 1.0


class Load:
    """Directors of one queue: they claim, extend and finish after a time. Dead directors only claim."""

    def __init__(self, driver: QueueDriver) -> None:
        self.driver = driver
        self.abandoned: set[PredictionId] = set()
        self.finished: list[PredictionId] = []
        self.refused = 0
        self.is_over = False

    async def direct(self, name: str, *, run_s: float) -> None:
        while not self.is_over:
            for claim in await self.driver.claim(1, consumer=name, lease_s=LEASE_S):
                for _ in range(int(run_s / (LEASE_S / 3))):
                    await anyio.sleep(LEASE_S / 3)
                    self.driver.now_ms = time.time_ns() // 1_000_000
                    await self.driver.extend(claim, consumer=name, lease_s=LEASE_S)
                if await self.driver.finish(claim):
                    self.finished.append(claim.id)
                else:
                    self.refused += 1
            await anyio.sleep(0.01)

    async def die_holding(self, count: int) -> None:
        for _ in range(count):
            self.abandoned.add((await self.driver.claim_one(consumer="dead", lease_s=LEASE_S)).id)


@pytest.mark.heavy
async def test_recoverer_alone_finds_every_orphan_under_load(
    redis: Redis, scripts: Scripts, catalog: Catalog, driver: QueueDriver
) -> None:
    """Reaper and reconciler do not run here. A live director has its leases again after its next heartbeat."""
    load, clock = Load(driver), SystemClock()
    contact = ServerTime(redis, scripts, clock, lease_s=LEASE_S)
    recoverer = Recoverer(redis, scripts, Registry(redis, catalog, clock, keep_s=0), contact, clock, LEASE_S)
    period_s = 2 * LEASE_S

    async def keep_contact() -> None:
        while True:
            await contact.proven_ms()
            await anyio.sleep(LEASE_S / 10)

    async def submit() -> None:
        while not load.is_over:
            driver.now_ms = time.time_ns() // 1_000_000
            await driver.submit(account=f"a{random.randrange(50)}")
            await anyio.sleep(0.02)

    async def look_through() -> set[PredictionId]:
        found = set()
        while True:
            recovered = await recoverer.run_once()
            assert not recovered.is_held_off
            found |= {name for name, _ in recovered.claims}
            if recovered.is_complete:
                return found

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_contact)
        for number in range(150):
            await driver.submit(account=f"a{number}")
        await load.die_holding(100)
        tasks.start_soon(submit)
        for number in range(10):
            tasks.start_soon(lambda name, run_s: load.direct(name, run_s=run_s), f"d{number}", number % 4 * 1.0)
        await anyio.sleep(LEASE_S)
        await redis.delete(keys.lease(driver.queue))
        back: set[PredictionId] = set()
        for _ in range(2):
            await anyio.sleep(period_s)
            back |= await look_through()
        assert back == load.abandoned
        assert len(load.abandoned) == 100
        load.is_over = True
        await anyio.sleep(3 * LEASE_S + 0.5)
        tasks.cancel_scope.cancel()
    assert load.refused == 0, "a healthy run was taken away"
    driver.now_ms = time.time_ns() // 1_000_000
    for claim in await driver.claim_all():
        assert await driver.finish(claim)


async def test_resizing_under_load_strands_nothing(driver: QueueDriver) -> None:
    accepted: list[PredictionId] = []
    finished: set[PredictionId] = set()
    is_over = False

    async def submit(account: str) -> None:
        for number in range(100):
            streams = [random.randrange(32), random.randrange(32)]  # as callers do that read the size before
            accepted.append(await driver.submit(account=account, streams=streams, lane=LANES[number % 3]))

    async def direct(name: str) -> None:
        while not is_over or len(finished) < len(accepted):
            claims = await driver.claim(3, consumer=name)
            for claim in claims:
                if random.random() < 0.2:
                    await driver.release(claim)
                elif await driver.finish(claim):
                    finished.add(claim.id)
            if not claims:
                await anyio.sleep(0.001)

    async def resize() -> None:
        while not is_over:
            taken, read = await driver.scripts.resize(driver.queue, streams=random.randint(1, 32))
            assert taken <= read
            await anyio.sleep(0.001)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resize)
            for number in range(4):
                tasks.start_soon(direct, f"d{number}")
            async with anyio.create_task_group() as callers:
                for number in range(10):
                    callers.start_soon(submit, f"a{number}")
            is_over = True
    assert finished == set(accepted)
    stats = await driver.scripts.stats(driver.queue)
    assert (stats.waiting, stats.claimed, stats.live) == (0, 0, 0)
    assert await driver.scripts.resize(driver.queue, streams=1) == (1, 1)
