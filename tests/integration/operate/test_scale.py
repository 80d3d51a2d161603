"""Check /scale of a keeper, as KEDA's metrics-api scaler asks it, and `director scale`, which says the same."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import httpx
import pytest
from anyio import to_thread
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.cli.main import main
from director.core.clock import SystemClock
from director.core.ids import QueueName
from director.operate.scaling import Scale, Scaling
from director.store.catalog import Catalog
from director.store.deployments import Deployments
from tests.integration.keeper.test_keeper_process import Log, keeper_process, ready
from tests.support.queue_driver import MODEL, VERSION, QueueDriver
from tests.support.servers import RedisServer, redis_server

TOKEN = "a-token-for-keda"
SHOWN = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def driver(redis: Redis, scripts: Scripts, queue: QueueName) -> QueueDriver:
    """The queue by the server's own clock, which a keeper follows."""
    driver = QueueDriver(redis, scripts, queue)
    driver.now_ms = time.time_ns() // 1_000_000
    return driver


@pytest.fixture
async def keeper(server: RedisServer, driver: QueueDriver) -> AsyncGenerator[httpx.AsyncClient]:
    async with keeper_process(server, DIRECTOR_SCALE_TOKEN=TOKEN) as process:
        port = (await Log(process).until("health is served"))["port"]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            await ready(http, status=200)
            yield http
        process.send_signal(signal.SIGTERM)
        with anyio.fail_after(20):
            assert await process.wait() == 0


async def told(http: httpx.AsyncClient, queue: str) -> dict[str, Any]:
    response = await http.get(f"/scale/{queue}", headers=SHOWN)
    assert response.status_code == 200
    return dict(response.json())


async def at(http: httpx.AsyncClient, queue: str, location: str) -> float:
    """Read the JSON as KEDA does: `valueLocation` is a path that must lead to a number."""
    value: Any = await told(http, queue)
    for part in location.split("."):
        value = value[part]
    return float(value)


@pytest.fixture
def scaling(redis: Redis, scripts: Scripts, catalog: Catalog) -> Scaling:
    return Scaling(redis, scripts, catalog, SystemClock())


async def test_queue_scales_from_zero_to_one_and_back(keeper: httpx.AsyncClient, driver: QueueDriver) -> None:
    assert await told(keeper, driver.queue) == {"wanted": 0, "runnable": 0, "running": 0}
    await driver.submit()
    assert await at(keeper, driver.queue, "wanted") == 1
    claim = await driver.claim_one()
    assert await told(keeper, driver.queue) == {"wanted": 1, "runnable": 0, "running": 1}
    assert await driver.release(claim, delay_s=3600) == "delayed"
    assert await at(keeper, driver.queue, "runnable") == 0


async def test_queue_is_found_by_each_name(keeper: httpx.AsyncClient, driver: QueueDriver) -> None:
    await driver.submit()
    for name in (driver.queue, driver.queue.replace(":", "/"), MODEL):
        assert (await told(keeper, name))["runnable"] == 1


async def test_request_without_the_token_is_rejected(keeper: httpx.AsyncClient, driver: QueueDriver) -> None:
    for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": "Bearer"}):
        refused = await keeper.get(f"/scale/{driver.queue}", headers=given)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")


async def test_unknown_queue_is_404_and_not_zero(keeper: httpx.AsyncClient) -> None:
    for name in ("acme/nothing", "acme/echo:000000000000", "acme", "acme/echo:000000000000/x", "%2e%2e/x", "a" * 5000):
        assert (await keeper.get(f"/scale/{name}", headers=SHOWN)).status_code == 404


async def test_route_and_command_agree(keeper: httpx.AsyncClient, driver: QueueDriver, server: RedisServer) -> None:
    for _ in range(3):
        await driver.submit()
    line = [sys.executable, "-m", "director", "scale", driver.queue, "--redis", server.url]

    async def run(*more: str) -> str:
        done = await to_thread.run_sync(
            lambda: subprocess.run([*line, *more], capture_output=True, text=True, timeout=60, check=True)
        )
        return done.stdout.strip()

    assert json.loads(await run("--json")) == await told(keeper, driver.queue)
    key = await run("--key")
    assert await driver.redis.zcard(key) == 3
    assert json.loads(await run("--key", "--json")) == {"key": key}


async def test_unknown_queue_has_no_key(
    server: RedisServer, driver: QueueDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["scale", "acme/echo:000000000000", "--key", "--redis", server.url]
    assert await to_thread.run_sync(main, line) == 1
    assert "there is no queue acme/echo:000000000000" in capsys.readouterr().err


async def test_keeper_without_a_token_rejects_every_request(server: RedisServer, driver: QueueDriver) -> None:
    async with keeper_process(server) as process:
        port = (await Log(process).until("health is served"))["port"]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            for given in ("Bearer", "Bearer x"):
                refused = await http.get(f"/scale/{driver.queue}", headers={"Authorization": given})
                assert refused.status_code == 401


async def test_no_number_while_redis_is_away() -> None:
    with redis_server() as server:
        async with keeper_process(server, DIRECTOR_SCALE_TOKEN=TOKEN) as process:
            port = (await Log(process).until("health is served"))["port"]
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as http:
                await ready(http, status=200)
                server.kill()
                away = await http.get("/scale/acme/echo:0123456789ab", headers=SHOWN)
                assert (away.status_code, away.headers["retry-after"]) == (503, "5")
                assert "wanted" not in away.json()


async def test_paused_queue_wants_only_what_runs(scaling: Scaling, driver: QueueDriver) -> None:
    for _ in range(3):
        await driver.submit()
    await driver.claim_one()
    await driver.pause()
    assert await scaling.of(driver.queue) == Scale(wanted=1, runnable=0, running=1)


async def test_objectives_and_arrivals_count(scaling: Scaling, driver: QueueDriver) -> None:
    await driver.redis.hset(keys.meta(driver.queue), mapping={"service_ms": 2000, "slots_each": "2.00"})
    for _ in range(60):
        await driver.submit()
        await driver.finish(await driver.claim_one())
    await driver.redis.hset(keys.meta(driver.queue), "service_ms", 2000)
    assert await driver.scripts.sample(driver.queue, period_s=10, most=360, now_ms=driver.now_ms)
    # One arrival a second at two seconds each: two slots on average, and a third or the line grows.
    assert await scaling.of(driver.queue) == Scale(wanted=2, runnable=0, running=0)
    at_once = '{"normal":{"share":0.999,"within_s":0.001}}'
    await driver.redis.hset(keys.meta(driver.queue), "objectives", at_once)
    assert (await scaling.of(driver.queue)).wanted == 5


async def test_deployments_of_the_owner_set_the_bounds(scaling: Scaling, driver: QueueDriver, scripts: Scripts) -> None:
    deployments = Deployments(driver.redis, scripts, SystemClock())
    release = {"model": MODEL, "version": VERSION, "hardware": "gpu"}
    await deployments.create("mallory", "many", **release, min_instances=9, max_instances=9)
    await deployments.create(MODEL.partition("/")[0], "mine", **release, min_instances=2, max_instances=3)
    assert (await scaling.of(driver.queue)).wanted == 2
    for _ in range(50):
        await driver.submit()
    await driver.redis.hset(keys.meta(driver.queue), "service_ms", 60_000)
    assert (await scaling.of(driver.queue)).wanted == 3
