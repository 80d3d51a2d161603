"""Check what idle queues cost a keeper, and that work in such a queue is still handled in time."""

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.gatherer import Arg, Gatherer
from director.broker.scripts import Scripts
from director.core.ids import QueueName, partition_of
from director.core.policy import Policy
from director.keeper.keeper import EXPIRER_TICK_S
from director.keeper.reaper import Reaper, ServerTime
from director.keeper.registry import AT_ONCE, GLANCE_S, WHOLE_S, Registry
from director.keeper.sweeps import Expired, expire, promote
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.clock import FakeClock
from tests.support.queue_driver import MODEL, VERSION, QueueDriver

pytestmark = pytest.mark.usefixtures("present")

LEASE_S = 15.0
SHORTEST_LIFE_S = 1  # the least that X-Start-By can ask for; Cancel-After is longer
MANY = 2 * AT_ONCE


class CountingGatherer(Gatherer):
    """Counts the scripts that are called, except the one that asks for the time."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        self.calls = 0

    async def call(self, name: str, keys: Sequence[str], args: Sequence[Arg], **options: Any) -> Any:
        self.calls += name != "contact"
        return await super().call(name, keys, args, **options)


class Keeping:
    """The frequent roles, on a clock of the test, over many queues of one model and some of others.

    All have looked at everything once, and found nothing.
    """

    def __init__(self, redis: Redis, gatherer: CountingGatherer, catalog: Catalog) -> None:
        self.clock = FakeClock()
        self.gatherer = gatherer
        scripts = Scripts(gatherer)
        self.registry = Registry(redis, catalog, self.clock)
        time = ServerTime(redis, scripts, self.clock, lease_s=LEASE_S)
        self.promote = partial(promote, scripts, self.registry)
        self.expire = partial(expire, scripts, self.registry)
        self.reaper = Reaper(scripts, self.registry, time, LEASE_S)

    async def prove_contact(self) -> None:
        for _ in range(int(LEASE_S) + 1):
            await self.reaper.run_once()
            self.clock.pass_time(1)

    async def sweep(self) -> int:
        before = self.gatherer.calls
        for run_once in (self.promote, self.expire, self.reaper.run_once):
            await run_once()
        return self.gatherer.calls - before


@pytest.fixture
async def queues(catalog: Catalog, queue: QueueName) -> list[QueueName]:
    models = [(MODEL, f"{number:012x}" + 52 * "0") for number in range(MANY)] + [
        (f"acme/m{n}", VERSION) for n in range(9)
    ]
    made = [await catalog.register(*each, schema=OPEN_SCHEMA, server="echo", policy=Policy()) for each in models]
    return [queue, *made]


@pytest.fixture
async def keeping(redis: Redis, catalog: Catalog, queues: list[QueueName]) -> AsyncGenerator[Keeping]:
    gatherer = CountingGatherer(redis)
    keeping = Keeping(redis, gatherer, catalog)
    await keeping.prove_contact()
    assert await keeping.sweep() == 2 * len(queues)  # the reaper looked as soon as contact was proven
    yield keeping
    await gatherer.aclose()


async def test_idle_queues_cost_no_script(keeping: Keeping) -> None:
    keeping.clock.pass_time(GLANCE_S)
    assert await keeping.sweep() == 0


async def test_active_queue_causes_no_calls_for_other_queues(keeping: Keeping, driver: QueueDriver) -> None:
    await driver.submit()
    keeping.clock.pass_time(GLANCE_S)
    for _ in range(2):
        assert await keeping.sweep() == 3
        assert await keeping.registry.awake("promoter") == [driver.queue]
        keeping.clock.pass_time(GLANCE_S)
    assert await driver.finish(await driver.claim_one())
    assert await keeping.sweep() == 0


async def test_every_queue_is_looked_at_periodically(keeping: Keeping, queues: list[QueueName]) -> None:
    keeping.clock.pass_time(WHOLE_S)
    for role in ("promoter", "expirer", "reaper"):
        assert await keeping.registry.awake(role) == sorted(queues)
        assert await keeping.registry.awake(role) == []


async def test_retry_due_at_once_is_promoted_on_the_next_tick(keeping: Keeping, driver: QueueDriver) -> None:
    await driver.submit()
    driver.now_ms -= 1000
    assert await driver.release(await driver.claim_one(), spent=True, delay_s=0.5) == "delayed"
    assert await keeping.promote() == {driver.queue: 1}


async def test_shortest_deadline_is_kept_to_the_tick(keeping: Keeping, driver: QueueDriver) -> None:
    await keeping.sweep()  # the last look was just before this
    driver.now_ms -= 1000 * SHORTEST_LIFE_S
    await driver.submit(lifetime_ms=1000 * SHORTEST_LIFE_S)
    assert SHORTEST_LIFE_S >= GLANCE_S, "else a glance may be too old to show it"
    keeping.clock.pass_time(SHORTEST_LIFE_S)
    assert await keeping.expire() == Expired(ended=1)
    assert EXPIRER_TICK_S < SHORTEST_LIFE_S


async def test_claim_is_recovered_as_soon_as_its_lease_expires(keeping: Keeping, driver: QueueDriver) -> None:
    await keeping.sweep()  # the last look was just before this
    driver.now_ms -= int(1000 * LEASE_S)
    await driver.submit()
    lost = await driver.claim_one(lease_s=LEASE_S - 1)
    for _ in range(int(LEASE_S)):
        keeping.clock.pass_time(1)
        found = await keeping.reaper.run_once()
        if found.claims:
            break
    assert [name for name, _ in found.claims] == [lost.id]
    assert await driver.finish(await driver.claim_one())


async def test_owed_webhook_is_seen_by_the_next_look(keeping: Keeping, driver: QueueDriver) -> None:
    assert await keeping.registry.owing() == []
    await driver.submit(webhook="https://example.com", webhook_events="completed")
    claim = await driver.claim_one()
    assert await driver.finish(claim)
    keeping.clock.pass_time(GLANCE_S)
    assert await keeping.registry.owing() == [partition_of(claim.id)]
    await driver.redis.delete(keys.owed(partition_of(claim.id)))
    keeping.clock.pass_time(GLANCE_S)
    assert await keeping.registry.owing() == []
