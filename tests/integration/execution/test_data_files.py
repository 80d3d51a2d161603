"""A director reads large inputs from the file store and puts large outputs there, whatever fails meanwhile."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import replicate
from anyio import to_thread
from redis.asyncio import Redis

from director.broker import keys
from director.broker.gatherer import Gatherer
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import PredictionId
from director.core.schema import REFERENCE_BYTES
from director.execution import executor
from director.files.choose import store_in
from director.files.data_files import DataFiles
from director.files.local import LocalFiles
from director.files.store import FileName
from director.keeper.tidier import Tidier
from director.runtime.crash import KILLED
from director.store.accounts import Accounts
from tests.support.api import LiveApi, live_api
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.live_director import Caller, DirectorProcess, director_process, keeper_process, live_director
from tests.support.model_server import ModelServer
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.runner_conformance import CONFIGS
from tests.support.servers import RedisServer
from tests.support.sink import Answer, sink

pytestmark = pytest.mark.faults

TEXT = "x" * 200_000
OUTPUT = [TEXT + "0"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
def store(redis: Redis, folder: Path) -> LocalFiles:
    found = store_in(str(folder), redis, SystemClock())
    assert isinstance(found, LocalFiles)
    return found


@pytest.fixture
async def scripts(product_redis: Redis, store: LocalFiles) -> AsyncGenerator[Scripts]:
    """Yield scripts that read the file store, so that the caller sees what the API shows."""
    gatherer = Gatherer(product_redis)
    yield Scripts(gatherer, whole=DataFiles(SystemClock(), store).whole)
    await gatherer.aclose()


@pytest.fixture
async def api(server: RedisServer, caller: Caller, folder: Path) -> AsyncGenerator[LiveApi]:
    env = {"DIRECTOR_FILES_DIR": str(folder), "DIRECTOR_DATA_IN_FILES": "true"}
    async with live_api(server.url, env=env) as live:
        yield live


@pytest.fixture
async def official(api: LiveApi, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[replicate.Client]:
    monkeypatch.setenv("REPLICATE_POLL_INTERVAL", "0.02")
    official = replicate.Client(api_token=await Accounts(redis).create_token(ACCOUNT), base_url=api.url)
    yield official
    official._client.close()  # the client has no close method


def settings(folder: Path | str, **given: Any) -> dict[str, Any]:
    config = {"runner": "http", "runner_config": json.dumps(CONFIGS["http"])}
    return {"files_dir": str(folder), "data_in_files": True, "webhook_allow": "loopback", **config, **given}


async def created(official: replicate.Client, **given: Any) -> PredictionId:
    asked = {"text": TEXT, "n": 1}
    made = await to_thread.run_sync(lambda: official.predictions.create(version=VERSION, input=asked, **given))
    assert made.input == asked
    return PredictionId(made.id)


async def in_redis(redis: Any, prediction_id: PredictionId) -> tuple[int, int]:
    return await redis.strlen(keys.input_data(prediction_id)), await redis.hstrlen(
        keys.output_data(prediction_id), "output"
    )


async def test_the_official_client_notices_no_files(
    official: replicate.Client,
    server: RedisServer,
    redis: Redis,
    scripts: Scripts,
    model: ModelServer,
    folder: Path,
) -> None:
    def run() -> Any:
        return official.run(f"{MODEL}:{VERSION}", input={"text": TEXT, "n": 1}, use_file_output=False)

    async with live_director(server.url, model.url, **settings(folder)), sink() as receiver:
        assert await to_thread.run_sync(run) == OUTPUT
        prediction_id = await created(official, webhook=receiver.url, webhook_events_filter=["completed"])
        await receiver.arrived(1)
        shown = await to_thread.run_sync(official.predictions.get, prediction_id)
        listed = await to_thread.run_sync(lambda: list(official.predictions.list()))
    told = msgspec.json.decode(receiver.received[0].body)
    assert (shown.status, shown.input["text"], shown.output) == ("succeeded", TEXT, OUTPUT)
    assert (told["input"]["text"], told["output"]) == (TEXT, OUTPUT)
    assert [each.output for each in listed] == [OUTPUT, OUTPUT]
    assert await in_redis(redis, prediction_id) == (REFERENCE_BYTES, REFERENCE_BYTES)
    whole = sum(len(msgspec.json.encode(each)) for each in ({"text": TEXT, "n": 1}, OUTPUT))
    assert (await scripts.stow(ACCOUNT)).total == 2 * whole


async def test_directors_without_the_folder_ask_the_api(
    official: replicate.Client, api: LiveApi, caller: Caller, redis: Redis, server: RedisServer, model: ModelServer
) -> None:
    async with live_director(server.url, model.url, **settings("", files_url=api.url)):
        prediction_id = await created(official)
        assert (await caller.ended(prediction_id))["output"] == OUTPUT
    assert await in_redis(redis, prediction_id) == (REFERENCE_BYTES, REFERENCE_BYTES)


async def test_an_input_that_cannot_be_read_costs_no_attempt(
    official: replicate.Client,
    caller: Caller,
    server: RedisServer,
    model: ModelServer,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def kinds() -> list[str]:
        await caller.scripts.promote(caller.queue, limit=9)  # as a keeper does
        return await caller.kinds(prediction_id)

    monkeypatch.setattr(executor, "LONGEST_AWAY_S", 0.05)
    prediction_id = await created(official)
    folder.rename(folder.with_name("away"))
    async with live_director(server.url, model.url, **settings(folder, attempts=1)):
        await eventually(kinds, "it was given back", until=lambda kinds: kinds.count("released") > 1)
        folder.with_name("away").rename(folder)
        await eventually(kinds, "it was read", until=lambda kinds: "completed" in kinds)
        ended = await caller.ended(prediction_id)
    assert (ended["status"], ended["output"]) == ("succeeded", OUTPUT)
    assert (await caller.record(prediction_id)).attempt == 1


async def test_an_output_that_cannot_be_stored_stays_in_redis(
    official: replicate.Client,
    caller: Caller,
    redis: Redis,
    server: RedisServer,
    model: ModelServer,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(*_: Any, **__: Any) -> None:
        raise OSError("no such disk")

    prediction_id = await created(official)
    monkeypatch.setattr(LocalFiles, "put", fails)
    async with live_director(server.url, model.url, **settings(folder)):
        ended = await caller.ended(prediction_id)
    assert (ended["status"], ended["output"]) == ("succeeded", OUTPUT)
    assert await in_redis(redis, prediction_id) == (REFERENCE_BYTES, len(msgspec.json.encode(OUTPUT)))


async def test_a_keeper_delivers_a_webhook_with_data_from_files(
    official: replicate.Client, server: RedisServer, caller: Caller, model: ModelServer, folder: Path
) -> None:
    schedule = {"webhook_schedule": "0.1s,0.1s", "webhook_allow": "loopback"}
    async with sink() as receiver:
        receiver.answer = Answer(status=500)
        async with live_director(server.url, model.url, **settings(folder, **schedule)):
            await created(official, webhook=receiver.url, webhook_events_filter=["completed"])
            await receiver.arrived(1)
        receiver.answer = Answer()
        async with keeper_process(server.url, files_dir=folder, **schedule):
            await eventually(lambda: len(receiver.received), "it is delivered", until=(2).__le__, limit_s=10)
    told = msgspec.json.decode(receiver.received[-1].body)
    assert (told["input"]["text"], told["output"]) == (TEXT, OUTPUT)


@asynccontextmanager
async def dying(redis_url: str, model: ModelServer, folder: Path) -> AsyncGenerator[DirectorProcess]:
    given = settings(folder, crash_at="before_finish", lease_s=1)
    async with director_process(redis_url, model.url, **given) as process:
        yield process


async def test_a_director_that_dies_between_file_and_record_leaves_no_other_output(
    official: replicate.Client, caller: Caller, redis: Redis, server: RedisServer, model: ModelServer, folder: Path
) -> None:
    prediction_id = await created(official)
    async with dying(server.url, model, folder) as director:
        assert await director.exit_code() == KILLED
    assert len(list(folder.rglob("*.data~"))) == 2, "its output is stored"
    assert not (await caller.record(prediction_id)).is_terminal
    assert await in_redis(redis, prediction_id) == (REFERENCE_BYTES, 0)
    async with live_director(server.url, model.url, **settings(folder, lease_s=1)):
        await eventually(lambda: caller.scripts.reap(caller.queue, limit=9), "its lease expired", until=bool)
        assert (await caller.ended(prediction_id))["output"] == OUTPUT


async def test_an_api_that_dies_between_file_and_record_accepts_nothing(
    server: RedisServer, caller: Caller, redis: Any, scripts: Scripts, store: LocalFiles, folder: Path
) -> None:
    token = await Accounts(redis).create_token(ACCOUNT)
    env = {"DIRECTOR_FILES_DIR": str(folder), "DIRECTOR_DATA_IN_FILES": "1", "DIRECTOR_CRASH_AT": "after_data_put"}
    async with live_api(server.url, env=env) as live, httpx.AsyncClient(trust_env=False) as http:
        with pytest.raises(httpx.TransportError):
            await http.post(
                f"{live.url}/v1/predictions",
                json={"version": VERSION, "input": {"text": TEXT}},
                headers={"Authorization": f"Bearer {token}"},
            )
        assert await live.process.wait() == KILLED
    [orphan] = folder.rglob("*.data~")
    assert await redis.zcard(keys.live(caller.queue)) == 0
    assert not await redis.exists(keys.record(PredictionId(orphan.parent.name)))
    clock = FakeClock(now_ms=SystemClock().now_ms())
    for passed_s, is_left in ((0, True), (3_601, False)):
        clock.pass_time(passed_s)
        await Tidier(redis, scripts, store, clock).run_once()
        assert orphan.exists() is is_left


async def test_a_failed_run_leaves_its_input(
    official: replicate.Client, caller: Caller, server: RedisServer, model: ModelServer, folder: Path, store: LocalFiles
) -> None:
    asked = {"text": TEXT, "then": "raise"}
    made = await to_thread.run_sync(lambda: official.predictions.create(version=VERSION, input=asked))
    async with live_director(server.url, model.url, **settings(folder)):
        ended = await caller.ended(PredictionId(made.id))
    assert (ended["status"], ended["input"]) == ("failed", asked)
    [path] = folder.rglob("*.data~")
    assert await store.open(FileName(PredictionId(made.id), path.stem, "data~")) is not None
