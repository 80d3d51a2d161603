"""Call every script on a one-node cluster, which refuses a key of another slot than that of KEYS[1]."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
import redis as blocking
from redis import exceptions
from redis.asyncio import Redis

from director.broker import keys
from director.broker.gatherer import Arg, Gatherer
from director.broker.redis_client import client
from director.broker.replies import Migrated
from director.broker.scripts import Scripts
from director.core.account_limits import Bucket
from director.core.clock import SystemClock
from director.core.data_bytes import Counted
from director.core.ids import lowest_id_at, new_file_id, partition_of, queue_name
from director.core.policy import Policy
from director.keeper.registry import Registry
from director.local.launcher.processes import free_port
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.lua.test_headers import NAMES
from tests.support.eventually import wait_until
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver
from tests.support.servers import RedisServer, redis_server


class NotingGatherer(Gatherer):
    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        self.called: set[str] = set()

    def call(self, name: str, keys: Sequence[str], args: Sequence[Arg], **options: Any) -> asyncio.Future[Any]:
        self.called.add(name)
        return super().call(name, keys, args, **options)


@pytest.fixture(scope="module")
def cluster(server: RedisServer) -> Iterator[RedisServer]:
    config = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    with redis_server(server.kind, loopback=True, config=config) as started:
        with blocking.Redis(unix_socket_path=str(started.socket)) as redis:
            redis.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            # it takes 2 s to believe in itself
            wait_until(lambda: redis.execute_command("CLUSTER INFO")["cluster_state"] == "ok", "it serves")
        yield started


@pytest.fixture
async def redis(cluster: RedisServer) -> AsyncIterator[Redis]:
    redis = client(cluster.url)
    try:
        await redis.flushall()
        yield redis
    finally:
        await redis.aclose()


async def test_a_key_of_another_slot_raises_an_error_here(redis: Redis) -> None:
    script = "#!lua\nreturn redis.call('GET', '{p2}:rec:x')"
    with pytest.raises(exceptions.ResponseError):
        await redis.eval(script, 1, "{p1}:rec:x")


async def test_a_keepers_glance_asks_for_one_slot_at_a_time(redis: Redis) -> None:
    gatherer = Gatherer(redis)
    catalog = Catalog(redis, Scripts(gatherer), SystemClock())
    queues = [
        await catalog.register(model, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
        for model in (MODEL, "acme/other")
    ]
    registry = Registry(redis, catalog, SystemClock(), keep_s=0)
    assert await registry.awake("a role") == queues  # its first look is at all
    assert await registry.awake("a role") == []
    await QueueDriver(redis, Scripts(gatherer), queues[0]).submit()
    assert await registry.awake("a role") == queues[:1]
    await gatherer.aclose()


async def test_every_script_stays_in_one_slot(redis: Redis) -> None:
    gatherer = NotingGatherer(redis)
    scripts = Scripts(gatherer)
    catalog = Catalog(redis, scripts, SystemClock())
    queue = await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    driver = QueueDriver(redis, scripts, queue)

    for lane in ("high", "normal", "low"):
        prediction_id = driver.new_id()
        counts = Counted(9, 2**42)
        await scripts.enlist(prediction_id, account=ACCOUNT, oldest=lowest_id_at(0), counts=counts, most=99)
        bound = ("bound", "body")
        await scripts.bind(prediction_id, account=ACCOUNT, model=MODEL, idempotency=bound, instead_of=None)
        await driver.submit(
            prediction_id,
            lane=lane,
            lifetime_ms=60_000,
            webhook="https://example.com",
            webhook_events="completed",
            idempotency=(lane, "body"),
        )
    finished, released, lost = await driver.claim(3)
    await driver.begin(finished, ("output", b"1"), ("logs", b'"x"'))
    assert await driver.extend(finished, released) == ["held", "held"]
    assert await scripts.get(finished.id) is not None
    assert await scripts.story(released.id) is not None
    assert await scripts.replay(finished.id, after=1, count=9, most_bytes=99) is not None
    assert await driver.finish(finished, output=b"1")
    assert await driver.release(released, spent=True, delay_s=1) == "delayed"
    driver.pass_time(16)
    assert await driver.reap() == {lost.id: "waiting"}
    assert await scripts.promote(queue, limit=9, now_ms=driver.now_ms) == 1
    assert await scripts.resize(queue, streams=4)
    second = queue_name(MODEL, "b2" * 32)
    assert await scripts.register(second, version="b2" * 32, policy=Policy())
    for one, other in ((queue, second), (second, queue)):
        moved = await scripts.migrate(one, to=other, start=0, count=9, only_asks=False, now_ms=driver.now_ms)
        assert moved == Migrated(next=-1, moved=2, claimed=0, held=0)
    assert (await scripts.stats(queue)).waiting == 2
    away = await driver.submit(idempotency=("away", "body"))
    assert await scripts.depart(queue, [(away, ACCOUNT)], site="far", now_ms=driver.now_ms) == ["leaving"]
    assert await scripts.stay(away, site="far", now_ms=driver.now_ms) == "waiting"
    assert await scripts.depart(queue, [(away, ACCOUNT)], site="far", now_ms=driver.now_ms) == ["leaving"]
    flat = [part for pair in (await driver.redis.hgetall(keys.record(away))).items() for part in pair]
    assert await scripts.vacate(away, site="far", now_ms=driver.now_ms) == "moved"
    held = (keys.idempotency(account=ACCOUNT, model=MODEL, digest="again"), b"held", 9)
    assert (
        await scripts.arrive(away, queue, move=3, record=flat, events=[b"e"], idempotency=held, limits_rev=1) == "here"
    )
    assert await driver.cancel(away) == "canceled"
    again = await driver.claim_one()
    assert await driver.cancel(again.id) == "asked"
    driver.pass_time(60)
    assert await scripts.expire(queue, limit=9, now_ms=driver.now_ms) == (1, 1)
    partition = partition_of(finished.id)
    owed = await scripts.due(partition, limit=9, hold_s=30, now_ms=driver.now_ms)
    assert finished.id in owed
    assert await scripts.deliver(finished.id, outcome="delivered", delay_s=None)
    assert await scripts.forward(partition, ACCOUNT, "?", limit=9) == 0
    assert await scripts.redeliver(finished.id, account=ACCOUNT) == "owed"
    assert await scripts.replay(finished.id, after=0, count=9, most_bytes=99) is not None

    bucket = Bucket("create", rate=1.0, burst=1)
    assert (await scripts.reserve(ACCOUNT, bucket, id="n")).allowed
    assert (await scripts.reserve(ACCOUNT, 60, id=finished.id, asked_s=1)).allowed
    assert await scripts.spend(ACCOUNT, prediction_id=finished.id, token=(bucket, "n")) == (True, True)

    assert (await scripts.budget(ACCOUNT, finished.id, (9, 9, 9, 9), tokens=1, compute_s=1)).allowed
    assert await scripts.settle(ACCOUNT, finished.id, tokens=1)
    assert await scripts.fold(partition, "202701", ACCOUNT, [(f"15 {MODEL} ", f"00 {MODEL} ")], kept_s=9) == 0

    batch = new_file_id(driver.now_ms)
    at = {"created_ms": driver.now_ms, "ttl_s": 9, "most": 9, "most_live": 9, "fields": {"status": "validating"}}
    assert await scripts.open_batch(ACCOUNT, batch, **at) == "opened"  # type: ignore[arg-type]
    assert await scripts.lease_batch(ACCOUNT, batch, token="t", lease_s=9) == "validating"
    written = await scripts.write_batch(ACCOUNT, batch, token="t", allowed=["validating"], nonce="n", fields={})
    assert written == "written"
    assert await scripts.deploy(ACCOUNT, "d", was=b"", becomes=b"{}", created_ms=1, most=9) == "written"
    tried = await scripts.split(f"{ACCOUNT}/d", b"", b"{}", step="begins", most=9, queue=queue, detail="d")
    assert tried == "written"
    assert await scripts.count_split(f"{ACCOUNT}/d", is_=b"{}", was="", cursor="1-0", counts={"a": 1}) == "counted"
    assert await scripts.grant("stranger", "s:0", link="l:0", life_s=1, most=9) is None
    assert not await scripts.allow("0" * 64, {"scopes": "read"}, expires_ms=0)
    assert await scripts.rotate("stranger", secret="whsec_", keep_s=1) == "unknown"
    await scripts.contact("run", silence_s=7)
    await driver.pause()
    await driver.pause(paused=False)
    await scripts.limit(queue, ACCOUNT, weight=2, most_running=9)
    await scripts.bound(queue, mode="bounded", max_queued=99)
    assert await scripts.hours(queue, "00:00-24:00 UTC", account=ACCOUNT, revision=1)
    died = await driver.submit(lane="high")
    for _ in range(3):
        await driver.release(await driver.claim_one(consumer="gone"), spent=True)
    assert await scripts.revive(died, now_ms=driver.now_ms)
    for _ in range(3):
        await driver.release(await driver.claim_one(consumer="gone"), spent=True)
    assert await scripts.drop(died, queue)
    assert await scripts.erase(died, account=ACCOUNT) == "erased"
    driver.pass_time(3600)
    await driver.extend(consumer="d1")
    await redis.zadd(keys.directors(queue), {"gone": 0})
    assert await scripts.retire(queue, silent_s=3600, now_ms=driver.now_ms) == "gone"
    waits = await driver.submit(lane="low", streams=[0])
    await redis.delete(keys.stream(queue, "low", 0))
    following, repaired = await scripts.reconcile(queue, start=0, count=99, lease_s=15, now_ms=driver.now_ms)
    assert (following, dict(repaired)[waits]) == (0, "placed")
    orphan = await driver.claim_one()
    await redis.zrem(keys.lease(queue), orphan.id)
    number = int(await driver.field(orphan.id, "stream"))
    recovered = await scripts.recover(queue, orphan.record.lane, number, cursor="0-0", count=9, idle_s=0)
    assert recovered == ("0-0", [(orphan.id, "waiting")])

    assert await scripts.amend("acme/said", "make", said={"created": "1"}, nonce="n") == "done"
    assert await scripts.amend(MODEL, "change", said={"setup_run": b"{}"}, version=VERSION) == "done"
    assert await scripts.configure("acme/said", b"{}", by="ops", at_ms=1, was=None, nonce="n") == ("done", 1)
    assert await scripts.withdraw("acme/said", "model") == "done"

    await scripts.weigh(ACCOUNT, Counted(20, 2**43), counts)
    assert await scripts.retain(ACCOUNT, 20, most=9) is not None
    await scripts.recount(ACCOUNT, 5, until_ms=2**43)
    assert await scripts.delist(prediction_id, account=ACCOUNT, counted=counts)
    assert (await scripts.stow(ACCOUNT, "f", 9, most=9, until_ms=2**42)).total == 9
    noted = {"kind": "limits_set", "by": "ops", "account": ACCOUNT, "queue": "", "detail": b"{}", "at_ms": 1}
    assert await scripts.note("n", **noted)

    assert await scripts.sample(queue, period_s=10, most=9)
    assert (await scripts.demand(queue, soon_s=60)).runnable == 1
    await scripts.order(queue, "pin")
    assert (await scripts.survey(queue)).order == "pin"

    assert await scripts.unregister(queue) == "live"

    assert gatherer.called == set(NAMES), "a script that this walk leaves out"
    await gatherer.aclose()
