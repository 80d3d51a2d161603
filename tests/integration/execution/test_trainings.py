"""Test trainings from the API to a real Cog server that trains, and to the versions that they make."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import new_prediction_id, version_id
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.files.choose import store_in
from director.keeper.tidier import Tidied, Tidier
from director.local.launcher.processes import free_port
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.removal import Removal, TrainedVersions
from tests.support.api import api_client
from tests.support.clock import FakeClock
from tests.support.cog import cog_process, write_model
from tests.support.eventually import eventually
from tests.support.live_director import Live, live_director
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer

pytestmark = pytest.mark.cog

SOURCE = """
    import tempfile
    from cog import BaseModel, Path

    class TrainingOutput(BaseModel):
        weights: Path

    def train(data: str = "", gate: str = "", then: str = "") -> TrainingOutput:
        print("reading", data)
        wait_for(gate)
        if then == "raise":
            raise ValueError("bad data")
        weights = Path(tempfile.mkdtemp()) / "weights.bin"
        weights.write_bytes(b"learned " + data.encode())
        return TrainingOutput(weights=weights)

    def train_large(size: int = 1) -> Path:
        weights = Path(tempfile.mkdtemp()) / "weights.bin"
        weights.write_bytes(bytes(size))
        return weights
"""
NAMES = {"data": "string", "gate": "string", "then": "string", "size": "integer"}
INPUT = {"type": "object", "properties": {name: {"type": kind} for name, kind in NAMES.items()}}
SCHEMA = {
    "openapi": "3.0.2",
    "info": {"title": "Cog", "version": "0.1.0"},
    # the model streams its predictions; a server that trains refuses to
    "paths": {"/predictions": {"post": {"x-cog-streaming": True}}, "/trainings": {"post": {}}},
    "components": {"schemas": {"Input": {"type": "object"}, "Output": {"type": "array"}, "TrainingInput": INPUT}},
}
DESTINATION = "acme/tuned"
TRAININGS = f"/v1/models/{MODEL}/versions/{VERSION}/trainings"


@pytest.fixture
async def trainer(tmp_path: Path) -> AsyncIterator[str]:
    folder = write_model(tmp_path / "model", SOURCE, SCHEMA)
    async with cog_process(folder, stub="predict.py:train", trains=True) as server:
        yield server.url


@pytest.fixture
async def token(redis: Redis, catalog: Catalog) -> str:
    """Return the token of an account with a model that may be trained."""
    await catalog.register(DESTINATION, "d4" * 32, schema=OPEN_SCHEMA, server="", policy=Policy())
    return await Accounts(redis).create_token(ACCOUNT)


@pytest.fixture
async def api(
    server: RedisServer, redis: Redis, token: str, trainer: str, tmp_path: Path
) -> AsyncIterator[httpx.AsyncClient]:
    files = str(tmp_path / "files")
    async with (
        live_director(server.url, trainer, kind="training", files_dir=files) as director,
        api_client(ApiSettings(redis_url=server.url, files_dir=files), token=token) as client,
    ):
        await eventually(director.servers.any_ready, "the trainer is ready")
        yield client


async def train(api: httpx.AsyncClient, **given: str | int) -> dict[str, Any]:
    async def made() -> httpx.Response:
        return await api.post(TRAININGS, json={"destination": DESTINATION, "input": given})

    # the director registers its queue a moment after its server is ready, and an API keeps for seconds what it read
    answer = await eventually(made, "the training is accepted", until=lambda answer: answer.status_code == 201)
    return dict(answer.json())


def shown(api: httpx.AsyncClient, training: dict[str, Any]) -> Callable[[], Awaitable[dict[str, Any]]]:
    async def look() -> dict[str, Any]:
        return dict((await api.get(f"/v1/trainings/{training['id']}")).json())

    return look


async def ended(api: httpx.AsyncClient, training: dict[str, Any]) -> dict[str, Any]:
    return await eventually(
        shown(api, training), "it ended", until=lambda seen: seen["status"] not in ("starting", "processing")
    )


async def test_training_makes_the_version_that_its_output_names(api: httpx.AsyncClient, catalog: Catalog) -> None:
    training = await train(api, data="poems")
    done = await ended(api, training)
    assert (done["status"], done["error"], done["logs"]) == ("succeeded", None, "reading poems\n")
    made = version_id(DESTINATION, training["id"].encode(), b"")
    assert done["output"]["version"] == f"{DESTINATION}:{made}"
    weights = done["output"]["weights"]
    assert (await api.get(weights)).content == b"learned poems"
    version = await catalog.version(DESTINATION, made)
    assert (version.weights, json.loads(bytes(version.schema))) == (weights, SCHEMA)
    model = await catalog.model(DESTINATION)
    assert model.latest == made
    asked = await api.post("/v1/predictions", json={"version": f"{DESTINATION}:{made}", "input": {}})
    assert (asked.status_code, asked.json()["queue"]["reason"]) == (201, "no_director")


async def test_failed_training_makes_no_version_and_says_why(api: httpx.AsyncClient, catalog: Catalog) -> None:
    done = await ended(api, await train(api, then="raise"))
    assert (done["status"], done["output"]) == ("failed", None)
    assert "bad data" in done["error"]
    assert "failed:" not in done["error"]
    assert await catalog.version_ids(DESTINATION) == ["d4" * 32]


async def test_cancel_reaches_the_server(api: httpx.AsyncClient, catalog: Catalog, tmp_path: Path) -> None:
    training = await train(api, gate=str(tmp_path / "never"))
    await eventually(shown(api, training), "it runs", until=lambda seen: seen["status"] == "processing")
    assert (await api.post(f"/v1/trainings/{training['id']}/cancel")).status_code == 200
    done = await ended(api, training)
    assert (done["status"], done["output"]) == ("canceled", None)
    assert await catalog.version_ids(DESTINATION) == ["d4" * 32]


async def test_training_fails_when_its_destination_disappears(
    api: httpx.AsyncClient, redis: Redis, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    training = await train(api, gate=str(gate))
    await eventually(shown(api, training), "it runs", until=lambda seen: seen["status"] == "processing")
    await redis.delete(keys.model(DESTINATION))
    gate.touch()
    done = await ended(api, training)
    assert (done["status"], done["code"], done["output"]) == ("failed", "destination_gone", None)
    assert not await redis.exists(keys.model(DESTINATION)), "a training makes no model"


async def test_weights_of_the_first_attempt_that_makes_the_version_stay(
    redis: Redis, scripts: Scripts, catalog: Catalog, api: httpx.AsyncClient
) -> None:
    done = await ended(api, await train(api, data="a"))
    stored = await scripts.get(done["id"])
    versions = TrainedVersions(redis, catalog, Removal(redis, scripts, catalog), store=None)
    again = [await versions.make(stored.record, "https://example.com/w") for _ in range(2)]
    assert [(one and one.version, one and one.weights) for one in again] == [tuple(done["output"].values())] * 2
    assert len(await catalog.version_ids(DESTINATION)) == 2


async def test_weights_live_as_long_as_the_version(
    redis: Redis, scripts: Scripts, catalog: Catalog, api: httpx.AsyncClient, tmp_path: Path
) -> None:
    done = await ended(api, await train(api, data="poems"))
    store = store_in(str(tmp_path / "files"), redis, SystemClock())
    # later than a prediction without a record may still be accepted
    tidier = Tidier(redis, scripts, store, FakeClock(now_ms=SystemClock().now_ms() + 3_601_000))
    weights = done["output"]["weights"]
    # in the order of their ends
    for gone in (keys.output_data(done["id"]), keys.input_data(done["id"]), keys.record(done["id"])):
        await redis.delete(gone)
        assert await tidier.run_once() == Tidied(seen=1)
    assert (await api.get(weights)).content == b"learned poems"
    assert int(parse_qs(urlsplit(weights).query)["expires"][0]) > 100 * 365 * 86400
    version = done["output"]["version"].partition(":")[2]
    assert await Removal(redis, scripts, catalog).remove(DESTINATION, version) == "done"
    assert await tidier.run_once() == Tidied(seen=1, removed=1)
    assert (await api.get(weights)).status_code == 404
    assert not await redis.exists(keys.weights(done["id"]))


async def test_weights_of_an_attempt_that_died_before_it_made_the_version_are_deleted(
    redis: Redis, scripts: Scripts, catalog: Catalog, api: httpx.AsyncClient, tmp_path: Path
) -> None:
    done = await ended(api, await train(api, data="poems"))
    training = (await scripts.get(done["id"])).record
    version = keys.version(DESTINATION, done["output"]["version"].partition(":")[2])
    await redis.hdel(version, "server", "schema", "created", "announced")
    assert await redis.hkeys(version) == [b"weights"]
    await redis.delete(keys.output_data(done["id"]), keys.input_data(done["id"]), keys.record(done["id"]))
    store = store_in(str(tmp_path / "files"), redis, SystemClock())
    tidier = Tidier(redis, scripts, store, FakeClock(now_ms=SystemClock().now_ms() + 3_601_000))
    assert await tidier.run_once() == Tidied(seen=1, removed=1)
    versions = TrainedVersions(redis, catalog, Removal(redis, scripts, catalog), store=None)
    again = await versions.make(training, "https://example.com/w")
    assert again is not None
    assert again.weights == "https://example.com/w", "the next attempt's"


async def test_weights_missing_from_the_store_are_not_kept_with_the_version(
    redis: Redis, scripts: Scripts, catalog: Catalog, api: httpx.AsyncClient
) -> None:
    stored = await scripts.get((await ended(api, await train(api, data="a")))["id"])
    training = replace(stored.record, id=new_prediction_id(model=MODEL, now_ms=SystemClock().now_ms()))
    versions = TrainedVersions(redis, catalog, Removal(redis, scripts, catalog), store=None)
    weights = "data:application/octet-stream;base64," + "A" * 1_000_000
    made = await versions.make(training, weights)
    assert made.weights == weights, "they are an output as any other, as long as that lives"
    version = await catalog.version(DESTINATION, made.version.partition(":")[2])
    assert version.weights == ""


async def test_destination_deleted_at_the_last_moment_is_not_recreated(
    redis: Redis, scripts: Scripts, catalog: Catalog, api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = await ended(api, await train(api, data="a"))
    stored = await scripts.get(done["id"])
    removal = Removal(redis, scripts, catalog)
    for version in await catalog.version_ids(DESTINATION):
        await removal.remove(DESTINATION, version)
    before, register = await redis.smembers(keys.queues()), catalog.register

    async def too_late(*given: Any, **named: Any) -> Any:
        await catalog.models.remove(DESTINATION)
        return await register(*given, **named)

    monkeypatch.setattr(catalog, "register", too_late)
    assert await TrainedVersions(redis, catalog, removal, store=None).make(stored.record, None) is None
    assert await catalog.model(DESTINATION) is None
    assert await redis.smembers(keys.queues()) == before
    assert not [name for name in await redis.keys("*") if DESTINATION.encode() in name]


async def test_weights_as_the_whole_output_may_be_uploaded_at_any_size(
    live: Live, token: str, catalog: Catalog, tmp_path: Path
) -> None:
    files, secret, port, size = str(tmp_path / "files"), "a-secret-of-the-test", free_port(), 70 << 20
    folder = write_model(tmp_path / "model", SOURCE, SCHEMA)
    url = f"http://127.0.0.1:{port}/uploads/{secret}/"
    given = {"kind": "training", "files_dir": files, "health_port": port, "upload_secret": secret}
    async with (
        cog_process(folder, stub="predict.py:train_large", trains=True, upload_url=url) as trainer,
        live.director(trainer.url, **given) as director,
        api_client(ApiSettings(redis_url=live.url, files_dir=files), token=token) as api,
    ):
        await eventually(director.servers.any_ready, "the trainer is ready")
        done = await ended(api, await train(api, size=size))
        assert done["status"] == "succeeded"
        assert len((await api.get(done["output"]["weights"])).content) == size
    version = await catalog.version(DESTINATION, done["output"]["version"].partition(":")[2])
    assert version.weights == done["output"]["weights"]
