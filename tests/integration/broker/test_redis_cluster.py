"""Test the client of a Cluster: three masters look like one server, and no user needs to know which has a key."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial

import anyio
import pytest
from redis import exceptions
from redis.asyncio import Redis
from redis.crc import key_slot

from director.broker import keys
from director.broker.cluster import Cluster
from director.broker.durability import check
from director.broker.gatherer import Gatherer
from director.broker.redis_client import blocking_client, client, infos, servers
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable, UnsafeBackend
from director.core.ids import PredictionId, queue_name
from director.core.policy import Policy
from director.core.settings import CommonSettings
from director.local.launcher.processes import free_port
from director.operate.doctor import examine, look
from tests.support.clusters import RedisCluster, redis_cluster
from tests.support.eventually import eventually, turns
from tests.support.kinds import whole
from tests.support.queue_driver import VERSION, QueueDriver
from tests.support.servers import redis_server

PREDICTION = PredictionId("0" * 26)
NAMES = [f"k{number}" for number in range(12)]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisCluster]:
    with redis_cluster() as started:
        yield started


@pytest.fixture
async def redis(server: RedisCluster) -> AsyncIterator[Redis]:
    redis = whole(server.url)
    await redis.flushall()
    yield redis
    await redis.aclose()


@pytest.fixture
async def moved(server: RedisCluster, redis: Redis) -> str:
    """Move a key to a server other than the one that this client remembers."""
    await redis.set("k1", "v")
    server.move("k1")
    return "k1"


async def test_every_master_has_a_part_and_answers_for_it(redis: Redis) -> None:
    pipe = redis.pipeline(transaction=False)
    for name in NAMES:
        pipe.set(name, name)
        pipe.get(name)
    replies = await pipe.execute()
    assert replies[1::2] == [name.encode() for name in NAMES]
    assert [await redis.get(name) for name in NAMES] == replies[1::2]
    parts = [await master.dbsize() for master in await servers(redis)]
    assert len(parts) == 3
    assert (0 not in parts, sum(parts)) == (True, len(NAMES))
    assert len({info["run_id"] for info in await infos(redis, "server")}) == 3


async def test_transaction_is_limited_to_one_slot(redis: Redis) -> None:
    pipe = redis.pipeline(transaction=True)
    pipe.set("{a}1", 1)
    pipe.incr("{a}1")
    assert await pipe.execute() == [True, 2]
    pipe = redis.pipeline(transaction=True)
    for name in NAMES:
        pipe.set(name, "never")
    with pytest.raises(exceptions.ResponseError):
        await pipe.execute()
    assert await redis.dbsize() == 1


@pytest.mark.parametrize("how", ["command", "pipeline", "transaction"])
async def test_moved_key_is_found(redis: Redis, moved: str, how: str) -> None:
    if how == "command":
        assert await redis.get(moved) == b"v"
        return
    pipe = redis.pipeline(transaction=how == "transaction")
    for name in (moved,) if how == "transaction" else (*NAMES, moved):
        pipe.get(name)
    assert (await pipe.execute())[-1] == b"v"


async def test_first_error_of_a_pipeline_is_raised(redis: Redis) -> None:
    pipe = redis.pipeline(transaction=False)
    for name in NAMES:
        pipe.set(name, "no number")
        pipe.incr(name)
    with pytest.raises(exceptions.ResponseError, match="Command # 2 "):
        await pipe.execute()
    replies = await pipe.execute() if len(pipe) else []
    assert replies == [], "nothing of it is left"


async def test_first_calls_of_a_process_may_go_to_all_masters(server: RedisCluster, redis: Redis) -> None:
    for master in await servers(redis):
        await master.script_flush()
    fresh = client(server.url)  # it does not know yet which master has which key, so all calls leave in one write
    gatherer = Gatherer(fresh)
    queues = [queue_name(f"acme/model-{number}", VERSION) for number in range(12)]
    scripts = Scripts(gatherer)
    await asyncio.gather(*(scripts.register(queue, version=VERSION, policy=Policy()) for queue in queues))
    assert await redis.dbsize() == len(queues)
    await gatherer.aclose()
    await fresh.aclose()


async def test_scripts_follow_their_slot_to_another_master(server: RedisCluster, driver: QueueDriver) -> None:
    first = await driver.submit()
    server.move(keys.meta(driver.queue))
    second = await driver.submit()
    assert [claim.id for claim in await driver.claim(count=9)] == [first, second]


async def test_slot_in_transit_is_unavailable_and_nothing_is_written(server: RedisCluster, driver: QueueDriver) -> None:
    prediction = await driver.submit()
    with server.moving(keys.meta(driver.queue)) as move_keys:
        for half_moved in (False, True):
            if half_moved:
                move_keys(2)
            with pytest.raises(BackendUnavailable, match="TryAgainError"):
                await driver.submit()
            with pytest.raises(BackendUnavailable, match="TryAgainError"):
                await driver.claim()
            with pytest.raises(BackendUnavailable, match="TryAgainError"):
                await driver.stats()
    assert [claim.id for claim in await driver.claim(count=9)] == [prediction]


async def test_dead_master_does_not_affect_answers_of_another(redis: Cluster) -> None:
    gatherer = Gatherer(redis)
    scripts = Scripts(gatherer)
    await redis.get("k1")
    here, there = await two_accounts(redis)
    # as before a move to a server that has since disappeared
    owners, slots = redis.slots._owners, [key_slot(keys.listing(name).encode()) for name in (here, there)]
    away = owners[slots[1]]
    owners[slots[1]] = owners[slots[0]]
    await redis.slots.node(away).aclose()
    redis.slots._nodes[away] = client(f"redis://127.0.0.1:{free_port()}")
    first, second = await asyncio.gather(
        *(scripts.enlist(PREDICTION, account=account, oldest=PREDICTION) for account in (here, there)),
        return_exceptions=True,
    )
    assert (isinstance(first, Exception), type(second)) == (False, BackendUnavailable)
    assert isinstance(second, BackendUnavailable)
    assert second.is_untouched, "its master was never reached"
    await gatherer.aclose()


async def test_nothing_is_executed_when_no_master_is_found() -> None:
    redis = client(f"redis+cluster://127.0.0.1:{free_port()}")
    with pytest.raises(BackendUnavailable) as refused:
        await Scripts(Gatherer(redis)).enlist(PREDICTION, account="a", oldest=PREDICTION)
    assert refused.value.is_untouched
    await redis.aclose()


async def test_silent_master_delays_no_calls_to_another(server: RedisCluster, redis: Cluster) -> None:
    gatherer = Gatherer(redis, at_once=1)
    scripts = Scripts(gatherer)
    here, there = await two_accounts(redis)
    silent = await redis.slots.serving(keys.listing(there))
    await silent.client_pause(60_000, all=False)
    try:
        waits = asyncio.ensure_future(scripts.enlist(PREDICTION, account=there, oldest=PREDICTION))
        await turns(3)
        await scripts.enlist(PREDICTION, account=here, oldest=PREDICTION)
        assert not waits.done()
    finally:
        await silent.client_unpause()
    await waits
    await gatherer.aclose()


async def two_accounts(redis: Cluster) -> tuple[str, str]:
    owners: dict[Redis, str] = {}
    for name in NAMES:
        owners.setdefault(await redis.slots.serving(keys.listing(name)), name)
    here, there, *_ = owners.values()
    return here, there


async def test_key_in_transit_is_read_and_written_at_its_location(server: RedisCluster, redis: Redis) -> None:
    await redis.set("{k2}here", "1")
    with server.moving("{k2}") as move_keys:
        move_keys(9)
        assert await redis.get("{k2}here") == b"1"
        await redis.set("{k2}new", "2")
        pipe = redis.pipeline(transaction=False)
        pipe.get("{k2}here")
        pipe.get("{k2}new")
        assert await pipe.execute() == [b"1", b"2"]
    assert await redis.get("{k2}new") == b"2"


async def test_blocking_pop_works_on_every_master(server: RedisCluster, redis: Redis) -> None:
    waits = blocking_client(server.url, block_s=5)
    try:
        for name in NAMES[:3]:
            await redis.lpush(name, "1")
            assert await waits.blpop([name], timeout=5) == (name.encode(), b"1")
    finally:
        await waits.aclose()


async def test_channel_is_received_from_every_master(server: RedisCluster, redis: Redis) -> None:
    waits = blocking_client(server.url, block_s=5)
    async with waits.pubsub() as heard:
        await heard.subscribe("news")
        await eventually(lambda: heard.get_message(timeout=1), "it is subscribed")
        for master in await servers(redis):
            await master.publish("news", "1")
            await eventually(lambda: heard.get_message(ignore_subscribe_messages=True, timeout=1), "it is heard")
    await waits.aclose()


async def test_node_is_refused_as_a_server_and_a_server_as_a_node(server: RedisCluster) -> None:
    redis = client(f"redis://127.0.0.1:{server.masters[0].port}")
    with pytest.raises(UnsafeBackend, match=r"redis\+cluster://"):
        await check(redis, CommonSettings())
    await redis.aclose()
    with redis_server(loopback=True) as alone:
        redis = client(f"redis+cluster://127.0.0.1:{alone.port}")
        with pytest.raises(UnsafeBackend, match="not a node of a Redis Cluster"):
            await check(redis, CommonSettings())
        await redis.aclose()


async def test_weakest_master_determines_the_durability_level(server: RedisCluster, redis: Redis) -> None:
    assert (await check(redis, CommonSettings())).level == "always"
    weak = (await servers(redis))[1]
    await weak.config_set("appendfsync", "everysec")
    try:
        with pytest.raises(UnsafeBackend, match="everysec"):
            await check(redis, CommonSettings())
    finally:
        await weak.config_set("appendfsync", "always")


async def test_doctor_reports_a_healthy_cluster(server: RedisCluster, redis: Redis) -> None:
    answers = examine(await look(redis, CommonSettings(redis_url=server.url), SystemClock()))
    told = {answer.check: answer for answer in answers}
    assert told["cluster"].found == "16384 slots"
    assert [answer for answer in answers if answer.verdict == "fail"] == []


async def test_concurrent_clients_share_one_lookup_of_the_slots(server: RedisCluster) -> None:
    async def asked() -> int:
        stats = [await master.info("commandstats") for master in await servers(redis)]
        return sum(each.get("cmdstat_cluster|slots", {"calls": 0})["calls"] for each in stats)

    redis, crowd = client(server.url), client(server.url)
    before = await asked()
    async with anyio.create_task_group() as tasks:
        for name in NAMES * 9:
            tasks.start_soon(crowd.get, name)
    assert await asked() - before == 1
    await redis.aclose()
    await crowd.aclose()


async def test_a_cluster_whose_slots_are_not_given_out_is_away() -> None:
    config = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    with redis_server(loopback=True, config=config) as alone:
        redis = client(f"redis+cluster://127.0.0.1:{alone.port}")
        for ask_it in (partial(check, redis, CommonSettings()), partial(infos, redis, "memory")):
            with pytest.raises(BackendUnavailable):
                await ask_it()
        await redis.aclose()
