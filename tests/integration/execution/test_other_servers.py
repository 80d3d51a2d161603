"""Test a director with model servers other than Cog, and changes of its configuration without a restart."""

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
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
from tests.integration.servers.test_polling_runner import jobs
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live, live_director
from tests.support.model_server import ModelServer
from tests.support.queue_driver import MODEL, VERSION
from tests.support.runner_conformance import CONFIGS
from tests.support.scripted_cog import answer, scripted_cog
from tests.support.servers import RedisServer

pytestmark = pytest.mark.usefixtures("hurried")


@pytest.fixture
def model_url(model: ModelServer) -> str:
    return model.url


def driven(kind: str, **given: Any) -> dict[str, str]:
    return {"runner": kind, "runner_config": json.dumps(CONFIGS[kind] | given)}


@pytest.mark.parametrize("kind", ["http", "polling"])
async def test_predictions_succeed_fail_and_are_refused_as_on_cog(caller: Caller, live: Live, kind: str) -> None:
    async with live.director(concurrent_predictions=2, **driven(kind)):
        ids = [await caller.submit(n=2), await caller.submit(then="raise"), await caller.submit(then="invalid")]
        succeeded, failed, invalid = [await caller.ended(prediction_id) for prediction_id in ids]
    assert (succeeded["status"], succeeded["output"], succeeded["metrics"]["units"]) == ("succeeded", ["a0", "a1"], 3)
    assert (failed["status"], failed["code"]) == ("failed", "model_failed")
    assert "it went wrong" in failed["error"]
    assert (invalid["status"], invalid["code"]) == ("failed", "invalid_input")


async def test_canceled_unstoppable_run_keeps_its_slot(
    caller: Caller, live: Live, model: ModelServer, gate: Gate
) -> None:
    async with live.director(**driven("polling", cancel_endpoint_template="")) as director:
        first = await caller.running(gate=str(gate))
        before = await jobs(model)
        await caller.cancel(first)
        assert (await caller.ended(first))["status"] == "canceled"
        second = await caller.submit(n=1)
        assert director.servers.permits.busy == 1
        assert director.servers.all[0].free == 0
        assert (await jobs(model), (await caller.get(second))["status"]) == (before, "starting")
        gate.open()
        assert (await caller.ended(second))["status"] == "succeeded"
        assert not Path(f"{gate}.stopped").exists()


async def test_text_appears_as_it_arrives_and_its_metrics_are_kept(caller: Caller, live: Live, gate: Gate) -> None:
    async with live.director(**driven("openai")):
        prediction_id = await caller.submit(prompt=json.dumps({"n": 2, "gate": str(gate)}))
        await caller.shows(prediction_id, status="processing", output=["a0", "a1"])
        gate.open()
        ended = await caller.ended(prediction_id)
        failed = await caller.ended(await caller.submit(prompt=json.dumps({"then": "raise"})))
    assert (ended["status"], ended["output"]) == ("succeeded", ["a0", "a1"])
    assert (ended["metrics"]["input_tokens"], ended["metrics"]["output_tokens"]) == (5, 2)
    assert ended["metrics"]["time_to_first_token"] >= 0
    assert (failed["status"], failed["output"], failed["error"]) == ("failed", ["a0", "a1", "a2"], "it went wrong")


async def test_configured_header_reaches_the_server_but_no_log(
    caller: Caller, live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_cog() as scripted:
        scripted.on("GET", "/health", answer(200, b""))
        scripted.on("POST", "/predict", answer(200, b"\x89P", content_type="image/png"))
        with caplog.at_level("DEBUG"):
            async with live.director(scripted.url, server_header="x-key: s3cret", **driven("http")):
                ended = await caller.ended(await caller.submit())
        assert {exchange.headers.get("x-key") for exchange in scripted.exchanges} == {"s3cret"}
    assert (ended["status"], ended["output"]) == ("succeeded", "data:image/png;base64,iVA=")
    assert "s3cret" not in caplog.text


@pytest.mark.faults
async def test_next_director_follows_the_run_of_a_dead_one(
    caller: Caller, live: Live, model: ModelServer, gate: Gate
) -> None:
    before = await jobs(model)
    async with live.keeper(lease_s=1):
        async with live.process(lease_s=1, **driven("polling")) as first:
            prediction_id = await caller.submit(gate=str(gate))
            await eventually(lambda: caller.record(prediction_id), "the name", until=lambda record: record.remote != "")
            first.send(signal.SIGKILL)
            await first.exit_code()
        async with live.director(lease_s=1, **driven("polling")):
            await eventually(lambda: caller.record(prediction_id), "the next", until=lambda record: record.attempt == 2)
            gate.open()
            assert (await caller.ended(prediction_id))["status"] == "succeeded"
    assert await jobs(model) == before + 1


@pytest.mark.faults
async def test_drain_leaves_the_run_to_the_next_director_without_an_attempt(
    caller: Caller, live: Live, model: ModelServer, gate: Gate
) -> None:
    before = await jobs(model)
    async with live.process(drain_s=0, **driven("polling")) as first:
        prediction_id = await caller.running(gate=str(gate))
        first.send(signal.SIGTERM)
        assert await first.exit_code() == 0
    assert (await caller.record(prediction_id)).attempt == 0
    async with live.director(**driven("polling")):
        gate.open()
        assert (await caller.ended(prediction_id))["status"] == "succeeded"
    assert await jobs(model) == before + 1


class Operator:
    def __init__(self, redis: Redis, configs: ModelConfigs) -> None:
        self.redis = redis
        self.configs = configs

    async def says(self, **config: Any) -> None:
        await self.configs.put(MODEL, ModelConfig(**config), by="ops")


@pytest.fixture
async def operator(redis: Redis, scripts: Scripts) -> AsyncIterator[Operator]:
    yield Operator(redis, ModelConfigs(redis, scripts, SystemClock()))
    await redis.delete(keys.model(MODEL))


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
        await operator.says()
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


async def test_stored_server_that_nothing_can_be_sent_to_is_left_out(
    caller: Caller, server: RedisServer, model: ModelServer
) -> None:
    config = {"servers": [model.url, "http://10.0.0.256:5000"], "runner": {"kind": "http", **CONFIGS["http"]}}
    await caller.redis.hset(keys.model(MODEL), mapping={"created": "1", "config": json.dumps(config)})
    async with live_director(server.url) as director:
        assert (await caller.ended(await caller.submit(n=1)))["status"] == "succeeded"
        [left_out] = director.figures["servers_left_out"]
        assert "10.0.0.256" in left_out


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
