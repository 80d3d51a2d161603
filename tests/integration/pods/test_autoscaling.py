"""Test scaling from no director to several and back with the two shipped KEDA scalers, called as KEDA calls them."""

import sys
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.core.ids import queue_name
from director.core.settings import KeeperSettings
from director.keeper import keeper
from director.operate import scaling
from tests.integration.broker.test_users import OF_KEDA
from tests.support.autoscaler import Autoscaler, Number, autoscaled, trigger
from tests.support.eventually import eventually
from tests.support.live_director import Caller
from tests.support.queue_driver import MODEL, VERSION
from tests.support.servers import RedisServer

pytestmark = pytest.mark.heavy

TOKEN = "a-token-for-keda"
KEDA = trigger("keda")


@pytest.fixture
async def of_metrics_api(server: RedisServer, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Number]:
    """Read a keeper as the metrics-api scaler does. This keeper forgets arrivals in seconds, not in minutes."""
    monkeypatch.setattr(scaling, "WINDOWS_S", (10.0, 10.0))
    ports: list[int] = []
    async with anyio.create_task_group() as tasks:
        settings = KeeperSettings(redis_url=server.url, scale_token=TOKEN)
        tasks.start_soon(partial(keeper.run, settings, started=ports.append))
        [port] = await eventually(lambda: ports, "the keeper has begun")
        path = httpx.URL(KEDA["url"].replace("MODEL", MODEL)).path
        headers = {"Authorization": f"{KEDA['authMode'].title()} {TOKEN}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False) as http:

            async def number() -> float | None:
                answer = await http.get(path)
                return float(answer.json()[KEDA["valueLocation"]]) if answer.status_code == 200 else None

            yield number
        tasks.cancel_scope.cancel()


@pytest.fixture
async def of_redis(server: RedisServer, caller: Caller) -> AsyncGenerator[Number]:
    """Read Redis as the scaler for lists does, with the rights of its user, at the key that the command prints."""
    line = [sys.executable, "-m", "director", "scale", "--key", caller.queue, "--redis", server.url]
    key = (await anyio.run_process(line)).stdout.decode().strip()
    keda: Any = Redis.from_url(server.url_of("keda"), protocol=2)

    async def number() -> float | None:
        return float(await keda.eval(OF_KEDA, 1, key))

    yield number
    await keda.aclose()


async def none_is_left(scaler: Autoscaler) -> None:
    await eventually(lambda: scaler.directors, "the number returns to nought", until=lambda n: n == 0, limit_s=60)


async def rests_at_none(scaler: Autoscaler) -> None:
    """Check that no director starts while there is no work."""
    await eventually(lambda: scaler.seen, "it was asked again and again", until=lambda seen: len(seen) >= 5)
    assert (set(scaler.seen), scaler.servers) == ({(0.0, 0)}, [])


SCALERS = pytest.mark.parametrize(("name", "reads"), [("keda", "of_metrics_api"), ("keda-live", "of_redis")])


@pytest.fixture
def number(request: pytest.FixtureRequest, reads: str) -> Number:
    read: Number = request.getfixturevalue(reads)
    return read


@SCALERS
async def test_scaler_starts_one_director_for_one_prediction(
    caller: Caller, server: RedisServer, name: str, number: Number
) -> None:
    """The prediction runs once to its end, and then no director is left."""
    async with autoscaled(name, number, server.url, run_s=2) as scaler:
        await rests_at_none(scaler)
        asked = await caller.submit()
        assert (await caller.ended(asked))["status"] == "succeeded"
        record = await caller.record(asked)
        assert (record.attempt, record.claims) == (1, 1), "no director ended under it"
        await none_is_left(scaler)
        counted = [number for number, _ in scaler.seen]
        assert set(counted) == {0.0, 1.0}
        assert sorted(counted) != counted, "it went up, and down again"
        assert len(scaler.servers) == 1


@SCALERS
async def test_scaler_starts_several_directors_for_a_burst(
    caller: Caller, server: RedisServer, name: str, number: Number
) -> None:
    async with autoscaled(name, number, server.url, run_s=0.3, most=3) as scaler:
        await rests_at_none(scaler)
        asked = [await caller.submit() for _ in range(50)]
        for each in asked:
            assert (await caller.ended(each))["status"] == "succeeded"
        await none_is_left(scaler)
        assert max(directors for _, directors in scaler.seen) == 3
        assert sum(len(server.spans) for server in scaler.servers) == len(asked), "each ran once"
        await caller.nothing_is_left()


async def test_never_served_model_gets_a_director_that_registers_it(
    server: RedisServer, scripts: Scripts, redis: Redis, of_metrics_api: Number
) -> None:
    """Before that its queue does not exist, so there is no number, and KEDA falls back."""
    async with autoscaled("keda", of_metrics_api, server.url) as scaler:
        await eventually(lambda: scaler.directors, "one is started without a number")
        assert {number for number, _ in scaler.seen} == {None}
        caller = Caller(redis, scripts)
        await none_is_left(scaler)
        assert await redis.sismember("queues", queue_name(MODEL, VERSION))
        assert (await caller.ended(await caller.submit()))["status"] == "succeeded"
        await none_is_left(scaler)
        assert len(scaler.servers) == 2
