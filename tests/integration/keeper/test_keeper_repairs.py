"""Check the promises of the recoverer, the reconciler and the retirer on a real server, also at size and under load."""

import asyncio
import logging
import random
import time
from collections import Counter

import anyio
import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.replies import Requeued
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import LANES, PredictionId
from director.core.policy import Policy
from director.core.schema import Claim
from director.keeper.reaper import Recovered, Recoverer, ServerTime
from director.keeper.registry import Registry
from director.keeper.sweeps import SLICE, Reconciler, retire
from director.runtime.sweep import LIMIT
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.clock import FakeClock
from tests.support.queue_driver import MODEL, QueueDriver

pytestmark = pytest.mark.usefixtures("present")

LEASE_S = 15.0


@pytest.fixture
def recoverer(redis: Redis, scripts: Scripts, registry: Registry, clock: FakeClock) -> Recoverer:
    return make_recoverer(redis, scripts, registry, clock)


def make_recoverer(redis: Redis, scripts: Scripts, registry: Registry, clock: FakeClock) -> Recoverer:
    """Make a recoverer as the keeper does, with a contact of its own."""
    return Recoverer(redis, scripts, registry, ServerTime(redis, scripts, clock, lease_s=LEASE_S), clock, LEASE_S)


async def prove_contact(*recoverers: Recoverer, clock: FakeClock) -> None:
    for _ in range(int(LEASE_S)):
        for recoverer in recoverers:
            assert await recoverer.run_once() == Recovered(is_held_off=True)
        clock.pass_time(1)


async def look_through(recoverer: Recoverer) -> list[tuple[PredictionId, Requeued]]:
    found: list[tuple[PredictionId, Requeued]] = []
    while True:
        recovered = await recoverer.run_once()
        found += recovered.claims
        if recovered.is_complete:
            return found


async def orphan(driver: QueueDriver, *claims: Claim) -> set[PredictionId]:
    """Remove the leases of these claims, long after their director's last heartbeat."""
    for claim in claims:
        await driver.redis.zrem(keys.lease(driver.queue), claim.id)
        stream = keys.stream(driver.queue, claim.record.lane, int(await driver.field(claim.id, "stream")))
        mid = await driver.field(claim.id, "mid")
        await driver.redis.xclaim(stream, keys.GROUP, "d1", 0, [mid], idle=int(2 * LEASE_S * 1000), justid=True)
    return {claim.id for claim in claims}


async def test_one_pass_finds_exactly_the_orphans_of_all_streams(
    recoverer: Recoverer, driver: QueueDriver, clock: FakeClock
) -> None:
    for number in range(0, 16, 3):
        for lane in LANES:
            await driver.submit(streams=[number], lane=lane)
            await driver.submit(streams=[number], lane=lane)
    claims = await driver.claim_all()
    lost = await orphan(driver, *claims[::2])
    await prove_contact(recoverer, clock=clock)
    assert dict(await look_through(recoverer)) == dict.fromkeys(lost, "waiting")
    assert set(await driver.extend(*claims[1::2])) == {"held"}
    assert {claim.id for claim in await driver.claim_all(consumer="d2")} == lost
    assert await look_through(recoverer) == []


async def test_stream_with_many_orphans_is_searched_to_its_end(
    recoverer: Recoverer, driver: QueueDriver, clock: FakeClock
) -> None:
    for _ in range(LIMIT + 20):
        await driver.submit(streams=[3])
    lost = await orphan(driver, *await driver.claim_all())
    await prove_contact(recoverer, clock=clock)
    assert {name for name, _ in await look_through(recoverer)} == lost


async def test_two_recoverers_recover_each_orphan_once(
    redis: Redis, scripts: Scripts, registry: Registry, driver: QueueDriver, clock: FakeClock
) -> None:
    for _ in range(LIMIT + 20):
        await driver.submit()
    lost = await orphan(driver, *await driver.claim_all())
    pair = [make_recoverer(redis, scripts, registry, clock) for _ in range(2)]
    await prove_contact(*pair, clock=clock)
    both = await asyncio.gather(*(look_through(recoverer) for recoverer in pair))
    assert Counter(name for found in both for name, _ in found) == Counter(lost)
    assert {claim.record.attempt for claim in await driver.claim_all()} == {2}


async def test_faulty_queue_does_not_stop_the_search_of_others(
    recoverer: Recoverer, driver: QueueDriver, clock: FakeClock, catalog: Catalog
) -> None:
    broken = await catalog.register(MODEL, "b2" * 32, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    for lane in LANES:
        await driver.redis.set(keys.stream(broken, lane, 15), "no stream", ex=60)
    await driver.submit()
    lost = await orphan(driver, await driver.claim_one())
    await prove_contact(recoverer, clock=clock)
    assert {name for name, _ in await look_through(recoverer)} == lost


async def compare(reconciler: Reconciler) -> tuple[list[PredictionId], int]:
    """Run a whole pass. Return what was repaired, and in how many rounds."""
    repaired: list[PredictionId] = []
    rounds = 0
    while True:
        rounds += 1
        reconciled = await reconciler.run_once()
        repaired += [name for name, _ in reconciled.repairs]
        if reconciled.is_complete:
            return repaired, rounds


async def test_entries_of_a_lost_stream_are_restored_in_slices(
    scripts: Scripts, registry: Registry, driver: QueueDriver, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    reconciler = Reconciler(scripts, registry, clock, LEASE_S)
    await driver.have_slots(2 * SLICE)
    lost = {await driver.submit(streams=[3 + number % 2]) for number in range(SLICE + 40)}
    await driver.redis.delete(keys.stream(driver.queue, "normal", 3))
    lost -= {PredictionId(name) for names in (await driver.entries()).values() for name in names}
    with caplog.at_level(logging.WARNING, logger="director.keeper.sweeps"):
        repaired, rounds = await compare(reconciler)
    assert (set(repaired), rounds) == (lost, 2)
    assert len(repaired) == len(lost) == len(caplog.records)
    assert reconciler.repaired == {"placed": len(lost)}
    assert await compare(reconciler) == ([], 2)
    assert len({claim.id for claim in await driver.claim_all()}) == SLICE + 40


async def test_two_reconcilers_repair_each_prediction_once(
    scripts: Scripts, registry: Registry, driver: QueueDriver, clock: FakeClock
) -> None:
    await driver.have_slots(2 * SLICE)
    lost = {await driver.submit(streams=[3]) for _ in range(SLICE + 40)}
    await driver.redis.delete(keys.stream(driver.queue, "normal", 3))
    pair = [Reconciler(scripts, registry, clock, LEASE_S) for _ in range(2)]
    both = await asyncio.gather(*(compare(reconciler) for reconciler in pair))
    assert Counter(name for repaired, _ in both for name in repaired) == Counter(lost)
    claims = await driver.claim_all()
    assert Counter(claim.id for claim in claims) == Counter(lost)


async def test_directors_silent_for_an_hour_without_claims_are_forgotten(
    scripts: Scripts, registry: Registry, driver: QueueDriver, clock: FakeClock
) -> None:
    now_ms = driver.now_ms
    driver.now_ms -= 2 * 3_600_000
    await driver.submit()
    await driver.claim_one(consumer="holds", lease_s=3 * 3600)
    for name in ("gone1", "gone2", "holds"):
        await driver.extend(consumer=name)
    driver.now_ms = now_ms
    await driver.extend(consumer="here")
    both = await asyncio.gather(*(retire(scripts, registry) for _ in range(2)))
    assert Counter(name for retired in both for name in retired.get(driver.queue, [])) == {
        "gone1": 1,
        "gone2": 1,
    }
    assert set(await driver.members(keys.directors(driver.queue))) == {"holds", "here"}


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


LOAD_LEASE_S = 1.0


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
            for claim in await self.driver.claim(1, consumer=name, lease_s=LOAD_LEASE_S):
                for _ in range(int(run_s / (LOAD_LEASE_S / 3))):
                    await anyio.sleep(LOAD_LEASE_S / 3)
                    self.driver.now_ms = time.time_ns() // 1_000_000
                    await self.driver.extend(claim, consumer=name, lease_s=LOAD_LEASE_S)
                if await self.driver.finish(claim):
                    self.finished.append(claim.id)
                else:
                    self.refused += 1
            await anyio.sleep(0.01)

    async def die_holding(self, count: int) -> None:
        for _ in range(count):
            self.abandoned.add((await self.driver.claim_one(consumer="dead", lease_s=LOAD_LEASE_S)).id)


@pytest.mark.heavy
async def test_recoverer_alone_finds_every_orphan_under_load(
    redis: Redis, scripts: Scripts, catalog: Catalog, driver: QueueDriver
) -> None:
    """Reaper and reconciler do not run here. A live director has its leases again after its next heartbeat."""
    load, clock = Load(driver), SystemClock()
    contact = ServerTime(redis, scripts, clock, lease_s=LOAD_LEASE_S)
    recoverer = Recoverer(redis, scripts, Registry(redis, catalog, clock, keep_s=0), contact, clock, LOAD_LEASE_S)
    period_s = 2 * LOAD_LEASE_S

    async def keep_contact() -> None:
        while True:
            await contact.proven_ms()
            await anyio.sleep(LOAD_LEASE_S / 10)

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
        await anyio.sleep(LOAD_LEASE_S)
        await redis.delete(keys.lease(driver.queue))
        back: set[PredictionId] = set()
        for _ in range(2):
            await anyio.sleep(period_s)
            back |= await look_through()
        assert back == load.abandoned
        assert len(load.abandoned) == 100
        load.is_over = True
        await anyio.sleep(3 * LOAD_LEASE_S + 0.5)
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
