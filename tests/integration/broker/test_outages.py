"""Test real servers that refuse, hang, or answer from the wrong place: each case is bounded, reported, and heals."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest
from redis import exceptions
from redis.asyncio import Redis

from director.broker import keys, redis_client
from director.broker.gatherer import Gatherer
from director.broker.news import Wakeup
from director.broker.redis_client import ask, blocking_client, client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable
from director.core.ids import queue_name
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.api import api_client
from tests.support.eventually import eventually
from tests.support.proxy import losing_proxy
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, driving
from tests.support.servers import RedisServer, redis_server

pytestmark = pytest.mark.faults

BODY = {"version": VERSION, "input": {}}

Operate = Callable[[Any], Awaitable[object]]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server(loopback=True) as started:
        yield started


@pytest.fixture
async def token(server: RedisServer) -> str:
    async with driving(server.url) as driver:
        return await Accounts(driver.redis).create_token(ACCOUNT)


async def change_password(redis: Redis) -> None:
    await redis.config_set("requirepass", "another")
    await redis.client_kill_filter(_type="normal", skipme=True)


REFUSALS: dict[str, tuple[Operate, Operate]] = {
    "a replica": (lambda redis: redis.replicaof("127.0.0.1", 1), lambda redis: redis.replicaof("NO", "ONE")),
    "too few replicas": (
        lambda redis: redis.config_set("min-replicas-to-write", 1),
        lambda redis: redis.config_set("min-replicas-to-write", 0),
    ),
    "full": (lambda redis: redis.config_set("maxmemory", 1), lambda redis: redis.config_set("maxmemory", 0)),
    "another password": (change_password, lambda redis: redis.config_set("requirepass", "")),
}


@pytest.mark.parametrize(("refuse", "mend"), REFUSALS.values(), ids=list(REFUSALS))
async def test_every_refusal_is_a_503_with_retry_after_and_recovers(
    server: RedisServer, token: str, refuse: Operate, mend: Operate
) -> None:
    async with (
        Redis(unix_socket_path=str(server.socket)) as operator,
        api_client(ApiSettings(redis_url=server.url, cache_s=60), token=token) as api,
    ):
        assert (await api.post("/v1/predictions", json=BODY)).status_code == 201
        await operator.client_setname("operator")
        await refuse(operator)
        answer = await api.post("/v1/predictions", json=BODY)
        is_full = refuse is REFUSALS["full"][0]
        assert (answer.status_code, answer.json()["code"]) == (503, "memory_full" if is_full else "unavailable")
        assert int(answer.headers["retry-after"]) >= 1
        await mend(operator)
        assert (await api.post("/v1/predictions", json=BODY)).status_code == 201


async def test_full_server_still_lets_work_end(server: RedisServer, token: str) -> None:
    redis = client(server.url)
    async with api_client(ApiSettings(redis_url=server.url, cache_s=60), token=token) as api:
        made = (await api.post("/v1/predictions", json=BODY)).json()
        await redis.config_set("maxmemory", 1)
        assert (await api.post("/v1/predictions", json=BODY)).status_code == 503
        canceled = await api.post(f"/v1/predictions/{made['id']}/cancel")
        assert (canceled.status_code, canceled.json()["status"]) == (200, "canceled")
    await redis.aclose()


@pytest.mark.parametrize(
    "leave", [REFUSALS["a replica"][0], REFUSALS["too few replicas"][0]], ids=["demoted", "cut off"]
)
async def test_client_that_connects_by_name_follows_to_the_new_master(server: RedisServer, leave: Operate) -> None:
    with redis_server(loopback=True) as promoted:
        async with losing_proxy(server.port) as name:
            redis = client(name.url)
            gatherer = Gatherer(redis)
            try:
                await ask(lambda: redis.set("here", "1"))
                async with Redis(port=server.port) as operator:
                    await leave(operator)
                name.lead_to(promoted.port)
                # the connection to the old master is still open, and its client got no message
                await ask(lambda: redis.set("there", "1"))
                async with Redis(port=promoted.port) as operator:
                    assert await operator.exists("there")
                catalog = Catalog(redis, Scripts(gatherer), SystemClock())
                await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
            finally:
                await gatherer.aclose()
                await redis.aclose()


async def test_blocking_call_on_a_demoted_server_continues_at_the_new_master(server: RedisServer) -> None:
    with redis_server(loopback=True) as promoted:
        async with losing_proxy(server.port) as name:
            waits = blocking_client(name.url, block_s=5)
            queue = queue_name(MODEL, VERSION)
            wakeup = Wakeup(waits, [queue], SystemClock())
            heard: list[bool] = []

            async def wait() -> None:
                while not any(heard):
                    heard.append(await wakeup.wait())

            async with anyio.create_task_group() as tasks, Redis(port=server.port) as old:
                tasks.start_soon(wait)

                async def waits_there() -> bool:
                    return bool((await old.info("clients"))["blocked_clients"])

                await eventually(waits_there, "the bell is waited for")
                name.lead_to(promoted.port)
                await old.replicaof("127.0.0.1", 1)  # this unblocks the client with an error
                async with Redis(port=promoted.port) as new:
                    await new.lpush(keys.bell(queue), "1")
            await waits.aclose()
    assert heard[-1]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_client, "SOCKET_TIMEOUT_S", 0.2)


FROZEN_CALLS: dict[str, Callable[[Redis, Gatherer], Awaitable[object]]] = {
    "a command": lambda redis, _: ask(redis.ping),
    "a script": lambda _, gatherer: Scripts(gatherer).stats(queue_name(MODEL, VERSION)),
    "more commands than connections": lambda redis, _: at_once(redis, 40),
}


async def at_once(redis: Redis, count: int) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(lambda: refused(lambda: ask(redis.ping)))
    raise BackendUnavailable("all of them")


async def refused(call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(BackendUnavailable):
        await call()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("is_connected", [True, False], ids=["connected", "not yet connected"])
@pytest.mark.parametrize("call", FROZEN_CALLS.values(), ids=list(FROZEN_CALLS))
async def test_call_to_a_frozen_server_does_not_hang(
    server: RedisServer, call: Callable[[Redis, Gatherer], Awaitable[object]], is_connected: bool
) -> None:
    redis = client(server.url)
    gatherer = Gatherer(redis)
    try:
        if is_connected:
            await ask(redis.ping)
        server.freeze()
        with anyio.fail_after(20):
            await refused(lambda: call(redis, gatherer))
        server.thaw()
        assert await ask(redis.ping)
    finally:
        server.thaw()
        await gatherer.aclose()
        await redis.aclose()


async def test_blocking_client_of_a_frozen_server_gives_up_soon_after_its_wait(server: RedisServer) -> None:
    waits = blocking_client(server.url, block_s=0.1)
    try:
        assert await waits.blpop(["nothing"], timeout=0.1) is None
        server.freeze()
        with anyio.fail_after(15), pytest.raises(exceptions.TimeoutError):
            await waits.blpop(["nothing"], timeout=0.1)
    finally:
        server.thaw()
        await waits.aclose()


@pytest.mark.usefixtures("impatient")
async def test_frozen_server_is_a_503_of_the_api(server: RedisServer, token: str) -> None:
    async with api_client(ApiSettings(redis_url=server.url, cache_s=60), token=token) as api:
        assert (await api.post("/v1/predictions", json=BODY)).status_code == 201
        server.freeze()
        try:
            with anyio.fail_after(20):
                answer = await api.post("/v1/predictions", json=BODY, headers={"Prefer": "wait=1"})
            assert answer.status_code == 503
        finally:
            server.thaw()
        assert (await api.post("/v1/predictions", json=BODY)).status_code == 201
