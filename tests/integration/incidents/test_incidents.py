"""Test that each incident is named with its cause by the doctor, by explain, by the page's feed and by an alert."""

import os
import re
import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.core.errors import BackendUnavailable
from director.core.policy import Policy
from director.core.states import Status
from director.local.launcher.processes import free_port
from director.store.directors import Directors
from tests.integration.incidents.scene import Incident, Scene, scene
from tests.support.cog import cog_process, write_model
from tests.support.disk import fill, small_disk
from tests.support.eventually import eventually
from tests.support.live_director import director_process, supervised_cog
from tests.support.proxy import losing_proxy
from tests.support.queue_driver import QueueDriver
from tests.support.servers import RedisServer, redis_server
from tests.support.timed_server import timed_server

pytestmark = pytest.mark.faults

MODELS = """
    import os
    from cog import BasePredictor

    class Poisoned(BasePredictor):
        def predict(self, text: str = "a") -> str:
            os._exit(1)

    class Waiting(BasePredictor):
        def predict(self, gate: str) -> str:
            while not os.path.exists(gate):
                pass
            return ""

    class Broken(BasePredictor):
        def setup(self):
            raise RuntimeError("no weights here")

        def predict(self, text: str = "a") -> str:
            return ""
"""

PAUSED = Incident(code="queue_paused", alert="DirectorQueuePaused", metric="director_queue_paused", holds=bool)
FLOODED = Incident(
    code="tenant_flooding",
    alert="DirectorTenantFlooding",
    metric="director_queue_largest_share",
    holds=lambda share: share > 0.8,
)
UNTOLD = Incident(
    code="receiver_dead",
    alert="DirectorWebhooksOwedLong",
    metric="director_webhooks_owed_oldest_seconds",
    holds=lambda seconds: seconds > 600,
)
SLOW = Incident(
    code="redis_slow",
    alert="DirectorRedisSlow",
    metric="director_redis_round_trip_seconds_bucket",
    labels={"le": "+Inf"},
    holds=lambda trips: trips > 20,
)
POISON = Incident(
    code="dead_letters",
    alert="DirectorPoisonInput",
    metric="director_given_back_total",
    labels={"error": "infrastructure", "became": "dead"},
    holds=bool,
    process="director",
)
HANGS = Incident(
    code="run_hangs",
    alert="DirectorRunHangs",
    metric="director_findings",
    labels={"code": "run_hangs"},
    holds=bool,
)
TIMES_OUT = Incident(
    code="runs_time_out",
    alert="DirectorRunsTimeOut",
    metric="director_findings",
    labels={"code": "runs_time_out"},
    holds=bool,
)
GONE = Incident(code="director_gone", alert="DirectorLost", metric="director_reaped_total", holds=bool)
LOOP = Incident(code="setup_loop", alert="DirectorSetupFailing", metric="director_queue_setup_failed", holds=bool)


@pytest.fixture(scope="module")
async def stage() -> AsyncGenerator[Scene]:
    with redis_server() as server:
        async with scene(server.url) as started:
            yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "of-incidents", MODELS)


async def test_paused_queue_is_named(stage: Scene) -> None:
    caller = await stage.caller("acme/paused")
    waiting = await caller.submit(text="a")
    await stage.command("queues", "pause", caller.queue)
    async with stage.keeper():
        finding = await stage.is_named(PAUSED, caller.queue)
    assert re.match(r"1 waiting.*\. cli:\w+ paused the queue .+ ago\.", finding.detail)
    assert f"({caller.queue}): 1 waiting" in await stage.command("doctor")
    story = await stage.command("explain", waiting)
    assert re.search(r"cli:\w+ paused this queue .+ ago\.", story)
    assert "when it is no longer paused" in story


async def test_account_that_floods_a_queue_is_named(stage: Scene) -> None:
    caller = await stage.caller("acme/flooded", account="noisy")
    last = [await caller.submit(text="a") for _ in range(120)][-1]
    caller.account = "quiet"
    other = await caller.submit(text="a")
    async with stage.served(caller.queue):
        async with stage.keeper():
            finding = await stage.is_named(FLOODED, caller.queue)
            assert "noisy has 120 of the 121 that wait" in finding.detail
            assert "noisy floods this queue" in await stage.command("doctor")
        assert "of its own account go first" in await stage.command("explain", last)
        story = await stage.command("explain", other)
        assert "place 1 in its account's line" in story
        assert "noisy floods this queue: noisy has 120 of the 121 that wait" in story


async def test_dead_receiver_is_named(stage: Scene) -> None:
    caller = await stage.caller("acme/untold")
    driver = QueueDriver(stage.redis, stage.scripts, caller.queue)
    driver.now_ms = time.time_ns() // 1_000_000 - 11 * 60_000
    told = caller.new_id()
    host = f"127.0.0.1:{free_port()}"
    await caller.submit(told, webhook=f"http://{host}/hook", webhook_events="completed", now_ms=driver.now_ms)
    await driver.finish(await driver.claim_one(), Status.SUCCEEDED)
    assert "no keeper tried" in await stage.command("doctor")
    async with stage.keeper(webhook_schedule="0.1s,0.1s,1h,1h"):
        finding = await stage.is_named(UNTOLD)
    assert finding.title == f"{host} takes no webhooks"
    assert "times, the last time without an answer: see" in finding.detail
    assert finding.ask == f"director explain {told}"
    assert f"{host} takes no webhooks: 1 webhook owed there, the oldest for 11" in await stage.command("doctor")
    assert f"{host} failed the last" in await stage.command("explain", told)


async def test_overdue_retry_without_a_keeper_is_explained(stage: Scene) -> None:
    caller = await stage.caller("acme/overdue", Policy(attempts=3, backoff_s=1))
    driver = QueueDriver(stage.redis, stage.scripts, caller.queue)
    driver.now_ms = time.time_ns() // 1_000_000 - 60_000
    lost = await caller.submit(text="a", now_ms=driver.now_ms)
    await driver.release(await driver.claim_one(), spent=True, delay_s=1, error="lost", code="server_lost")
    finding = await stage.finds("keeper_silent")
    assert "1 retry that is due" in finding.detail
    story = await stage.command("explain", lost)
    assert "overdue for " in story
    assert story.rstrip().endswith(": no keeper acts")
    assert "No keeper acts: 1 retry that is due" in story
    assert "→ `director keeper` (who acts: an operator)" in story


@pytest.mark.cog
@pytest.mark.heavy
async def test_runs_that_time_out_are_named(stage: Scene, folder: Path, tmp_path: Path) -> None:
    caller = await stage.caller("acme/timing")
    async with (
        stage.keeper(),
        cog_process(folder, stub="predict.py:Waiting") as cog,
        director_process(stage.redis_url, cog.url, model=caller.model, run_limit_s=0.2, lease_s=3),
    ):
        late = [await caller.submit(gate=str(tmp_path / "never")) for _ in range(4)][-1]
        finding = await stage.is_named(TIMES_OUT, caller.queue)
        await caller.shows(late, status="failed")
        assert "were stopped by the run limit" in finding.detail
        assert finding.ask.startswith("director explain ")
        assert f"Run after run reaches its limit ({caller.queue})" in await stage.command("doctor")


@pytest.mark.heavy
@pytest.mark.long
async def test_run_that_hangs_is_named(stage: Scene) -> None:
    caller = await stage.caller("acme/hanging")
    measured = {"service_ms": 10, "service_dev": 1, "service_n": 50, "service_cost": 1}
    await stage.redis.hset(keys.meta(caller.queue), mapping=measured)  # type: ignore[misc]
    async with (
        timed_server(3600) as server,
        stage.keeper(),
        director_process(stage.redis_url, server.url, model=caller.model, lease_s=3),
    ):
        held = await caller.running(text="a")
        waiting = await caller.submit(text="a")
        finding = await stage.is_named(HANGS, caller.queue)
        assert (finding.level, finding.ask) == ("bad", f"director explain {held}")
        assert "that succeed take 0.1 s on average. It is stopped after 30 min. 1 waiting" in finding.detail
        assert f"A run takes far longer than usual ({caller.queue})" in await stage.command("doctor")
        for each in (held, waiting):
            assert f"A run takes far longer than usual: {held} has run for" in await stage.command("explain", each)


@pytest.mark.cog
@pytest.mark.heavy
@pytest.mark.long
async def test_frozen_server_is_named(stage: Scene, folder: Path, tmp_path: Path) -> None:
    caller = await stage.caller("acme/frozen")
    async with (
        cog_process(folder, stub="predict.py:Waiting") as cog,
        director_process(stage.redis_url, cog.url, model=caller.model, lease_s=3),
    ):
        held = await caller.running(gate=str(tmp_path / "never"))
        waiting = await caller.submit(gate=str(tmp_path / "never"))
        os.killpg(cog.pid, signal.SIGSTOP)
        try:
            await stage.finds("servers_unwell", caller.queue)
            for each in (held, waiting):
                story = await stage.command("explain", each)
                assert f"Servers are unwell: 1 of 1 server: {cog.url} is " in story
                assert "The model's servers are starting" not in story
        finally:
            os.killpg(cog.pid, signal.SIGCONT)


async def test_full_redis_is_named(mortal: RedisServer) -> None:
    async with scene(mortal.url) as stage, stage.http() as http:
        caller = await stage.caller("acme/full")
        waiting = await caller.submit(text="a")
        operator = Redis(unix_socket_path=str(mortal.socket))
        for number in range(64):  # small ones: a buffer of 32 MB would count as used, and then no more
            await operator.set(f"filler:{number}", b"x" * (512 << 10))
        used = (await stage.redis.info("memory"))["used_memory"]
        await operator.config_set("maxmemory", int(used / 0.85))
        filling = await stage.finds("redis_filling")
        assert (filling.level, filling.who) == ("warn", "who runs Redis")
        assert (await http.get("/readyz")).json()["accepting"] is True
        await operator.config_set("maxmemory", int(used / 1.2))
        finding = await stage.finds("redis_full")
        assert "Creates are refused until data expires; reads and cancels work" in finding.detail
        refused = await http.post("/v1/predictions", json={"version": f"{caller.model}", "input": {"text": "a"}})
        assert (refused.status_code, refused.json()["code"]) == (503, "memory_full")
        await eventually(
            lambda: http.get("/readyz"), "it says so", until=lambda ready: ready.json()["accepting"] is False
        )
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["ready"]) == (200, True)
        assert (await http.get(f"/v1/predictions/{waiting}/explain")).status_code == 200
        assert "fail  memory" in await stage.command("doctor")
        await operator.aclose()


@pytest.mark.heavy
async def test_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIRECTOR_DURABILITY", "everysec")  # with `always` the server ends
    with (
        small_disk(tmp_path / "disk", mib=8) as disk,
        redis_server(config={"dir": str(disk), "appendfsync": "everysec"}) as server,
    ):
        async with scene(server.url) as stage:
            caller = await stage.caller("acme/unwritten")
            waiting = await caller.submit(text="a")
            fill(disk)

            async def refused() -> bool:
                try:
                    await caller.submit(text="a")
                except BackendUnavailable:
                    return True
                return False

            await eventually(refused, "the disk is full")
            assert (await stage.finds("redis_disk")).level == "bad"
            assert "fail  fsync         Redis cannot write to its disk" in await stage.command("doctor")
            assert "Redis cannot write to its disk" in await stage.command("explain", waiting)


@pytest.mark.heavy
async def test_slow_redis_is_named(mortal: RedisServer) -> None:
    async with (
        losing_proxy(mortal.port) as proxy,
        scene(mortal.url, through=proxy.url) as far,
    ):
        proxy.delay_s = (0.03, 0.03)  # each way
        caller = await far.caller("acme/slow")
        waiting = await caller.submit(text="a")
        async with far.keeper():
            finding = await far.is_named(SLOW)
        assert "answers after" in finding.detail
        assert "warn  latency       Redis is slow" in await far.command("doctor")
        assert "measures whether it is slow" in await far.command("explain", waiting)


@pytest.mark.cog
async def test_input_that_kills_its_servers_is_named(stage: Scene, folder: Path) -> None:
    caller = await stage.caller("acme/poisoned", Policy(attempts=2, backoff_s=0.05))
    given = {"model": caller.model, "attempts": 2, "backoff_s": 0.05, "health_port": stage.ports["director"]}
    async with (
        stage.keeper(),
        supervised_cog(folder, stub="predict.py:Poisoned") as cog,
        director_process(stage.redis_url, cog.url, **given),
    ):
        poison = await caller.submit(text="a")
        await eventually(caller.dead, "it is a dead letter", limit_s=60)
        finding = await stage.is_named(POISON, caller.queue)
    assert "1 prediction used up all attempts" in finding.detail
    assert "server_lost, server_lost" in finding.detail
    assert finding.ask == f"director dead show {poison}"
    assert "Dead letters" in await stage.command("doctor")
    assert "a dead letter: its attempts ended with server_lost, server_lost" in await stage.command("explain", poison)


@pytest.mark.cog
@pytest.mark.heavy
async def test_missing_director_is_named(stage: Scene, folder: Path, tmp_path: Path) -> None:
    caller = await stage.caller("acme/lonely")
    async with (
        stage.keeper(lease_s=3),
        supervised_cog(folder, stub="predict.py:Waiting") as cog,
        director_process(stage.redis_url, cog.url, model=caller.model, lease_s=3) as director,
    ):
        held = await caller.submit(gate=str(tmp_path / "never"))
        there = Directors(stage.redis)
        await eventually(
            lambda: there.of([caller.queue]), "it holds a claim", until=lambda found: found and found[0].held == 1
        )
        director.process.kill()
        await director.exit_code()
        finding = await stage.is_named(GONE, caller.queue)
        assert finding.level == "bad"
        assert "with 1 claim in hand. None is left: " in finding.detail
        doctor = await stage.command("doctor")
        assert f"1 director went silent ({caller.queue})" in doctor
        story = await stage.command("explain", held)
        assert "No director serves this model now" in story
        assert "director_lost" in story


@pytest.mark.cog
@pytest.mark.heavy
async def test_setup_loop_of_a_model_is_named(stage: Scene, folder: Path) -> None:
    caller = await stage.caller("acme/looping")
    waiting = await caller.submit(text="a")
    async with (
        supervised_cog(folder, stub="predict.py:Broken", until="SETUP_FAILED") as cog,
        director_process(stage.redis_url, cog.url, model=caller.model, setup_retry_s=0.1),
    ):
        finding = await stage.finds("setup_loop", caller.queue)
        async with stage.keeper():
            await stage.is_named(LOOP, caller.queue)
            assert cog.starts > 1
        assert "starts in a row failed" in finding.detail
        assert "no weights here" in finding.detail
        assert f"A model is in a setup loop ({caller.queue})" in await stage.command("doctor")
        story = await stage.command("explain", waiting)
        assert "The model's servers failed to start" in story
        assert "each one fails now" in story
