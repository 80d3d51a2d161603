"""Test that a running director adopts a changed model configuration without a restart and without losing a run."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import SettingsError
from director.core.ids import queue_name
from director.core.model_config import ModelConfig
from director.store.models import ModelConfigs
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live, live_director
from tests.support.model_server import ModelServer, model_server
from tests.support.queue_driver import MODEL, VERSION
from tests.support.runner_conformance import CONFIGS
from tests.support.servers import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[ModelServer, None]:
    async with model_server() as server:
        yield server


@pytest.fixture
def model_url(model: ModelServer) -> str:
    return model.url


class Operator:
    """Writes the configuration as an operator does."""

    def __init__(self, redis: Redis, configs: ModelConfigs) -> None:
        self.redis = redis
        self.configs = configs

    async def says(self, **config: Any) -> None:
        await self.configs.put(MODEL, ModelConfig(**config), by="ops")


@pytest.fixture
async def operator(redis: Redis, scripts: Scripts) -> AsyncIterator[Operator]:
    yield Operator(redis, ModelConfigs(redis, scripts, SystemClock()))
    await redis.delete(keys.model(MODEL))


def driven(kind: str) -> dict[str, str]:
    return {"runner": kind, "runner_config": json.dumps(CONFIGS[kind])}


async def policy(redis: Any) -> list[str]:
    names = ["attempts", "on_lost", "breaker_mode", "lifetime_ms"]
    return [(value or b"").decode() for value in await redis.hmget(keys.meta(queue_name(MODEL, VERSION)), names)]


async def test_queue_policy_is_changed_and_reset(caller: Caller, live: Live, operator: Operator) -> None:
    async with live.director(**driven("http")):
        await caller.ended(await caller.submit(n=1))
        assert await policy(caller.redis) == ["3", "retry", "hold", ""]
        await operator.says(attempts=7, on_lost="fail", breaker_mode="fail", lifetime_s=60)
        await eventually(
            lambda: policy(caller.redis), "in force", until=lambda now: now == ["7", "fail", "fail", "60000"]
        )
        await operator.configs.remove(MODEL, by="ops")
        await eventually(lambda: policy(caller.redis), "as before", until=lambda now: now == ["3", "retry", "hold", ""])


async def test_run_started_after_a_change_has_the_new_limit(
    caller: Caller, live: Live, operator: Operator, gate: Gate
) -> None:
    async with live.director(concurrent_predictions=2, **driven("http")):
        await caller.ended(await caller.submit(n=1))
        before = await caller.running(gate=str(gate))
        await operator.says(run_limit_s=0.2, attempts=4)
        await eventually(lambda: policy(caller.redis), "in force", until=lambda now: now[0] == "4")
        ended = await caller.ended(await caller.submit(gate=f"{gate}.other"))
        assert (ended["status"], ended["error"]) == ("failed", "Prediction timed out")
        assert (await caller.get(before))["status"] == "processing", "it goes by the limit of its beginning"
        gate.open()
        assert (await caller.ended(before))["status"] == "succeeded"


async def test_additional_slots_start_waiting_predictions(
    caller: Caller, live: Live, operator: Operator, gate: Gate
) -> None:
    async with live.director(**driven("http")):
        await caller.ended(await caller.submit(n=1))
        ids = [await caller.submit(gate=str(gate)) for _ in range(2)]
        await caller.shows(ids[0], status="processing")
        await operator.says(slots=2)
        await caller.shows(ids[1], status="processing")
        gate.open()
        assert [(await caller.ended(each))["status"] for each in ids] == ["succeeded", "succeeded"]


async def test_server_changes_its_protocol_after_its_run_has_ended(
    caller: Caller, live: Live, operator: Operator, gate: Gate
) -> None:
    async with live.director(**driven("http")) as director:
        running = await caller.running(gate=str(gate))
        await operator.says(runner={"kind": "polling", **CONFIGS["polling"]})
        await eventually(lambda: director.servers.all == [], "it gets nothing more")
        waiting = await caller.submit(n=1)
        gate.open()
        assert (await caller.ended(running))["status"] == "succeeded"
        assert (await caller.ended(waiting))["status"] == "succeeded"
        assert (await caller.record(running)).remote == ""
        assert (await caller.record(waiting)).remote != "", "this one was polled"


async def test_director_started_without_servers_takes_them_from_the_configuration(
    caller: Caller, server: RedisServer, model: ModelServer, operator: Operator
) -> None:
    await operator.redis.hset(keys.model(MODEL), "created", "1")
    await operator.says(servers=(model.url,), runner={"kind": "http", **CONFIGS["http"]})
    async with live_director(server.url):
        assert (await caller.ended(await caller.submit(n=1)))["status"] == "succeeded"


async def test_director_without_any_server_says_what_it_needs(server: RedisServer, redis: Redis) -> None:
    with pytest.raises(ExceptionGroup) as ended:
        async with live_director(server.url):
            await anyio.sleep_forever()
    assert ended.group_contains(SettingsError, match="at least one --server")


async def test_unusable_configuration_leaves_the_director_unchanged(
    caller: Caller, live: Live, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    async with live.director(**driven("http")):
        await caller.ended(await caller.submit(n=1))
        await caller.redis.hset(keys.model(MODEL), "config", '{"of a newer release": 1}')
        await eventually(lambda: "the configuration cannot be used" in caplog.text, "it says so")
        assert (await caller.ended(await caller.submit(n=1)))["status"] == "succeeded"
        await operator.says(attempts=6)
        await eventually(lambda: policy(caller.redis), "in force", until=lambda now: now[0] == "6")
