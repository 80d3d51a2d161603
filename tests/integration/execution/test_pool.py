"""Test several models or queues in one process: each is served separately, a fault affects one, a drain ends all."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.errors import SettingsError
from director.core.ids import QueueName, queue_name
from director.core.policy import Policy
from director.core.settings import DirectorSettings
from director.execution.director import check_settings
from director.execution.main import Pool, open_directors
from director.local.launcher.processes import free_port
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live, pool_process, settings_for, supervised_cog
from tests.support.queue_driver import MODEL, VERSION
from tests.support.servers import RedisServer

pytestmark = pytest.mark.cog

PAINTER, PAINTED = "acme/painter", "b2" * 32
ONE, OTHER = f"{MODEL}:{VERSION[:12]}", f"{PAINTER}:{PAINTED[:12]}"


@pytest.fixture
async def other_caller(redis: Redis, scripts: Scripts, catalog: Catalog, caller: Caller) -> Caller:
    await catalog.register(PAINTER, PAINTED, schema=OPEN_SCHEMA, server="", policy=Policy())
    return Caller(redis, scripts, model=PAINTER, version=PAINTED)


def two(redis_url: str, one: str, other: str) -> list[DirectorSettings]:
    return [
        settings_for(redis_url, [one]),
        settings_for(redis_url, [other], model=PAINTER, version=PAINTED, lease_s=30.0),
    ]


@asynccontextmanager
async def at_work(models: Sequence[DirectorSettings]) -> AsyncGenerator[tuple[Pool, httpx.AsyncClient]]:
    """Run a pool in this process, which ends without a drain. Yield it with a client of its health port."""
    ports: list[int] = []
    async with open_directors(models[0], models) as pool, anyio.create_task_group() as tasks:
        tasks.start_soon(pool.direct, ports.append)
        [port] = await eventually(lambda: ports, "it listens")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            yield pool, http
        tasks.cancel_scope.cancel()


async def missing(http: httpx.AsyncClient) -> dict[str, str]:
    shown: dict[str, str] = (await http.get("/readyz")).json()["missing"]
    return shown


def pool_file(folder: Path, *urls: str) -> Path:
    path = folder / "pool.toml"
    names = [(MODEL, VERSION), (PAINTER, PAINTED)]
    tables = [
        f'[[model]]\nname = "{name}"\nversion = "{version}"\nservers = ["{url}"]\n'
        for (name, version), url in zip(names, urls, strict=True)
    ]
    path.write_text("\n".join(tables))
    return path


async def test_each_model_uses_its_own_servers_and_is_shown(
    caller: Caller, other_caller: Caller, server: RedisServer, cog_url: str, second_cog_url: str, gate: Gate
) -> None:
    async with at_work(two(server.url, cog_url, second_cog_url)) as (pool, http):
        held = await caller.running(n=1, gate=str(gate))
        assert [(await other_caller.ended(await other_caller.submit(text=text, n=1)))["output"] for text in "xy"] == [
            ["x0"],
            ["y0"],
        ]
        shown = (await http.get("/readyz")).json()
        gate.open()
        assert (await caller.ended(held))["status"] == "succeeded"
    assert (shown["status"], shown["missing"]) == ("ready", {})
    assert {label: (model["status"], model["slots"], model["busy"]) for label, model in shown["models"].items()} == {
        ONE: ("ready", 1, 1),
        OTHER: ("ready", 1, 0),
    }
    names = {director.name for director in pool.directors.values()}
    assert len(names) == 2, "each is a consumer of its own"


async def test_models_share_connections_except_for_waiting(
    caller: Caller, other_caller: Caller, server: RedisServer, redis: Redis, cog_url: str, second_cog_url: str
) -> None:
    async def waiting() -> int:
        return [client["name"] for client in await redis.client_list()].count("director-waits")

    await eventually(waiting, "directors of other tests are gone", until=(0).__eq__)
    async with at_work(two(server.url, cog_url, second_cog_url)):
        await eventually(waiting, "each waits at its bell, and for cancels", until=(4).__eq__)


async def test_model_without_its_server_delays_no_other_and_recovers(
    caller: Caller, other_caller: Caller, live: Live, folder: Path, cog_url: str, gate: Gate
) -> None:
    async with (
        supervised_cog(folder) as cog,
        at_work(two(live.url, cog.url, cog_url)),
        live.keeper(),
    ):
        lost = await caller.running(n=1, gate=str(gate))
        kept = await other_caller.running(n=1, gate=str(gate))
        os.killpg(cog.server.pid, signal.SIGKILL)
        await eventually(lambda: cog.starts, "it is restarted", until=lambda starts: starts > 1)
        gate.open()
        assert (await other_caller.ended(kept))["status"] == "succeeded"
        assert (await caller.ended(lost))["status"] == "succeeded"
        assert (await caller.record(lost)).attempt == 2
        assert (await other_caller.record(kept)).attempt == 1


async def test_model_without_a_server_is_named_while_the_other_works(
    caller: Caller, other_caller: Caller, server: RedisServer, cog_url: str
) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    async with at_work(two(server.url, nowhere, cog_url)) as (_, http):
        assert (await other_caller.ended(await other_caller.submit(n=1)))["status"] == "succeeded"
        answer = await http.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["missing"].keys() == {ONE}
    assert answer.json()["models"][OTHER]["status"] == "ready"


async def test_model_that_cannot_be_served_stops_alone(
    caller: Caller, other_caller: Caller, server: RedisServer, cog_url: str, second_cog_url: str
) -> None:
    twin = VERSION[:12] + "f" * 52  # another version whose first 12 digits equal those of an existing one
    models = two(server.url, cog_url, second_cog_url)
    models[0] = settings_for(server.url, [cog_url], version=twin)
    async with at_work(models) as (_, http):
        label = f"{MODEL}:{twin[:12]}"
        await eventually(
            lambda: missing(http), "it is told", until=lambda told: "first 12 digits" in told.get(label, "")
        )
        assert (await other_caller.ended(await other_caller.submit(n=1)))["status"] == "succeeded"
        assert (await missing(http)).keys() == {label}


async def test_signal_drains_all_models(
    caller: Caller,
    other_caller: Caller,
    server: RedisServer,
    cog_url: str,
    second_cog_url: str,
    gate: Gate,
    tmp_path: Path,
) -> None:
    async with pool_process(server.url, pool_file(tmp_path, cog_url, second_cog_url)) as pool:
        running = [(each, await each.submit(n=1, gate=str(gate))) for each in (caller, other_caller)]
        for each, asked in running:
            await each.shows(asked, status="processing")
        waiting = [(each, await each.submit(n=1)) for each in (caller, other_caller)]
        pool.send(signal.SIGTERM)
        await eventually(lambda: len(pool.said("draining")), "both drain", until=(2).__eq__)
        gate.open()
        assert await pool.exit_code() == 0
        assert pool.said("director ended")
    for each, asked in running:
        assert (await each.ended(asked))["status"] == "succeeded"
    for each, asked in waiting:
        record = await each.record(asked)
        assert (record.status, record.claims) == ("starting", 0)


async def test_settings_error_names_the_model(server: RedisServer) -> None:
    models = two(server.url, "http://gpu-1:5000", "http://gpu-2:5000")
    models[1] = settings_for(
        server.url, ["http://gpu-2:5000"], model=PAINTER, version="", kind="training", runner="openai"
    )
    with pytest.raises(SettingsError, match=f"^{PAINTER}~training: Trainings run on Cog"):
        async with open_directors(models[0], models):
            pass


@pytest.mark.parametrize(
    ("options", "why"),
    [
        pytest.param(["--model", "acme/one"], "--model is of one model", id="two ways"),
        pytest.param([], "`slotz` is not a field of a model", id="wrong file"),
    ],
)
async def test_invalid_start_is_reported_in_one_line(options: Sequence[str], why: str, tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    path.write_text('[[model]]\nname = "acme/one"\nservers = ["http://127.0.0.1:1"]\nslotz = 1\n')
    command = [sys.executable, "-m", "director", "run", "--config", str(path), *options]
    ended = await anyio.run_process(command, check=False, stdout=subprocess.DEVNULL)
    assert ended.returncode == 1
    [line] = ended.stderr.decode().splitlines()
    assert why in line


NEWER = "b2" * 32
OLD, NEW = queue_name(MODEL, VERSION), queue_name(MODEL, NEWER)


@pytest.fixture
async def newer(redis: Redis, scripts: Scripts, catalog: Catalog, caller: Caller) -> Caller:
    """Create a caller of the newer version. `caller` asks for the old one, which no director serves as its own."""
    await catalog.register(MODEL, NEWER, schema=OPEN_SCHEMA, server="", policy=Policy())
    return Caller(redis, scripts, version=NEWER)


async def test_one_slot_alternates_between_both_queues(
    caller: Caller, newer: Caller, live: Live, tmp_path: Path
) -> None:
    log = tmp_path / "order"
    asked = [await each.submit(n=0, count=str(log)) for each in (caller, newer) for _ in range(4)]
    async with live.director(version=NEWER, also=(OLD,)) as director:
        for one in asked:
            assert (await caller.ended(one))["status"] == "succeeded"
        for queue in (OLD, NEW):
            assert (await caller.scripts.stats(queue)).slots == 1
            assert await caller.redis.zscore(keys.directors(queue), director.name) is not None
    steps = await caller.redis.xrange(keys.log(keys.queue_partition(NEW)))
    ran = [step[b"queue"].decode() for _, step in steps if step[b"kind"] == b"claimed"]
    assert ran in ([OLD, NEW] * 4, [NEW, OLD] * 4)
    records = [await caller.record(one) for one in asked]
    assert {(record.queue, record.version) for record in records} == {(OLD, VERSION), (NEW, NEWER)}
    for one in (caller, newer):
        await one.nothing_is_left()


async def test_old_queue_wakes_the_director_and_keeps_leases_and_cancels(
    caller: Caller, newer: Caller, live: Live, gate: Gate
) -> None:
    async with live.director(version=NEWER, also=(OLD,), lease_s=0.6):
        for one in (newer, caller, newer):
            assert (await one.ended(await one.submit(n=1)))["status"] == "succeeded"
        held = await caller.running(n=1, gate=str(gate))
        first = await caller.redis.zscore(keys.lease(OLD), held)
        await eventually(
            lambda: caller.redis.zscore(keys.lease(OLD), held), "its lease is extended", until=lambda at: at > first
        )
        assert await caller.cancel(held) == "asked"
        assert (await caller.ended(held))["status"] == "canceled"


async def test_drain_leaves_both_queues(caller: Caller, newer: Caller, live: Live, gate: Gate) -> None:
    async with live.process(version=NEWER, also=OLD, drain_s=0) as director:
        held = await caller.running(n=1, gate=str(gate))
        director.send(signal.SIGTERM)
        assert await director.exit_code() == 0
    record = await caller.record(held)
    assert (record.token, record.attempt) == ("", 0), "handed back, unspent"
    assert [(await caller.scripts.stats(queue)).slots for queue in (OLD, NEW)] == [0, 0]


@pytest.mark.parametrize(
    "queue",
    [
        pytest.param(QueueName("acme/other:a1a1a1a1a1a1"), id="another model"),
        pytest.param(QueueName(f"{OLD}~training"), id="another kind"),
    ],
)
def test_additional_queue_must_have_the_same_model_and_kind(queue: QueueName) -> None:
    with pytest.raises(SettingsError, match="is no queue of predictions of acme/echo"):
        check_settings(settings_for("redis://r", ["http://m:1"], also=(queue,)))
