"""Check what a keeper shows at /metrics: the state of all queues, by a cheap look, and the age of that look."""

import asyncio
import time

import httpx
import pytest
from redis.asyncio import Redis

from director.broker.gatherer import Gatherer
from director.broker.scripts import Scripts
from director.core.ids import QueueName
from director.core.policy import Objective, Objectives, Policy
from director.core.samples import MOST, PERIOD_S
from director.core.settings import KeeperSettings
from director.keeper.metrics import CROWD, LOOK_S, SHARE, STALE_S, Observer
from director.keeper.registry import Registry
from director.keeper.shares import Shares
from director.operate.overview import CloserLook, Overview
from director.runtime.metric_table import QueueNames
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.directors import Directors
from director.store.owed import Owed
from director.store.queues import Queues
from tests.integration.keeper.conftest import keeper_at
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.queue_driver import MODEL, VERSION, QueueDriver
from tests.support.scrape import Scrape, scrape
from tests.support.servers import RedisServer
from tests.support.sink import Answer, sink


async def shows(http: httpx.AsyncClient, name: str, value: float, **labels: str) -> Scrape:
    return await eventually(
        lambda: scrape(http), f"{name} is {value}", until=lambda shown: shown.value(name, **labels) == value
    )


def observer_of(
    redis: Redis, scripts: Scripts, catalog: Catalog, clock: FakeClock, url: str, most: int = 500
) -> Observer:
    registry = Registry(redis, catalog, clock, keep_s=0)
    settings, overview = KeeperSettings(redis_url=url), overview_of(redis, scripts, catalog, clock)
    return Observer(redis, scripts, registry, QueueNames(most), settings, clock, Shares(redis, clock), overview)


def overview_of(redis: Redis, scripts: Scripts, catalog: Catalog, clock: FakeClock) -> Overview:
    owed = Owed(redis, catalog)
    return Overview(Queues(redis, catalog, scripts), Directors(redis), owed, CloserLook(redis, owed), clock)


async def test_metrics_show_queue_state_and_acts_of_roles(server: RedisServer, present: QueueDriver) -> None:
    await Accounts(present.redis).create_token("its-caller")
    queue = present.queue
    async with sink() as away:
        away.answer = Answer(status=500)
        present.now_ms -= 60_000
        await present.submit(account="its-caller", webhook=away.url, webhook_events="completed")
        await present.have_slots(3)
        assert await present.finish(await present.claim_one())
        await present.submit()
        await present.claim_one(lease_s=1)  # long expired
        for lane in ("high", "low", "low"):
            await present.submit(lane=lane)
        await present.pause()
        async with keeper_at(server.url, lease_s=3, webhook_allow="loopback", webhook_schedule="1h") as http:
            await shows(http, "director_reaped_total", 1, queue=queue, became="waiting")
            shown = await shows(http, "director_queue_waiting", 2, queue=queue, lane="low")
            assert shown.value("director_queue_waiting", queue=queue, lane="high") == 1
            assert shown.value("director_queue_paused", queue=queue) == 1
            assert shown.value("director_queue_directors", queue=queue) == 0, "its last sign is a minute old"
            assert 59 < (shown.value("director_queue_oldest_seconds", queue=queue) or 0) < 90
            assert shown.value("director_queues") == 1
            assert shown.value("director_webhooks_owed") == 1
            assert 59 < (shown.value("director_webhooks_owed_oldest_seconds") or 0) < 90
            assert shown.value("director_redis_durable") == 1
            assert (shown.value("director_redis_memory_bytes") or 0) > 100_000
            assert (shown.value("director_state_age_seconds") or 99) < 30
            told = await shows(http, "director_webhooks_total", 1, outcome="failed")
            assert told.value("director_webhook_seconds_count", ok="no") == 1
            assert told.value("director_redis_up") == 1
            for private in ("its-caller", away.url, "127.0.0.1", "loopback"):
                assert private not in told.text


@pytest.mark.faults
async def test_metrics_answer_while_redis_is_away_and_heal(mortal: RedisServer) -> None:
    async with keeper_at(mortal.url) as http:
        await shows(http, "director_queues", 0)
        mortal.kill()
        shown = await shows(http, "director_redis_up", 0)
        assert shown.total("director_redis_errors_total") >= 1
        mortal.start()
        await shows(http, "director_redis_up", 1)


async def test_too_old_state_is_not_shown(
    server: RedisServer, redis: Redis, scripts: Scripts, catalog: Catalog, queue: QueueName
) -> None:
    clock = FakeClock()
    observer = observer_of(redis, scripts, catalog, clock, server.url)
    assert observer.state is None
    clock.pass_time(5)
    assert observer.age_s == 5
    await observer.run_once()
    clock.pass_time(STALE_S)
    assert (observer.age_s, observer.state is None) == (STALE_S, False)
    clock.pass_time(1)
    assert observer.state is None
    await observer.run_once()
    assert observer.state is not None


async def test_objectives_are_shown_even_when_nothing_starts(
    redis: Redis, scripts: Scripts, catalog: Catalog, driver: QueueDriver, server: RedisServer
) -> None:
    clock = FakeClock()
    driver.now_ms = clock.now_ms()
    objectives: Objectives = {"normal": Objective(share=0.9, within_s=5)}
    await scripts.register(driver.queue, version=VERSION, policy=Policy(objectives=objectives))
    observer = observer_of(redis, scripts, catalog, clock, server.url)
    await driver.submit()
    clock.pass_time(6)
    driver.now_ms = clock.now_ms()
    assert await scripts.sample(driver.queue, period_s=PERIOD_S, most=MOST, now_ms=driver.now_ms)
    burning = (await observer.run_once())["director_objective_burn_rate"]
    expected = {(driver.queue, "normal", "5m"): 10.0, (driver.queue, "normal", "1h"): 10.0}
    assert burning == pytest.approx(expected)


async def test_heaviest_account_is_shown_as_share_without_name(
    server: RedisServer, redis: Redis, scripts: Scripts, catalog: Catalog, present: QueueDriver
) -> None:
    observer = observer_of(redis, scripts, catalog, FakeClock(), server.url)
    for number in range(CROWD):
        await present.submit(account="loud" if number % 4 else f"quiet{number}")
    state = await observer.run_once()
    assert state["director_queue_largest_share"] == {(present.queue,): 0.75}
    assert state["director_queue_tenants"] == {(present.queue,): 1 + CROWD / 4}
    assert "loud" not in repr(state)
    assert state["director_queue_tenant_waiting"] == {}
    asked = KeeperSettings(redis_url=server.url, metrics_tenants=True)
    registry, shares = Registry(redis, catalog, FakeClock(), keep_s=0), Shares(redis, FakeClock())
    overview = overview_of(redis, scripts, catalog, FakeClock())
    state = await Observer(redis, scripts, registry, QueueNames(9), asked, FakeClock(), shares, overview).run_once()
    named = state["director_queue_tenant_waiting"]
    assert len(named) == 5
    assert (named[present.queue, "loud"], named[present.queue, "quiet0"]) == (15, 1)
    unnamed = Observer(redis, scripts, registry, QueueNames(0), asked, FakeClock(), shares, overview)
    assert (await unnamed.run_once())["director_queue_tenant_waiting"] == {}


class Counting(Gatherer):
    asked = 0

    async def call(self, name, *given, **options):  # type: ignore[no-untyped-def]
        self.asked += name == "stats"
        return await super().call(name, *given, **options)


async def make_queues(catalog: Catalog, count: int) -> list[QueueName]:
    versions = [f"{number:012x}" + 52 * "0" for number in range(count)]
    made: list[QueueName] = []
    for start in range(0, count, 100):
        registering = (
            catalog.register(MODEL, version, schema=OPEN_SCHEMA, server="", policy=Policy())
            for version in versions[start : start + 100]
        )
        made += await asyncio.gather(*registering)
    return made


async def used_s(redis: Redis) -> float:
    """Return the time that the server has spent on commands. Commands of a script are part of the script."""
    stats = await redis.info("commandstats")
    outer = (
        "cmdstat_evalsha",
        "cmdstat_hlen",
        "cmdstat_hgetall",
        "cmdstat_smembers",
        "cmdstat_exists",
        "cmdstat_config|get",
    )
    return sum(stats[name]["usec"] for name in outer if name in stats) / 1e6


async def test_idle_queues_are_read_each_minute_and_busy_ones_always(
    server: RedisServer, redis: Redis, catalog: Catalog, present: QueueDriver
) -> None:
    await make_queues(catalog, 100)
    clock, gatherer = FakeClock(), Counting(redis)
    observer = observer_of(redis, Scripts(gatherer), catalog, clock, server.url)
    await observer.run_once()
    assert gatherer.asked == 101
    await present.submit()
    for _ in range(3):
        clock.pass_time(LOOK_S)
        state = await observer.run_once()
        assert state["director_queue_waiting"][present.queue, "normal"] == 1
    assert gatherer.asked == 101 + 3
    assert await present.finish(await present.claim_one())
    clock.pass_time(LOOK_S)
    state = await observer.run_once()
    assert state["director_queue_waiting"][present.queue, "normal"] == 0, "it fell asleep, and is seen once more"
    assert gatherer.asked == 101 + 4
    clock.pass_time(60)
    await observer.run_once()
    assert gatherer.asked == 101 + 4 + 101
    await gatherer.aclose()


@pytest.mark.heavy
@pytest.mark.parametrize("count", [200, 1000, 2000])
async def test_look_takes_a_hundredth_of_the_servers_time(
    server: RedisServer, redis: Redis, scripts: Scripts, catalog: Catalog, count: int
) -> None:
    queues = await make_queues(catalog, count)
    now_ms = time.time_ns() // 1_000_000
    for start in range(0, count, 100):
        drivers = [QueueDriver(redis, scripts, queue) for queue in queues[start : start + 100]]
        for driver in drivers:
            driver.now_ms = now_ms
        await asyncio.gather(*(driver.submit() for driver in drivers))
    observer = observer_of(redis, scripts, catalog, FakeClock(), server.url)
    await observer.run_once()
    before = await used_s(redis)
    state = await observer.run_once()
    took = await used_s(redis) - before
    assert sum(state["director_queue_waiting"].values()) == count
    assert len(state["director_queue_claimed"]) == min(count, 501)
    print(f"{count} queues: {1000 * took:.1f} ms of the server's time, each {observer.pause_s:.1f} s")
    assert took <= SHARE * observer.pause_s
