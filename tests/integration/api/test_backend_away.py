"""Test an outage of Redis: the API answers 503 with Retry-After, loses nothing accepted and needs no restart."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import httpx
import pytest
from msgspec.structs import replace

from api.app import create_app
from api.services import gate
from api.services.gate import Gate
from api.web.http import Request
from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable, UnsafeBackend
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.integration.api.conftest import no_faults
from tests.support.api import BASE, api_client
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.garbage import alive, uncollected
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer, redis_server

pytestmark = [pytest.mark.not_on("cluster", "sentinel", why="kills a server of its own"), pytest.mark.faults]

BODY = {"version": VERSION, "input": {}}


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as started:
        yield started


@pytest.fixture
async def token(server: RedisServer) -> AsyncIterator[str]:
    redis = client(server.url)
    gatherer = Gatherer(redis)
    catalog = Catalog(redis, Scripts(gatherer), SystemClock())
    await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    yield await Accounts(redis).create_token(ACCOUNT)
    await gatherer.aclose()
    await redis.aclose()


def assert_away(answer: httpx.Response) -> None:
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "unavailable"


@pytest.mark.parametrize("cache_s", [0.0, 60.0], ids=["nothing cached", "all cached"])
async def test_every_route_answers_503_with_retry_after_and_recovers(
    server: RedisServer, settings: ApiSettings, token: str, cache_s: float
) -> None:
    async with api_client(replace(settings, cache_s=cache_s), token=token) as api:
        made = (await api.post("/v1/predictions", json=BODY)).json()
        server.kill()
        assert_away(await api.post("/v1/predictions", json=BODY))
        assert_away(await api.post("/v1/predictions", json=BODY, headers={"Prefer": "wait"}))
        assert_away(await api.get("/v1/predictions"))
        assert_away(await api.get(f"/v1/predictions/{made['id']}"))
        assert_away(await api.post(f"/v1/predictions/{made['id']}/cancel"))
        assert (await api.get("/livez")).status_code == 200
        away = await api.get("/readyz")
        assert (away.status_code, away.json()["ready"], away.json()["accepting"]) == (200, True, False)
        assert away.json()["reasons"]

        server.start()
        # at the first request: no caller has to try twice
        assert (await api.get(f"/v1/predictions/{made['id']}")).json() == made
        assert (await api.post("/v1/predictions", json=BODY, headers={"Prefer": "wait=1"})).status_code == 202

        async def is_accepting() -> bool:
            return bool((await api.get("/readyz")).json()["accepting"])

        await eventually(is_accepting, "it accepts again")


@pytest.mark.parametrize("cache_s", [0.0, 60.0], ids=["nothing cached", "all cached"])
async def test_refusal_in_an_outage_leaves_nothing_to_the_garbage_collector(
    server: RedisServer, settings: ApiSettings, token: str, cache_s: float
) -> None:
    async with api_client(replace(settings, cache_s=cache_s), token=token) as api:
        await api.post("/v1/predictions", json=BODY)
        server.kill()
        with uncollected():
            assert_away(await api.post("/v1/predictions", json=BODY))
            assert_away(await api.get("/v1/predictions"))
            await anyio.wait_all_tasks_blocked()
            assert alive(Request) == 0


async def test_write_that_failed_as_a_whole_is_reported_once(
    server: RedisServer, settings: ApiSettings, token: str
) -> None:
    async with api_client(replace(settings, cache_s=60.0), token=token) as api:
        await api.post("/v1/predictions", json=BODY)
        server.kill()
        with no_faults():
            assert_away(await api.post("/v1/predictions", json=BODY))
            await anyio.wait_all_tasks_blocked()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # the futures of broken connections
                gc.collect()  # collect the errors that no code retrieved


async def test_api_started_before_redis_serves_once_redis_answers(
    server: RedisServer, settings: ApiSettings, token: str
) -> None:
    server.kill()
    async with api_client(settings, token=token) as api:
        assert_away(await api.post("/v1/predictions", json=BODY))
        assert (await api.get("/readyz")).status_code == 503, "a rollout with a wrong address stops here"
        server.start()

        async def is_taken() -> bool:
            return (await api.post("/v1/predictions", json=BODY)).status_code == 201

        await eventually(is_taken, "it is taken")
        assert (await api.get("/readyz")).status_code == 200


async def test_unsafe_server_gets_no_work(settings: ApiSettings, token: str) -> None:
    unsafe: list[UnsafeBackend] = []
    async with api_client(replace(settings, durability="replicated"), token=token, on_unsafe=unsafe.append) as api:
        assert_away(await api.post("/v1/predictions", json=BODY))
        assert (await api.get("/v1/predictions")).json()["results"] == []
    [reason] = unsafe
    assert "DIRECTOR_DURABILITY=always" in str(reason)


async def test_readiness_names_the_durability_level(settings: ApiSettings, token: str) -> None:
    async with api_client(settings) as api:
        ready = (await api.get("/readyz")).json()
    assert (ready["ready"], ready["durability"], ready["reasons"]) == (True, "always", [])
    assert ready["server"].startswith("valkey ")


async def test_readiness_is_checked_once_a_second(settings: ApiSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    checks, check = 0, gate.check

    async def counted(*given: Any) -> Any:
        nonlocal checks
        checks += 1
        return await check(*given)

    async with api_client(settings) as api:
        monkeypatch.setattr(gate, "check", counted)
        answers = await asyncio.gather(*(api.get("/readyz") for _ in range(50)))
        assert [answer.status_code for answer in answers] == [200] * 50
        assert checks <= 2
        before = checks

        async def is_checked_again() -> bool:
            return (await api.get("/readyz")).status_code == 200 and checks > before

        await eventually(is_checked_again, "it is checked again")


async def test_server_that_became_unsafe_is_not_ready(server: RedisServer, settings: ApiSettings, token: str) -> None:
    async with api_client(settings) as api:
        redis = client(server.url)
        await redis.config_set("maxmemory-policy", "allkeys-lru")
        answer = await api.get("/readyz")
        await redis.aclose()
    assert answer.status_code == 503
    assert "noeviction" in answer.json()["reasons"][0]


async def test_api_that_ends_is_not_ready(settings: ApiSettings) -> None:
    app = create_app(settings)
    async with app.router.lifespan_context(app) as state:
        assert state is not None
        transport = httpx.ASGITransport(app=lambda scope, *calls: app({**scope, "state": state}, *calls))
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as api:
            assert (await api.get("/readyz")).status_code == 200
            state["services"].release()
            assert (await api.get("/readyz")).status_code == 503


async def test_reason_of_a_refusal_is_logged_once(
    settings: ApiSettings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, reasons = FakeClock(), ["away", "away", "refused", "refused", "away"]
    redis = client(settings.redis_url)

    async def look(_: Gate) -> None:
        raise BackendUnavailable(reasons.pop(0)) if reasons else UnsafeBackend("weak")

    async def was_refused() -> bool:
        clock.pass_time(1)
        return bool(refused)

    monkeypatch.setattr(Gate, "run_once", look)
    refused: list[UnsafeBackend] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Gate(redis, settings, clock=clock, on_unsafe=refused.append).run)
        await eventually(was_refused, "it was refused")
    assert [vars(record)["reason"] for record in caplog.records] == ["away", "refused", "away"]
