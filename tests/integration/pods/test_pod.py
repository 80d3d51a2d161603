"""Test the promises of the GPU pool's pod with its two processes, started and ended as the manifest says."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest

from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.policy import Policy
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.integration.execution.test_files import INPUTS, SOURCE
from tests.support.api import live_api
from tests.support.cog import cog_schema, cog_server, write_model
from tests.support.eventually import eventually, every
from tests.support.live_director import Caller, Gate, Tally, director_process
from tests.support.pod import DEFAULTS, GRACE_S, HAND_BACK_S, Pod, pod
from tests.support.queue_driver import MODEL, VERSION
from tests.support.servers import RedisServer, redis_server

pytestmark = [pytest.mark.cog, pytest.mark.heavy]

MODEL_END_S = 30
SETUP = """
    import os
    from cog import BasePredictor

    class Predictor(BasePredictor):
        def setup(self):
            with open({tally!r}, "a") as file:
                file.write(".")
            wait_for({gate!r})
            if os.path.getsize({tally!r}) <= {failures}:
                raise RuntimeError("no weights")

        def predict(self, text: str = "a") -> str:
            return text
"""


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    with redis_server(guarded=True) as started:
        yield started


@asynccontextmanager
async def calling(server: RedisServer) -> AsyncGenerator[Caller]:
    redis = client(server.url)
    gatherer = Gatherer(redis)
    try:
        scripts = Scripts(gatherer)
        await Catalog(redis, scripts, SystemClock()).register(
            MODEL, VERSION, schema=OPEN_SCHEMA, server="", policy=Policy()
        )
        yield Caller(redis, scripts)
    finally:
        await gatherer.aclose()
        await redis.aclose()


def with_setup(folder: Path, gate: Gate, tally: Tally, *, failures: int = 0) -> Path:
    """Write a model whose setup waits for the gate, and fails this number of times."""
    return write_model(folder / "model", SETUP.format(tally=str(tally), gate=str(gate), failures=failures))


def test_grace_period_covers_the_whole_shutdown() -> None:
    """The drain takes its own time, then the time to release and notify; then the model server ends."""
    assert float(DEFAULTS["DIRECTOR_DRAIN_S"]) >= float(DEFAULTS["DIRECTOR_RUN_LIMIT_S"])
    assert float(DEFAULTS["DIRECTOR_DRAIN_S"]) + HAND_BACK_S + MODEL_END_S <= GRACE_S


async def test_director_starts_after_the_setup_of_the_model_server(
    caller: Caller, server: RedisServer, tmp_path: Path, gate: Gate, tally: Tally
) -> None:
    async with pod(with_setup(tmp_path, gate, tally), server.url, starts=False) as one:
        await eventually(lambda: one.answered, "Cog says that it starts", until=lambda times: times > 1, limit_s=60)
        assert one.starts == {"model": 1, "director": 0}
        gate.open()
        await one.has_started.wait()
        await one.becomes_ready()
        assert (await caller.ended(await caller.submit(text="b")))["output"] == "b"
        assert one.starts == {"model": 1, "director": 1}


async def test_failed_setup_is_reported_and_the_model_server_restarted(
    caller: Caller, server: RedisServer, tmp_path: Path, gate: Gate, tally: Tally
) -> None:
    gate.open()
    model = with_setup(tmp_path, gate, tally, failures=1)
    async with pod(model, server.url, settings={"DIRECTOR_SETUP_RETRY_S": "2"}) as one:
        missing = await eventually(one.missing, "the setup has failed", until=lambda told: "setup" in str(told))
        assert not await one.is_ready(), missing
        asked = await caller.submit(text="b")
        await one.becomes_ready()
        assert (await caller.ended(asked))["output"] == "b"
        assert one.starts == {"model": 2, "director": 1}


async def test_sigterm_ends_the_model_server_after_its_runs(
    caller: Caller, server: RedisServer, folder: Path, gate: Gate
) -> None:
    async with pod(folder, server.url) as one:
        await one.becomes_ready()
        running = await caller.submit(n=1, gate=str(gate))
        await caller.shows(running, status="processing")
        waiting = await caller.submit(n=1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.end)
            missing = await eventually(one.missing, "it is not ready any more")
            assert missing == {"model": "draining"}
            assert await one.is_live()
            assert (await caller.status(running), one.exit_codes) == ("processing", {})
            gate.open()
        assert (one.exit_codes, one.killed) == ({"director": 0, "model": 0}, [])
        assert one.starts == {"model": 1, "director": 1}
    assert (await caller.ended(running))["status"] == "succeeded"
    record = await caller.record(waiting)
    assert (record.status, record.claims) == ("starting", 0)


async def test_unstoppable_run_does_not_delay_the_pod_beyond_its_grace_period(
    caller: Caller, server: RedisServer, folder: Path, gate: Gate
) -> None:
    async with pod(folder, server.url, settings={"DIRECTOR_DRAIN_S": "0.5"}) as one:
        await one.becomes_ready()
        asked = await caller.submit(n=1, gate=str(gate), then="stubborn")
        await caller.shows(asked, output=["a0"])
        await one.end(grace_s=0.5 + HAND_BACK_S + MODEL_END_S)
        assert (one.exit_codes["director"], one.killed) == (0, [])
    record = await caller.record(asked)
    assert (record.status, record.attempt) == ("starting", 0)


async def test_outage_of_redis_affects_readiness_but_never_liveness(own_server: RedisServer, folder: Path) -> None:
    own_server.stop()
    async with pod(folder, own_server.url) as one:
        assert await one.is_live(), "before Redis ever answered"
        assert not await one.is_ready()
        own_server.start()
        await one.becomes_ready()
        own_server.kill()
        await eventually(one.is_ready, "readiness is off", until=lambda ready: not ready)
        assert await one.is_live()
        own_server.start()
        await one.becomes_ready()
        async with calling(own_server) as caller:
            assert (await caller.ended(await caller.submit(n=1)))["output"] == ["a0"]
        assert one.starts == {"model": 1, "director": 1}


@pytest.mark.parametrize("dies", ["the server", "its worker"])
async def test_dead_model_server_returns_while_the_director_continues(
    caller: Caller, server: RedisServer, folder: Path, gate: Gate, tally: Tally, dies: str
) -> None:
    async with pod(folder, server.url, settings={"DIRECTOR_BACKOFF_S": "0"}) as one:
        await one.becomes_ready()
        given = {"gate": str(gate)} if dies == "the server" else {"then": "exit once"}
        asked = await caller.submit(n=1, count=str(tally), **given)
        if dies == "the server":
            await caller.shows(asked, output=["a0"])
            one.kill_model()
            gate.open()
        assert (await caller.ended(asked))["status"] == "succeeded"
        assert ((await caller.record(asked)).attempt, tally.runs) == (2, 2)
        assert one.starts == {"model": 2, "director": 1}


async def test_roll_without_surge_under_load_loses_and_duplicates_nothing(
    caller: Caller, server: RedisServer, folder: Path, tally: Tally
) -> None:
    asked: list[str] = []
    has_rolled = anyio.Event()

    async def ask() -> None:
        async for _ in every(0.05):
            if has_rolled.is_set():
                break
            asked.append(await caller.submit(n=1, count=str(tally)))

    async with anyio.create_task_group() as pods:
        old = [await pods.start(_run, folder, server.url) for _ in range(2)]
        async with anyio.create_task_group() as load:
            load.start_soon(ask)
            for one in old:
                await one.end()
                assert (one.exit_codes, one.killed) == ({"director": 0, "model": 0}, [])
                served = await caller.submit(n=1, count=str(tally))
                asked.append(served)
                assert (await caller.ended(served))["status"] == "succeeded", "there is always one that serves"
                await pods.start(_run, folder, server.url)
            has_rolled.set()
        for prediction in asked:
            assert (await caller.ended(prediction))["status"] == "succeeded"
            assert (await caller.record(prediction)).attempt == 1
        assert tally.runs == len(asked)
        await caller.nothing_is_left()
        pods.cancel_scope.cancel()


async def _run(folder: Path, url: str, *, task_status: anyio.abc.TaskStatus[Pod]) -> None:
    async with pod(folder, url) as one:
        await one.becomes_ready()
        task_status.started(one)
        await anyio.sleep_forever()


FILES = {"type": "array", "items": {"type": "string", "format": "uri"}, "x-cog-array-type": "iterator"}


async def test_output_files_go_through_the_api(caller: Caller, server: RedisServer, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", SOURCE, cog_schema(INPUTS, FILES))
    async with (
        live_api(server.url, env={"DIRECTOR_FILES_DIR": str(tmp_path / "volume")}) as api,
        cog_server(model) as cog,
        director_process(server.url, cog, files_url=api.url) as director,
    ):
        ended = await caller.ended(await caller.submit(n=2, size=3_000_000))
        assert ended["status"] == "succeeded"
        async with httpx.AsyncClient(base_url=api.url, trust_env=False) as http:
            for number, address in enumerate(ended["output"]):
                answer = await http.get(httpx.URL(address).raw_path.decode())
                assert (answer.status_code, answer.content) == (200, bytes([number]) * 3_000_000)
        assert not director.said("storing a file failed")
