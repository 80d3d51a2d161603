"""A hundred thousand retries that fall due at once do not keep a director from claiming."""

import asyncio
import time

import anyio
import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.keeper.registry import Registry
from director.keeper.sweeps import promote as promote_due
from director.store.catalog import Catalog
from tests.support.queue_driver import QueueDriver
from tests.support.servers import RedisServer

pytestmark = pytest.mark.heavy

MANY = 100_000
P99_LIMIT_S = 0.050


async def test_claims_stay_quick_while_everything_falls_due(
    server: RedisServer, redis: Redis, scripts: Scripts, catalog: Catalog, driver: QueueDriver
) -> None:
    for _ in range(MANY // 500):
        await asyncio.gather(*(driver.submit(account=f"a{number}") for number in range(500)))
        claims = await driver.claim_all(at_once=64)
        await asyncio.gather(*(driver.release(claim, spent=True, delay_s=1) for claim in claims))
    driver.now_ms = time.time_ns() // 1_000_000
    await redis.zadd(keys.delayed(driver.queue), dict.fromkeys(await driver.members(keys.delayed(driver.queue)), 1))
    await driver.submit()

    own = client(server.url)  # a director's connection is not the keeper's
    gatherer = Gatherer(own)
    claiming = QueueDriver(own, Scripts(gatherer), driver.queue)
    claiming.now_ms = driver.now_ms
    took_s: list[float] = []
    claimed = 0
    registry = Registry(redis, catalog, SystemClock())
    promoted = 0
    began_s = time.monotonic()

    async def promote() -> None:
        nonlocal promoted
        promoted = sum((await promote_due(scripts, registry)).values())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(promote)
        while not promoted:
            asked_s = time.monotonic()
            claims = await claiming.claim(1)
            took_s.append(time.monotonic() - asked_s)
            claimed += len(claims)
            for claim in claims:
                await claiming.finish(claim)
    lasted_s = time.monotonic() - began_s
    await gatherer.aclose()
    await own.aclose()

    took_s.sort()
    p50_s, p99_s = took_s[len(took_s) // 2], took_s[int(len(took_s) * 0.99)]
    print(
        f"{promoted} promoted in {lasted_s:.1f} s; {len(took_s)} claims meanwhile: "
        f"p50 {p50_s * 1000:.1f} ms, p99 {p99_s * 1000:.1f} ms, slowest {took_s[-1] * 1000:.1f} ms"
    )
    assert promoted == MANY
    assert claimed > 100
    assert p99_s < P99_LIMIT_S
    await redis.flushall()  # the fixture would look at each of their keys
