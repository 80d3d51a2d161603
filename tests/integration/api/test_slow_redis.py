"""Test what a slow Redis, and the death of the API in the middle of a request, do to callers."""

import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker import keys
from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.local.launcher.processes import free_port
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.api import api_client, live_api
from tests.support.eventually import eventually, every
from tests.support.live_director import Gate, director_process, keeper_process
from tests.support.model_server import model_server
from tests.support.proxy import losing_proxy
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer, redis_server

pytestmark = [pytest.mark.faults]

BODY: dict[str, Any] = {"version": VERSION, "input": {"text": "hi"}}
KEYED = {"Idempotency-Key": "one"}
SLEEP_S = 9  # longer than a lease, and than all that a request waits for Redis
ALIVE_S = 5.0  # the time that the probes of the pods have
RUNNER = {"path": "/predict", "input": {"args": {"$input": ""}}, "output": "/result/items"}


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


class Work:
    """Ordinary work: callers that create one prediction after another, and probes of each process."""

    def __init__(self, api: AsyncClient, healths: list[str]) -> None:
        self.answers: list[httpx.Response] = []
        self.slowest_s = 0.0
        self.probes: list[tuple[int, float]] = []
        self._api = api
        self._healths = healths

    @property
    def ids(self) -> list[str]:
        return [answer.json()["id"] for answer in self.answers if answer.status_code == 201]

    async def create(self) -> None:
        async for _ in every(0.02):
            began = anyio.current_time()
            self.answers.append(await self._api.post("/v1/predictions", json=BODY))
            self.slowest_s = max(self.slowest_s, anyio.current_time() - began)

    async def probe(self) -> None:
        async for _ in every(0.05):
            for url in self._healths:
                began = anyio.current_time()
                status = (await self._api.get(f"{url}/livez")).status_code
                self.probes.append((status, anyio.current_time() - began))

    async def are_ready(self) -> bool:
        try:
            return all([(await self._api.get(f"{url}/readyz")).is_success for url in self._healths])
        except httpx.TransportError:  # it does not listen yet
            return False

    async def status(self, prediction_id: str) -> str:
        answer = await self._api.get(f"/v1/predictions/{prediction_id}")
        return str(answer.json()["status"]) if answer.is_success else ""


async def test_redis_that_sleeps_in_the_middle_of_work_is_503_and_all_heals(tmp_path: Path) -> None:
    """DEBUG SLEEP holds the whole server: it answers no client, and leases pass meanwhile."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(redis_server(config={"enable-debug-command": "yes"}))
        boss: Any = client(server.url)
        stack.push_async_callback(boss.aclose)
        token, gate = await made(boss), Gate(tmp_path / "gate")
        model = await stack.enter_async_context(model_server())
        ports = [free_port(), free_port()]
        api = await stack.enter_async_context(live_api(server.url))
        await stack.enter_async_context(keeper_process(server.url, lease_s=3, port=ports[0]))
        driven = {"runner": "http", "runner_config": json.dumps(RUNNER), "concurrent_predictions": 4, "lease_s": 3}
        await stack.enter_async_context(director_process(server.url, model.url, health_port=ports[1], **driven))
        headers = {"Authorization": f"Bearer {token}"}
        http = AsyncClient(base_url=api.url, headers=headers, trust_env=False, timeout=30)
        await stack.enter_async_context(http)
        work = Work(http, [api.url, *(f"http://127.0.0.1:{port}" for port in ports)])
        await eventually(work.are_ready, "all are ready", limit_s=60)
        body = {"version": VERSION, "input": {"gate": str(gate)}}
        held = (await http.post("/v1/predictions", json=body)).json()["id"]
        await eventually(lambda: work.status(held), "it runs", until="processing".__eq__)
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(work.create)
            tasks.start_soon(work.probe)
            await eventually(lambda: len(work.ids) >= 20, "work goes on")
            async with Redis(unix_socket_path=str(server.socket), socket_timeout=None) as operator:
                await operator.execute_command("DEBUG", "SLEEP", SLEEP_S)
            done = len(work.ids)
            await eventually(lambda: len(work.ids) >= done + 20, "work goes on again")
            tasks.cancel_scope.cancel()
        await eventually(work.are_ready, "all are ready again")
        gate.open()
        for prediction_id in [held, *work.ids]:
            await eventually(lambda one=prediction_id: work.status(one), "it ends", until="succeeded".__eq__)
    refused = [answer for answer in work.answers if answer.status_code != 201]
    assert refused
    assert {(answer.status_code, "retry-after" in answer.headers) for answer in refused} == {(503, True)}
    assert work.slowest_s < SLEEP_S, "no caller waited until Redis was back"
    assert {status for status, _ in work.probes} == {200}
    assert max(took_s for _, took_s in work.probes) <= ALIVE_S
