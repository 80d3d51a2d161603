"""Test uploaded files on their way to a real model: through the real API to a real Cog server, which fetches them."""

import io
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
import replicate
from anyio import to_thread
from redis.asyncio import Redis

from director.core.ids import PredictionId
from director.lab.chaos.wire import Answer, Request, listening
from director.store.accounts import Accounts
from director.store.catalog import Catalog
from tests.support.api import LiveApi, live_api
from tests.support.cog import cog_server, write_model
from tests.support.eventually import eventually
from tests.support.live_director import Caller, live_director
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer

pytestmark = pytest.mark.cog

SOURCE = """
    import tempfile
    from cog import BasePredictor, Path

    class Predictor(BasePredictor):
        def predict(self, image: Path) -> Path:
            out = Path(tempfile.mkdtemp()) / ("turned" + image.suffix)
            out.write_bytes(image.read_bytes()[::-1])
            return out
"""
URI = {"type": "string", "format": "uri"}
SCHEMA = {
    "openapi": "3.0.2",
    "info": {"title": "Cog", "version": "0.1.0"},
    "paths": {},
    "components": {
        "schemas": {"Input": {"type": "object", "properties": {"image": URI}, "required": ["image"]}, "Output": URI}
    },
}
DATA = b"\x89PNG" + bytes(range(256)) * 40


@pytest.fixture(scope="module")
async def turns_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[str]:
    async with cog_server(write_model(tmp_path_factory.mktemp("turns") / "model", SOURCE, SCHEMA)) as url:
        yield url


@pytest.fixture
def files_dir(tmp_path: Path) -> str:
    return str(tmp_path / "files")


@pytest.fixture
async def live(
    server: RedisServer, caller: Caller, catalog: Catalog, turns_url: str, files_dir: str
) -> AsyncGenerator[LiveApi]:
    """Start the whole service with one store, and wait until the model's own schema is known."""
    async with (
        live_api(server.url, env={"DIRECTOR_FILES_DIR": files_dir}) as live,
        live_director(server.url, turns_url, files_dir=files_dir),
    ):
        await eventually(
            lambda: catalog.version(MODEL, VERSION),
            "its schema is known",
            until=lambda version: version is not None and b"image" in bytes(version.schema),
        )
        yield live


@pytest.fixture
async def official(live: LiveApi, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[replicate.Client]:
    monkeypatch.setenv("REPLICATE_POLL_INTERVAL", "0.02")
    official = replicate.Client(api_token=await Accounts(redis).create_token(ACCOUNT), base_url=live.url)
    yield official
    official._client.close()  # the client has no close method


def picture() -> io.BytesIO:
    file = io.BytesIO(DATA)
    file.name = "cat.png"
    return file


@pytest.mark.parametrize("strategy", ["url", "base64"])
async def test_model_reads_an_open_file_of_the_official_client(official: replicate.Client, strategy: Any) -> None:
    def run() -> Any:
        return official.run(MODEL, input={"image": picture()}, file_encoding_strategy=strategy, use_file_output=False)

    address = await to_thread.run_sync(run)
    async with httpx.AsyncClient(trust_env=False) as anybody:
        answer = await anybody.get(address)
    assert (answer.status_code, answer.content) == (200, DATA[::-1])
    assert answer.headers["content-type"] == "image/png", "the model saw the ending of its name"


async def test_prediction_shows_the_input_as_the_caller_sent_it(official: replicate.Client, caller: Caller) -> None:
    file = await to_thread.run_sync(lambda: official.files.create(picture(), filename="a cat.png", metadata={"k": 1}))
    sent = {"image": file.urls["get"]}
    made = await to_thread.run_sync(lambda: official.predictions.create(version=VERSION, input=sent))
    ended = await caller.ended(PredictionId(made.id))
    assert (ended["status"], ended["input"]) == ("succeeded", sent), ended
    assert "signature" not in str(ended["input"])


async def test_official_client_lists_gets_and_deletes_files(official: replicate.Client) -> None:
    def play() -> None:
        file = official.files.create(picture(), metadata={"k": 1})
        assert (file.name, file.size, file.metadata) == ("cat.png", len(DATA), {"k": 1})
        assert file.etag == file.checksums["md5"]
        assert official.files.get(file.id) == file
        assert official.files.list() == [file]
        assert official.files.delete(file.id)
        assert official.files.list() == []

    await to_thread.run_sync(play)


async def test_file_of_another_account_is_not_fetched(
    official: replicate.Client, live: LiveApi, caller: Caller, redis: Redis
) -> None:
    other = replicate.Client(api_token=await Accounts(redis).create_token("other"), base_url=live.url)
    file = await to_thread.run_sync(lambda: other.files.create(picture()))
    made = await to_thread.run_sync(
        lambda: official.predictions.create(version=VERSION, input={"image": file.urls["get"]})
    )
    ended = await caller.ended(PredictionId(made.id))
    other._client.close()
    assert (ended["status"], ended["output"]) == ("failed", None)


@pytest.mark.parametrize("path", ["/etc/hostname", "file:///etc/hostname", "etc/hostname", " https://x"])
async def test_path_never_reaches_the_model(official: replicate.Client, live: LiveApi, path: str) -> None:
    headers = dict(official._client.headers)
    async with httpx.AsyncClient(trust_env=False, headers=headers) as client:
        answer = await client.post(f"{live.url}/v1/predictions", json={"version": VERSION, "input": {"image": path}})
    assert answer.status_code == 422
    assert [fault["field"] for fault in answer.json()["invalid_fields"]] == ["input.image"]


async def test_upload_goes_to_a_server_of_forms_as_a_file(
    server: RedisServer, redis: Redis, caller: Caller, catalog: Catalog, files_dir: str
) -> None:
    sent: list[bytes] = []

    async def receive(request: Request) -> Answer:
        sent.append(request.body)
        return Answer(200, body=b'"heard"', headers={"content-type": "application/json"})

    config = '{"kind": "http", "path": "/hear", "body": "form", "files": ["image"], "health": ""}'
    async with (
        listening(receive) as port,
        live_api(server.url, env={"DIRECTOR_FILES_DIR": files_dir}) as live,
        live_director(server.url, f"http://127.0.0.1:{port}", files_dir=files_dir, runner="http", runner_config=config),
    ):
        await eventually(lambda: catalog.version(MODEL, VERSION), "it is known", until=bool)
        headers = {"Authorization": f"Bearer {await Accounts(redis).create_token(ACCOUNT)}"}
        async with httpx.AsyncClient(base_url=live.url, headers=headers, trust_env=False) as client:
            made = await client.post("/v1/files", files={"content": ("a.png", DATA, "image/png")})
        ended = await caller.ended(await caller.submit(image=made.json()["urls"]["get"]))
    assert (ended["status"], ended["output"]) == ("succeeded", "heard")
    [body] = [body for body in sent if body]
    assert DATA in body
    assert b'filename="image.png"' in body
