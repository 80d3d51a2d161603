"""Check the promises of the recoverer, the reconciler and the retirer on a real server, also at size and under load."""

import asyncio
import logging
from collections import Counter

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.replies import Requeued
from director.broker.scripts import Scripts
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
