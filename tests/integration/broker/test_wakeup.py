"""Test a claim that waits for a wakeup at the server: it runs on the wakeup, or when the wait is over."""

import asyncio
from typing import Any

import pytest
from redis import exceptions
from redis.asyncio import Redis

from director.broker import keys
from director.broker.news import Wakeup
from director.broker.redis_client import blocking_client
from director.broker.replies import Claims
from director.core.clock import SystemClock
from tests.support.eventually import eventually
from tests.support.queue_driver import QueueDriver
from tests.support.servers import RedisServer


@pytest.fixture
async def wakeup(server: RedisServer, driver: QueueDriver) -> Any:
    waits = blocking_client(server.url, block_s=5, connections=1)
    wakeup = Wakeup(waits, [driver.queue], SystemClock())
    if not wakeup.carries:
        pytest.skip("in a Cluster nothing waits behind the bell")
    await driver.claim()  # this loads its script
    yield wakeup
    await waits.aclose()


async def claim(driver: QueueDriver, wakeup: Wakeup, nonce: str = "n1") -> Claims:
    return await driver.scripts.claim(
        driver.queue, consumer="d1", nonce=nonce, count=4, lease_s=15, send=wakeup.carry, now_ms=driver.now_ms
    )


async def is_waited_for(redis: Redis) -> None:
    async def blocked() -> int:
        return int((await redis.info("clients"))["blocked_clients"])

    await eventually(blocked, "a claim waits for a wakeup")


async def test_wakeup_returns_the_claim_in_the_same_call(driver: QueueDriver, redis: Redis, wakeup: Wakeup) -> None:
    for nonce in ("n1", "n2"):
        claiming = asyncio.create_task(claim(driver, wakeup, nonce))
        await is_waited_for(redis)
        accepted = await driver.submit()
        assert [found.id for found in await asyncio.wait_for(claiming, 10)] == [accepted]
    assert not await redis.exists(keys.bell(driver.queue))


async def test_claim_is_made_after_a_wait_without_a_wakeup(
    driver: QueueDriver, wakeup: Wakeup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.broker.news.LEAST_S", 0.01)
    monkeypatch.setattr("director.broker.news.LONGEST_S", 0.02)
    claims = await claim(driver, wakeup)
    assert (list(claims), claims.why) == ([], "empty")


async def test_canceled_wait_leaves_nothing_at_the_server(driver: QueueDriver, redis: Redis, wakeup: Wakeup) -> None:
    claiming = asyncio.create_task(claim(driver, wakeup))
    await is_waited_for(redis)
    claiming.cancel()

    async def is_gone() -> bool:
        return not (await redis.info("clients"))["blocked_clients"]

    await eventually(is_gone, "its connection is gone")
    accepted = await driver.submit()
    assert [found.id for found in await driver.claim(consumer="d2")] == [accepted]


async def test_unheard_claim_is_repeated_to_a_caller_without_free_slots(driver: QueueDriver, wakeup: Wakeup) -> None:
    accepted = await driver.submit()
    await claim(driver, wakeup)
    await driver.submit()
    assert [found.id for found in await driver.claim(0, nonce="n1")] == [accepted]


async def test_lost_connection_is_an_error_and_the_next_call_reconnects(driver: QueueDriver, wakeup: Wakeup) -> None:
    claiming = asyncio.create_task(claim(driver, wakeup))
    await is_waited_for(driver.redis)
    await driver.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    with pytest.raises(exceptions.ConnectionError):
        await claiming
    accepted = await driver.submit()
    assert [found.id for found in await claim(driver, wakeup, "n2")] == [accepted]


async def test_wait_without_a_claim_uses_the_same_connection(driver: QueueDriver, wakeup: Wakeup) -> None:
    await driver.submit()
    await claim(driver, wakeup)
    await driver.submit()
    assert await wakeup.wait() is True


async def test_closed_wakeup_leaves_its_connection_to_the_next_one(driver: QueueDriver, wakeup: Wakeup) -> None:
    await driver.submit()
    await claim(driver, wakeup)
    await wakeup.close()
    accepted = await driver.submit()
    following = Wakeup(wakeup.redis, [driver.queue], SystemClock())
    assert [found.id for found in await asyncio.wait_for(claim(driver, following, "n2"), 10)] == [accepted]
