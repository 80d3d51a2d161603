"""An account with `max_data_bytes` is refused above that limit, and counts what its predictions leave."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.core.data_bytes import RECORD_BYTES
from director.store.accounts import Accounts
from tests.integration.api.conftest import Served, refusal
from tests.support.queue_driver import ACCOUNT, VERSION

Door = Callable[..., Any]
INPUT = {"text": "x" * 9_989}
INPUT_BYTES = 10_000
WHOLE = INPUT_BYTES + RECORD_BYTES


@pytest.fixture
def door(redis: Redis, served: Served) -> Door:
    @asynccontextmanager
    async def enter(**limits: str) -> AsyncIterator[httpx.AsyncClient]:
        await Accounts(redis).set_limits(ACCOUNT, limits)
        async with served() as client:
            yield client

    return enter


async def create(api: httpx.AsyncClient, **headers: str) -> httpx.Response:
    return await api.post("/v1/predictions", json={"version": VERSION, "input": INPUT}, headers=headers)


async def used(redis: Redis) -> int:
    return (await Accounts(redis).usage(ACCOUNT, day=0)).data_bytes


async def test_a_create_above_the_limit_is_refused_and_says_when_to_ask_again(door: Door, redis: Redis) -> None:
    async with door(max_data_bytes=str(2 * WHOLE + 100)) as api:
        assert [(await create(api)).status_code for _ in range(2)] == [201, 201]
        refused = await create(api)
        listed = (await api.get("/v1/predictions")).json()["results"]
    problem = refused.json()
    assert (*refusal(refused), refused.headers["retry-after"]) == (429, "data_full", "60")
    assert (problem["limit"], problem["retry_after"]) == (2 * WHOLE + 100, 60)
    assert f"may take {2 * WHOLE + 100:,} bytes, and takes {2 * WHOLE:,}" in problem["detail"]
    assert (await used(redis), len(listed)) == (2 * WHOLE, 2)


async def test_creates_at_once_do_not_exceed_the_limit(door: Door, redis: Redis) -> None:
    async with door(max_data_bytes=str(5 * WHOLE)) as api:
        answers = await asyncio.gather(*(create(api) for _ in range(12)))
    assert sorted(answer.status_code for answer in answers) == [201] * 5 + [429] * 7
    assert await used(redis) == 5 * WHOLE


async def test_a_refused_create_counts_nothing(door: Door, redis: Redis) -> None:
    async with door(max_queued="1") as api:
        assert [(await create(api)).status_code for _ in range(4)] == [201, 429, 429, 429]
    assert await used(redis) == WHOLE


async def test_a_repeated_request_is_answered_where_there_is_no_room(door: Door, redis: Redis) -> None:
    async with door(max_data_bytes=str(WHOLE)) as api:
        first = await create(api, **{"Idempotency-Key": "k"})
        await redis.delete(keys.listing(ACCOUNT))  # as if its API had died once the queue had it
        again = await create(api, **{"Idempotency-Key": "k"})
        assert [one["id"] for one in (await api.get("/v1/predictions")).json()["results"]] == [first.json()["id"]]
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    assert again.headers["idempotency-replayed"] == "true"
    assert await used(redis) == WHOLE


async def test_an_input_larger_than_the_limit_is_too_large(door: Door) -> None:
    async with door(max_data_bytes=str(WHOLE - 1)) as api:
        refused = await create(api)
    assert refusal(refused) == (413, "data_full")


async def test_there_is_room_again_when_data_has_expired(door: Door, redis: Any) -> None:
    async with door(max_data_bytes=str(WHOLE), data_ttl_s="1") as api:
        assert [(await create(api)).status_code for _ in range(2)] == [201, 429]
        [bucket] = await redis.hkeys(keys.data(ACCOUNT))
        await redis.hset(keys.data(ACCOUNT), "1", (await redis.hget(keys.data(ACCOUNT), bucket)).decode())
        await redis.hdel(keys.data(ACCOUNT), bucket)
        assert (await create(api)).status_code == 201
