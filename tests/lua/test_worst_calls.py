"""Each script, called with the worst that API, directors, keepers and operators send, on deep queues of many tenants.

Scripts hold the one thread of Redis. So no call may send many commands, answer with many bytes or take long.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final

import pytest
from msgspec import Struct

from api.batches.lines import MOST_LINES
from api.predictions.predictions import MOST_BYTES, MOST_IN_PAGE
from api.services.stream_readers import PAGE_BYTES, PAGE_EVENTS
from director.broker import keys
from director.broker.gatherer import Arg, Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.account_limits import Bucket
from director.core.clock import SystemClock
from director.core.data_bytes import Counted
from director.core.ids import PredictionId, lowest_id_at, new_file_id, partition_of, queue_name
from director.core.policy import MAX_STREAMS, Policy
from director.core.schema import Claim
from director.core.split import SIDES
from director.core.trends import bucket
from director.execution.consumer import MOST_AT_ONCE
from director.keeper import courier, sweeps
from director.store import batches, departure, queues
from director.store.accounts import SCOPES
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.ledger import FOLDED_AT_ONCE
from director.store.sessions import MOST as MOST_SESSIONS
from director.webhooks.delivery import FORWARD
from tests.lua.test_headers import NAMES
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver
from tests.support.servers import RedisServer, redis_server

pytestmark = [pytest.mark.faults]

TENANTS: Final = [f"tenant-{number:03d}" for number in range(200)]
OF_EACH: Final = 15
OF_ONE: Final = 1_500
DIRECTORS: Final = 50
CLAIMED: Final = 300
EVENTS: Final = 2_000
LARGE: Final = 1 << 20
MOST_TIMES: Final = bucket(30 * 86_400_000)  # of a run of a month

# The bounds of one call. docs/reference/internals/scripts.md states them
MOST_COMMANDS: Final = 3_600
SLOWEST_US: Final = 50_000
SMALL_REPLY: Final = 8 * 1024
MOST_REPLY: Final = {
    "claim": MOST_AT_ONCE * (LARGE + 2_048),  # each with its input
    "get": 2 * LARGE + SMALL_REPLY,  # an output and logs that are asked for whole
    "replay": max(MOST_BYTES, PAGE_BYTES) + SMALL_REPLY,
}


class Cost(Struct, frozen=True):
    commands: int
    reply_bytes: int
    took_us: int


class MeasuringGatherer(Gatherer):
    """Notes what each call of a script cost, one call at a time."""

    def __init__(self, redis: Any) -> None:
        super().__init__(redis)
        self.redis: Any = redis
        self._turn = asyncio.Lock()
        self.measures = False
        self.costs: dict[str, list[Cost]] = {}

    def call(self, name: str, keys: Sequence[str], args: Sequence[Arg], **options: Any) -> asyncio.Future[Any]:
        sent = super().call
        if not self.measures:
            return sent(name, keys, args, **options)
        return asyncio.ensure_future(self._measured(name, lambda: sent(name, keys, args, **options)))

    async def _measured(self, name: str, send: Any) -> Any:
        async with self._turn:
            await self.redis.config_resetstat()
            await self.redis.slowlog_reset()
            reply = await send()
            slow = await self.redis.slowlog_get(16)
            stats = await self.redis.info("commandstats")
        ran = {command: row["calls"] for command, row in stats.items() if "slowlog" not in command}
        took_us = max(entry["duration"] for entry in slow if entry["command"].upper().startswith(b"EVALSHA"))
        self.costs.setdefault(name, []).append(Cost(sum(ran.values()), weight(reply), took_us))
        return reply


def weight(reply: Any) -> int:
    if isinstance(reply, bytes | str):
        return len(reply)
    if isinstance(reply, list | tuple):
        return sum(map(weight, reply))
    return 8


@pytest.fixture(scope="module")
def alone() -> Iterator[RedisServer]:
    with redis_server(config={"slowlog-log-slower-than": "0", "slowlog-max-len": "64"}) as server:
        yield server


@pytest.fixture
async def gatherer(alone: RedisServer) -> AsyncIterator[MeasuringGatherer]:
    redis = client(alone.url)
    await redis.flushall()
    gatherer = MeasuringGatherer(redis)
    yield gatherer
    await gatherer.aclose()
    await redis.aclose()


@pytest.fixture
async def deep(gatherer: MeasuringGatherer) -> QueueDriver:
    """Return a driver of a queue where all tenants wait, one of them with most of it, and many directors are alive."""
    scripts = Scripts(gatherer)
    catalog = Catalog(gatherer.redis, scripts, SystemClock())
    policy = Policy(streams=MAX_STREAMS, size=4, breaker_after=0)
    queue = await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="echo", policy=policy)
    driver = QueueDriver(gatherer.redis, scripts, queue)
    for number in range(DIRECTORS):
        await driver.have_slots(4, consumer=f"d{number}")
    many = [tenant for tenant in TENANTS for _ in range(OF_EACH)] + [TENANTS[0]] * OF_ONE
    asked = {"metered": True, "lifetime_ms": 10**7, "webhook": "https://h.example", "webhook_events": "completed"}
    lanes = itertools.cycle(("high", "normal", "low"))
    for start in range(0, len(many), 200):
        await asyncio.gather(
            *(
                driver.submit(account=one, lane=next(lanes), most_running=9, **asked)
                for one in many[start : start + 200]
            )
        )
    return driver


async def claimed(driver: QueueDriver, count: int, *, consumer: str = "d1") -> list[Claim]:
    claims: list[Claim] = []
    for _ in range(count):
        if len(claims) < count:
            claims += await driver.claim(MOST_AT_ONCE, consumer=consumer)
    assert len(claims) >= count, len(claims)
    return claims


async def test_no_call_of_a_script_is_long_or_large(deep: QueueDriver, gatherer: MeasuringGatherer) -> None:
    gatherer.measures = True
    await waiting(deep)
    await large_inputs(deep)
    await running(deep)
    await ended(deep)
    await moved(deep)
    await operated(deep)
    await batched(deep)
    assert set(gatherer.costs) == set(NAMES), set(NAMES) ^ set(gatherer.costs)
    beyond = {name: costs for name, costs in gatherer.costs.items() if not within_bounds(name, costs)}
    assert beyond == {}


def within_bounds(name: str, costs: Sequence[Cost]) -> bool:
    most = max(cost.commands for cost in costs)
    longest_us = [cost.took_us for cost in costs if cost.commands > most / 2]
    return (
        most <= MOST_COMMANDS
        and max(cost.reply_bytes for cost in costs) <= MOST_REPLY.get(name, SMALL_REPLY)
        and min(longest_us) <= SLOWEST_US  # a busy machine makes a call slower, never quicker
    )


async def waiting(driver: QueueDriver) -> None:
    """Do what callers and directors do to a deep queue."""
    scripts, now = driver.scripts, driver.now_ms
    for number in range(3):
        one = driver.new_id()
        await scripts.enlist(
            one, account=TENANTS[0], oldest=lowest_id_at(now), counts=Counted(99, now + 9), most=1 << 40, now_ms=now
        )
        key = {"account": TENANTS[0], "model": MODEL, "idempotency": (f"k{number}", "body")}
        await scripts.bind(one, **key, instead_of=None)
        await driver.submit(
            one,
            account=TENANTS[0],
            data=b'"%s"' % (b"x" * LARGE),
            lifetime_ms=60_000,
            webhook="https://h.example",
            webhook_events="completed",
            idempotency=(f"k{number}", "body"),
        )
        assert await scripts.get(one, now_ms=now) is not None
        assert await scripts.story(one, now_ms=now) is not None
        await scripts.delist(one, account=TENANTS[0], counted=Counted(99, now + 9))
        await driver.cancel(one, account=TENANTS[0])
        await scripts.stats(driver.queue, now_ms=now)
        await scripts.demand(driver.queue, soon_s=60, now_ms=now)
        await scripts.survey(driver.queue, now_ms=now)
        await scripts.reconcile(driver.queue, start=0, count=sweeps.SLICE, lease_s=15, now_ms=now)
        await scripts.sample(driver.queue, period_s=1, most=9_000, now_ms=now + number * 10_000)
        await driver.pause()
        await driver.pause(paused=False)
        await driver.pause(account=TENANTS[0])
        await driver.pause(account=TENANTS[0], paused=False)
        await driver.limit(TENANTS[0], weight=number + 2, most_running=50)
        await driver.bound("bounded", 10_000 + number)
        await driver.bound("absorb")
        await scripts.order(driver.queue, "rest")
        await scripts.resize(driver.queue, streams=MAX_STREAMS - number)
        await scripts.unregister(driver.queue)


async def running(driver: QueueDriver) -> None:
    """Claims of a director with many slots, that are extended, given back, lost and found again."""
    for number in range(2):
        late = [await driver.submit(account=tenant, lane="high", lifetime_ms=1) for tenant in TENANTS[:100]]
        driver.pass_time(1)
        claims = await claimed(driver, CLAIMED, consumer=f"d{number}")
        assert not {claim.id for claim in claims} & set(late)
        await driver.extend(*claims, consumer=f"d{number}")
        for claim in claims[:100]:
            await driver.release(claim, spent=True, delay_s=1)
        await driver.release(claims[101], spent=False)
        for claim in claims[102:]:
            await driver.begin(claim)
        driver.pass_time(2)
        await driver.promote(limit=sweeps.LIMIT)
        await driver.expire(limit=sweeps.LIMIT)
        driver.pass_time(30)
        for consumer in range(DIRECTORS):
            await driver.have_slots(4, consumer=f"d{consumer}")
        await driver.reap(limit=sweeps.LIMIT)
        orphans = await claimed(driver, 100)
        await driver.redis.zrem(keys.lease(driver.queue), *(claim.id for claim in orphans))
        streams = {(claim.record.lane, int(await driver.field(claim.id, "stream"))) for claim in orphans}
        for lane, stream in streams:
            await driver.recover(stream, lane=lane, count=sweeps.LIMIT)
        await driver.scripts.contact(f"run{number}", silence_s=7)
        await driver.redis.zadd(keys.directors(driver.queue), {"gone": 0})
        await driver.retire()


async def large_inputs(driver: QueueDriver) -> None:
    second = queue_name(MODEL, "b2" * 32)
    await driver.scripts.register(second, version="b2" * 32, policy=Policy())
    other = QueueDriver(driver.redis, driver.scripts, second)
    for _ in range(2):
        for tenant in TENANTS[:MOST_AT_ONCE]:
            await other.submit(account=tenant, data=b'"%s"' % (b"x" * LARGE))
        claims = await other.claim(MOST_AT_ONCE)
        assert len(claims) == MOST_AT_ONCE
        for claim in claims:
            await other.finish(claim)


async def long_run(driver: QueueDriver) -> tuple[Claim, int]:
    [claim, *others] = await driver.claim(2)
    for other in others:
        await driver.release(other)
    seq = await driver.begin(claim)
    for start in range(0, EVENTS, 200):
        pieces = [("output", b'"%d%s"' % (start, b"x" * 2_000)) for _ in range(200)]
        advanced = await driver.scripts.advance(
            claim.id, token=claim.token, seq=seq, ran_ms=1, events=pieces, now_ms=driver.now_ms
        )
        seq = advanced.seq
    return claim, seq


async def ended(driver: QueueDriver) -> None:
    """Runs with much output, their ends, their webhooks, and what is read of them."""
    scripts = driver.scripts
    for number in range(2):
        claim, seq = await long_run(driver)
        account = claim.record.account
        assert await scripts.get(claim.id, whole=False, now_ms=driver.now_ms) is not None
        await read(driver, claim.id)
        assert await driver.finish(claim, seq=seq, output=b'"%s"' % (b"x" * LARGE), logs="x" * LARGE)
        await read(driver, claim.id)
        await scripts.weigh(account, Counted(LARGE, driver.now_ms + 9), Counted(9, driver.now_ms + 9))
        await scripts.retain(account, 5, most=10**9, now_ms=driver.now_ms)
        await scripts.recount(account, 5, until_ms=driver.now_ms + 9, retained=0, was_retained=5)
        assert await scripts.erase(claim.id, account=account, now_ms=driver.now_ms) == "erased"
        owed = await claimed(driver, 2 * courier.LIMIT)
        for one in owed:
            await driver.redis.hset(
                keys.record(one.id), mapping={"webhook": "https://h.example", "events": "completed"}
            )
            await driver.finish(one)
        due = [one for _ in range(2) for one in await driver.due()]
        for one in due:
            await driver.deliver(one, "failed", 3_600, account=account, host="h.example", status=500, is_away=True)
        here = partition_of(due[0])
        assert await scripts.forward(here, account, "h.example", limit=FORWARD, now_ms=driver.now_ms) == FORWARD
        await scripts.redeliver(due[0], account=None, now_ms=driver.now_ms)
        bucket = Bucket("create", rate=1.0, burst=1)
        await scripts.reserve(account, bucket, id=f"n{number}", now_ms=driver.now_ms)
        await scripts.spend(account, prediction_id=claim.id, token=(bucket, f"n{number}"), now_ms=driver.now_ms)
        await scripts.budget(account, claim.id, (9, 9, 9, 9), tokens=1, compute_s=1, now_ms=driver.now_ms)
        await scripts.settle(account, claim.id, tokens=1, now_ms=driver.now_ms)
        days = [(f"{1 + day % 31:02} {MODEL} t{day}", f"00 {MODEL} t{day}") for day in range(FOLDED_AT_ONCE)]
        await driver.redis.hset(
            keys.ledger(here, f"20200{number + 1}", account), mapping=dict.fromkeys((d for d, _ in days), "1")
        )
        assert await scripts.fold(here, f"20200{number + 1}", account, days, kept_s=9) == FOLDED_AT_ONCE
        for file in range(500):
            await driver.redis.zadd(keys.stored_until(account), {f"f{number}-{file}": driver.now_ms - 1})
            await driver.redis.hset(keys.stored(account), f"f{number}-{file}", 9)
        await scripts.stow(account, f"f{number}", 9, most=1 << 40, until_ms=driver.now_ms + 9, now_ms=driver.now_ms)


async def read(driver: QueueDriver, prediction_id: PredictionId) -> None:
    scripts = driver.scripts
    assert await scripts.story(prediction_id, now_ms=driver.now_ms) is not None
    assert await scripts.replay(prediction_id, after=0, count=PAGE_EVENTS, most_bytes=PAGE_BYTES) is not None
    assert await scripts.replay(prediction_id, after=0, count=MOST_IN_PAGE, most_bytes=MOST_BYTES, whole=False)


async def moved(driver: QueueDriver) -> None:
    """Migrations within the server and to another one, and dead letters."""
    scripts = driver.scripts
    second = queue_name(MODEL, "b2" * 32)
    for number in range(2):
        await scripts.register(second, version="b2" * 32, policy=Policy())
        await scripts.migrate(
            driver.queue, to=second, start=0, count=queues.SLICE, only_asks=False, now_ms=driver.now_ms
        )
        accounts = [TENANTS[(number * 50 + place) % 200] for place in range(departure.SLICE)]
        leaving = [(await driver.submit(account=account), account) for account in accounts]
        assert await scripts.depart(driver.queue, leaving, site="far", now_ms=driver.now_ms)
        (one, _), (other, _), *_ = leaving
        await scripts.stay(other, site="far", now_ms=driver.now_ms)
        flat = [part for pair in (await driver.redis.hgetall(keys.record(one))).items() for part in pair]
        await scripts.vacate(one, site="far", now_ms=driver.now_ms)
        events = [b"created 1 %s" % (b"x" * 100)] * EVENTS
        large = b'"%s"' % (b"x" * LARGE)
        await scripts.arrive(one, driver.queue, move=number + 3, record=flat, input=large, events=events)
        dead = await driver.submit(account=ACCOUNT, lane="high")
        record = keys.record(dead)
        while await driver.redis.zscore(keys.dead(driver.queue), dead) is None:
            for claim in await driver.claim(MOST_AT_ONCE):
                await driver.release(claim, spent=claim.id == dead, error="x" * 4_096, code="broken")
        assert await driver.redis.exists(record)
        assert await driver.revive(dead)
        while await driver.redis.zscore(keys.dead(driver.queue), dead) is None:
            for claim in await driver.claim(MOST_AT_ONCE):
                await driver.release(claim, spent=claim.id == dead, error="x" * 4_096, code="broken")
        assert await driver.drop(dead)


async def operated(driver: QueueDriver) -> None:
    scripts = driver.scripts
    for number in range(2):
        name, large = f"acme/said-{number}", b"x" * 65_536
        await scripts.amend(name, "make", said={"created": "1", "readme": large}, nonce="n")
        await scripts.configure(name, large, by="ops", at_ms=1, was=None, nonce="n")
        await scripts.withdraw(name, "model")
        await scripts.deploy(ACCOUNT, f"d{number}", was=b"", becomes=large, created_ms=1, most=9)
        split: dict[str, Any] = {"most": 100, "queue": queue_name(MODEL, VERSION), "detail": "why" * 200}
        for place in range(100):
            await scripts.split(f"{ACCOUNT}/{number}-{place}", b"", b"{}", step="begins", **split)
            await scripts.split(f"{ACCOUNT}/{number}-{place}", b"{}", b"{ }", step="shares", **split)
        await scripts.split(f"{ACCOUNT}/d{number}", b"", b"{}", step="stays", **split)
        ran = {f"{side}:ms:{of}": 9 for side in SIDES for of in range(MOST_TIMES)}
        await scripts.count_split(f"{ACCOUNT}/d{number}", is_=b"{}", was="", cursor="1-0", counts=ran)
        await scripts.rotate(ACCOUNT, secret="whsec_", keep_s=1)
        await driver.redis.hset(keys.token(f"{number:064}"), "scopes", "run")
        await scripts.allow(f"{number:064}", {"scopes": ",".join(SCOPES), "label": "x" * 64}, expires_ms=0)
        for place in range(MOST_SESSIONS + 1):
            given: dict[str, Any] = {"token_digest": f"{place:064}", "scopes": ",".join(SCOPES)}
            await scripts.grant(ACCOUNT, f"l:{number}{place:063}", life_s=99, most=MOST_SESSIONS, **given)
            await scripts.grant(ACCOUNT, f"s:{number}{place:063}", life_s=99, most=MOST_SESSIONS, **given)
        noted: dict[str, Any] = {"kind": "limits_set", "by": "ops", "account": ACCOUNT, "queue": "", "at_ms": 1}
        await scripts.note(f"n{number}", **noted, detail=large)


async def batched(driver: QueueDriver) -> None:
    """Open as many batches as an account may have, and commit a part of all lines of the last ones."""
    scripts, now = driver.scripts, driver.now_ms
    metadata, bits = b"x" * 16_384, b"x" * (MOST_LINES // 8)
    for number in range(batches.MOST_LIVE):
        batch = new_file_id(now + number)
        fields: dict[str, str | bytes | int] = {"status": "in_progress", "metadata": metadata}
        bounds: dict[str, Any] = {"most": batches.MOST, "most_live": batches.MOST_LIVE, "created_ms": now + number}
        key = (str(number), "f" * 32)
        assert await scripts.open_batch(ACCOUNT, batch, ttl_s=99, **bounds, fields=fields, idempotency=key) == "opened"
        if number >= batches.MOST_LIVE - 2:
            assert await scripts.lease_batch(ACCOUNT, batch, token="t", lease_s=9) == "in_progress"
            done = {"written": bits, "parts": 2, "part:0": "output - 9", "part:1": "error - 9", "place": "9 9"}
            write: dict[str, Any] = {"token": "t", "allowed": batches.LIVE, "nonce": "n", "fields": done}
            assert await scripts.write_batch(ACCOUNT, batch, **write, parts=0) == "written"
