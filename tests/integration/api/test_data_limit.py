"""An account with `max_data_bytes` is refused above that limit, and counts what its predictions leave."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.core.clock import SystemClock
from director.core.data_bytes import ENTRY_BYTES, KEPT_BYTES, KEY_BYTES, RECORD_BYTES, TABLE_BYTES
from director.core.ids import QueueName
from director.store.accounts import Accounts
from director.store.models import GIST
from tests.integration.api.conftest import Served, refusal
from tests.support.clock import FakeClock
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION

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
    async with door(max_data_bytes=str(WHOLE + KEY_BYTES)) as api:
        first = await create(api, **{"Idempotency-Key": "k"})
        await redis.delete(keys.listing(ACCOUNT))  # as if its API had died once the queue had it
        again = await create(api, **{"Idempotency-Key": "k"})
        assert [one["id"] for one in (await api.get("/v1/predictions")).json()["results"]] == [first.json()["id"]]
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    assert again.headers["idempotency-replayed"] == "true"
    assert await used(redis) == WHOLE + KEY_BYTES


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


OWN = {"owner": ACCOUNT, "visibility": "private", "hardware": "cpu"}


async def test_texts_of_models_count_until_they_are_deleted(door: Door, redis: Redis) -> None:
    path = f"/v1/models/{ACCOUNT}/painter"
    async with door(max_data_bytes="14000") as api:
        made = await api.post("/v1/models", json={**OWN, "name": "painter", "description": "d" * 500})
        assert made.status_code == 201
        assert await used(redis) == ENTRY_BYTES + 500
        assert (await api.patch(path, json={"readme": "r" * 6_000})).status_code == 200
        assert await used(redis) == ENTRY_BYTES + 500 + 6_000 + GIST
        refused = await api.patch(path, json={"readme": "r" * 12_000})
        assert refusal(refused) == (429, "data_full")
        assert refusal(await create(api)) == (429, "data_full")
        assert (await api.get(f"{path}/readme")).text == "r" * 6_000
        assert (await api.patch(path, json={"readme": "", "description": "d"})).status_code == 200
        assert await used(redis) == ENTRY_BYTES + 1
        assert (await api.post("/v1/models", json={**OWN, "name": "painter"})).status_code == 409
        assert (await api.delete(path)).status_code == 204
        assert await used(redis) == 0


@pytest.mark.not_on("cluster", why="it fills one server")
async def test_model_that_is_deleted_on_a_full_server_counts_no_longer(door: Door, redis: Redis) -> None:
    async with door() as api:
        assert (await api.post("/v1/models", json={**OWN, "name": "painter"})).status_code == 201
        assert await used(redis) == ENTRY_BYTES
        await redis.config_set("maxmemory", "1")
        try:
            assert (await api.delete(f"/v1/models/{ACCOUNT}/painter")).status_code == 204
        finally:
            await redis.config_set("maxmemory", "0")
    assert await used(redis) == 0


async def test_deployments_count_until_they_are_deleted(door: Door, redis: Redis) -> None:
    release = {"model": MODEL, "version": VERSION, "hardware": "cpu", "min_instances": 0, "max_instances": 1}
    async with door(max_data_bytes="3000") as api:
        answers = [await api.post("/v1/deployments", json={**release, "name": f"d{n}"}) for n in (1, 2, 2, 3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
        assert await used(redis) == 2 * ENTRY_BYTES
        assert (await api.delete(f"/v1/deployments/{ACCOUNT}/d1")).status_code == 204
        assert (await api.post("/v1/deployments", json={**release, "name": "d2"})).status_code == 422
        assert await used(redis) == ENTRY_BYTES


async def test_long_record_of_a_short_life_counts_no_longer(door: Door, redis: Redis, queue: QueueName) -> None:
    """A week for a record of an hour would be false 429s."""
    body = {"version": VERSION, "input": INPUT, "webhook": f"https://example.com/{'w' * 2000}"}
    await redis.hset(keys.meta(queue), "record_ttl_ms", str(2 * 3_600_000))
    async with door() as api:
        assert (await api.post("/v1/predictions", json=body)).status_code == 201
    now_ms = SystemClock().now_ms()
    lives_h = [(int(until) - now_ms) / 3_600_000 for until in await redis.hkeys(keys.data(ACCOUNT))]
    assert (len(lives_h), 1.9 < max(lives_h) < 2.2) == (2, True)


async def test_long_record_counts_with_its_length_for_as_long_as_it_lives(door: Door, redis: Redis) -> None:
    webhook = f"https://example.com/{'w' * 2000}"
    async with door() as api:
        body = {"version": VERSION, "input": INPUT, "webhook": webhook}
        made = await api.post(
            "/v1/predictions", json=body, headers={"tracestate": "no parent", "host": f"{'h' * 200}.x"}
        )
    assert made.status_code == 201
    assert 1_700 < await used(redis) - WHOLE - TABLE_BYTES < 2_400
    name = made.json()["id"]
    assert await redis.memory_usage(keys.record(name), samples=0) < await used(redis) - INPUT_BYTES
    later = FakeClock(now_ms=SystemClock().now_ms() + 6 * 86_400_000)
    usage = await Accounts(redis, clock=later).usage(ACCOUNT, day=0)
    assert await redis.memory_usage(keys.record(name), samples=0) < usage.data_bytes + KEPT_BYTES
