"""Test what a slow Redis, and the death of the API in the middle of a request, do to callers."""

import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import httpx
import pytest
from httpx import AsyncClient

from director.broker import keys
from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.api import api_client, live_api
from tests.support.eventually import eventually
from tests.support.proxy import losing_proxy
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer, redis_server

pytestmark = [pytest.mark.faults]

BODY: dict[str, Any] = {"version": VERSION, "input": {"text": "hi"}}
KEYED = {"Idempotency-Key": "one"}


@pytest.fixture
def own() -> Iterator[RedisServer]:
    with redis_server(guarded=True) as started:
        yield started


@pytest.fixture
async def boss(own: RedisServer) -> AsyncIterator[Any]:
    redis = client(own.admin_url)
    yield redis
    await redis.aclose()


@pytest.fixture
async def secret(boss: Any) -> str:
    return await made(boss)


async def made(boss: Any) -> str:
    """Register the model, and return a token of a caller."""
    gatherer = Gatherer(boss)
    catalog = Catalog(boss, Scripts(gatherer), SystemClock())
    await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    await gatherer.aclose()
    return await Accounts(boss).create_token(ACCOUNT)


async def accepted(api: AsyncClient) -> list[str]:
    return [each["id"] for each in (await api.get("/v1/predictions")).json()["results"]]


async def test_short_pause_of_redis_is_a_late_success(own: RedisServer, boss: Any, secret: str) -> None:
    async with api_client(ApiSettings(redis_url=own.url), token=secret) as api:
        await boss.client_pause(700, all=True)
        answer = await api.post("/v1/predictions", json=BODY)
        assert answer.status_code == 201
        assert await accepted(api) == [answer.json()["id"]]


async def test_long_pause_of_redis_is_a_503_that_heals_and_doubles_nothing(
    own: RedisServer, boss: Any, secret: str
) -> None:
    """The refused create may still be carried out when Redis goes on. The same key then stands for it."""
    async with api_client(ApiSettings(redis_url=own.url), token=secret) as api:
        assert (await api.get("/v1/account")).status_code == 200
        await boss.client_pause(9000, all=False)
        with anyio.fail_after(9):
            answer = await api.post("/v1/predictions", json=BODY, headers=KEYED)
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        await boss.client_unpause()
        again = await api.post("/v1/predictions", json=BODY, headers=KEYED)
        assert again.status_code in (200, 201)
        assert await accepted(api) == [again.json()["id"]]


async def test_api_killed_before_its_answer_leaves_one_prediction_for_the_key() -> None:
    """Redis carries the create out, and the API dies before it hears of it."""
    with redis_server(loopback=True) as server:
        boss: Any = client(server.tcp_url)
        token = await made(boss)
        headers = {"Authorization": f"Bearer {token}", **KEYED}
        async with (
            losing_proxy(server.port) as link,
            live_api(link.url) as first,
            AsyncClient(base_url=first.url, trust_env=False, headers=headers) as api,
        ):
            await api.post("/v1/predictions", json=BODY, headers={"Idempotency-Key": "before"})
            async with anyio.create_task_group() as tasks:
                link.lose_next_reply(keys.listing(ACCOUNT).encode(), is_of_request=True)
                tasks.start_soon(cut_off, api)
                await eventually(lambda: link.lost, "the answer is on its way")
                first.process.send_signal(signal.SIGKILL)
        assert await boss.zcard(keys.listing(ACCOUNT)) == 2, "it was carried out"
        async with (
            live_api(server.tcp_url) as second,
            AsyncClient(base_url=second.url, trust_env=False, headers=headers) as api,
        ):
            again = [(await api.post("/v1/predictions", json=BODY)).json()["id"] for _ in range(2)]
            assert again[0] == again[1]
            assert len(await accepted(api)) == 2
        await boss.aclose()


async def cut_off(api: AsyncClient) -> None:
    with pytest.raises(httpx.TransportError):
        await api.post("/v1/predictions", json=BODY)
