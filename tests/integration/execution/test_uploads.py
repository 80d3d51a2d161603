"""Test the files that a real model server uploads to the director: they are stored and named in the output."""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from director.broker import keys
from director.core.settings import ApiSettings
from director.execution import run_files as storing
from director.local.launcher.processes import free_port
from tests.integration.execution.test_files import FILES, INPUTS, SOURCE, fetched
from tests.support.api import api_client
from tests.support.bucket import AWS, bucket_url, moto_folder
from tests.support.cog import cog_schema, cog_server, write_model
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live
from tests.support.servers import RedisServer
from tests.support.uploads import MIB

pytestmark = pytest.mark.cog

SECRET = "a-secret-of-the-test"


class Given:
    """A model server that uploads its files to the director of the test, once for each way to follow it."""

    def __init__(self, url: str, port: int) -> None:
        self.url = url
        self.port = port

    def settings(self, folder: Path, **given: Any) -> dict[str, Any]:
        return {"health_port": self.port, "upload_secret": SECRET, "files_dir": str(folder), **given}


@pytest.fixture(scope="module", params=["streamed", "answered"])
async def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Given]:
    document = cog_schema(INPUTS, FILES)
    document["paths"]["/predictions"]["post"]["x-cog-streaming"] = request.param == "streamed"
    folder = write_model(tmp_path_factory.mktemp(request.param) / "model", SOURCE, document)
    port = free_port()
    async with cog_server(folder, upload_url=f"http://127.0.0.1:{port}/uploads/{SECRET}/") as url:
        yield Given(url, port)


@pytest.fixture
def model_url(given: Given) -> str:
    return given.url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def api(server: RedisServer, folder: Path) -> AsyncGenerator[httpx.AsyncClient]:
    async with api_client(ApiSettings(redis_url=server.url, files_dir=str(folder))) as client:
        yield client


@pytest.fixture
async def stranger(given: Given) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client that can reach the director's port but has no secret."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{given.port}", trust_env=False) as client:
        yield client


def stored(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_files_have_addresses_during_and_after_the_run(
    caller: Caller, live: Live, given: Given, folder: Path, api: httpx.AsyncClient, gate: Gate
) -> None:
    async with live.director(**given.settings(folder)):
        asked = await caller.submit(n=1, size=100_000, gate=str(gate))
        running = await eventually(lambda: caller.get(asked), "it shows one", until=lambda shown: shown["output"])
        assert [await fetched(api, url) for url in running["output"]] == [bytes(100_000)]
        gate.open()
        ended = await caller.ended(asked)
        two = await caller.ended(await caller.submit(n=2, size=50_000, name="out.weird"))
    assert (ended["status"], ended["output"]) == ("succeeded", running["output"])
    [url] = ended["output"]
    digest = hashlib.sha256(bytes(100_000)).hexdigest()[:32]
    assert httpx.URL(url).path.endswith(f"/{ended['id']}-{digest}.png"), "it is named as one in the output"
    assert (await api.get(url.removeprefix("http://api.test"))).headers["content-type"] == "image/png"
    assert {await fetched(api, url) for url in two["output"]} == {bytes([i]) * 50_000 for i in (0, 1)}
    events = await caller.redis.lrange(keys.events(asked), 0, -1)
    assert b"director-file:" not in b"".join(events)
    assert len(stored(folder)) == 3


async def test_files_too_large_in_total_fail_the_run_and_leave_none_unnamed(
    caller: Caller, live: Live, given: Given, folder: Path
) -> None:
    async with live.director(**given.settings(folder, max_files_bytes=100_000)):
        ended = await caller.ended(await caller.submit(n=2, size=60_000))
        assert (ended["status"], ended["code"]) == ("failed", "output_too_large")
        named = len(ended["output"] or [])  # the first file may have been shown before the second arrived
        await eventually(lambda: len(stored(folder)) == named, "nothing else is left of it")
        assert (await caller.ended(await caller.submit(n=1, size=60_000)))["status"] == "succeeded"
    await caller.nothing_is_left()


async def test_full_disk_fails_the_prediction_with_a_reason(
    caller: Caller, live: Live, given: Given, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("director.servers.runners.inbox.Spool._write", full)
    async with live.director(**given.settings(folder)):
        ended = await caller.ended(await caller.submit(n=1))
    assert (ended["status"], ended["code"]) == ("failed", "output_not_stored")
    assert "a file of a run could not be taken: there must be room in TMPDIR" in caplog.messages


async def test_hanging_store_blocks_no_other_prediction(
    caller: Caller, live: Live, given: Given, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "PAUSES_S", (0.0,))
    monkeypatch.setattr(storing, "PUT_S", 0.05)
    async with live.director(**given.settings(folder)) as director:
        assert director._executor.storing is not None

        async def hang(*_: Any, **__: Any) -> None:
            with anyio.CancelScope(shield=True):
                await anyio.sleep_forever()

        monkeypatch.setattr(director._executor.storing._store, "put", hang)
        assert (await caller.ended(await caller.submit(n=1)))["code"] == "output_not_stored"


async def test_upload_without_secret_or_run_is_refused_and_unnamed_files_are_not_stored(
    caller: Caller, live: Live, given: Given, folder: Path, stranger: httpx.AsyncClient, gate: Gate
) -> None:
    path = f"/uploads/{SECRET}/out.png"
    async with live.director(**given.settings(folder)):
        assert (await stranger.put(path, content=b"x", headers={"x-prediction-id": "x"})).status_code == 404
        assert (await stranger.put(path, content=b"x")).status_code == 404
        asked = await caller.running(n=1, gate=str(gate))
        for secret in ("another-secret-of-it", "", "%2e%2e", "x" * 5000):
            answer = await stranger.put(f"/uploads/{secret}/out.png", content=b"x", headers={"x-prediction-id": asked})
            assert answer.status_code in (404, 414), secret
        answer = await stranger.put(path, content=b"not of its output", headers={"x-prediction-id": asked})
        assert answer.status_code == 201
        assert "secret" not in answer.headers["location"]
        gate.open()
        assert len((await caller.ended(asked))["output"]) == 1
        assert (await stranger.put(path, content=b"x", headers={"x-prediction-id": asked})).status_code == 404
    [only] = stored(folder)
    assert b"not of its output" not in only.read_bytes()


async def test_interrupted_upload_counts_for_no_prediction(
    caller: Caller, live: Live, given: Given, folder: Path, gate: Gate
) -> None:
    async with live.director(**given.settings(folder, max_files_bytes=100_000)):
        asked = await caller.running(n=1, size=90_000, gate=str(gate), name="late.png")
        head = f"PUT /uploads/{SECRET}/out.png HTTP/1.1\r\nhost: x\r\nx-prediction-id: {asked}\r\n"
        async with await anyio.connect_tcp("127.0.0.1", given.port) as half:
            await half.send(head.encode() + b"content-length: 1000000\r\n\r\n" + bytes(5_000))
        gate.open()
        ended = await caller.ended(asked)
    assert ended["status"] == "succeeded", "what broke off takes no room from the others"


async def test_upload_path_needs_a_secret(
    caller: Caller, live: Live, given: Given, folder: Path, stranger: httpx.AsyncClient
) -> None:
    async with live.director(**given.settings(folder, upload_secret="")):
        assert (await stranger.put("/uploads//out.png", content=b"x")).status_code == 404
        ended = await caller.ended(await caller.submit(n=1))
    assert (ended["status"], ended["code"]) == ("failed", "model_failed")
    assert "404" in ended["error"]


@pytest.mark.heavy
async def test_large_file_is_never_in_the_memory_of_the_director(
    caller: Caller, live: Live, given: Given, folder: Path
) -> None:
    async with live.process(**given.settings(folder)) as director:
        await caller.ended(await caller.submit(n=1, size=MIB))
        small = peak(director.process.pid)
        ended = await caller.ended(await caller.submit(n=1, size=60 * MIB))
        large = peak(director.process.pid)
    assert ended["status"] == "succeeded"
    assert [path.stat().st_size > 60 * MIB for path in stored(folder)].count(True) == 1
    assert large - small < 20 * MIB


@pytest.mark.heavy
async def test_large_file_goes_to_a_bucket(
    caller: Caller, live: Live, given: Given, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)
    cache = request.config.cache
    async with AsyncExitStack() as stack:
        bucket = await stack.enter_async_context(bucket_url(moto_folder(cache.mkdir("clients"))))
        given_settings = {**given.settings(Path()), "files_dir": "", "files_url": bucket}
        await stack.enter_async_context(live.director(**given_settings))
        api = await stack.enter_async_context(api_client(ApiSettings(redis_url=live.url, files_url=bucket)))
        ended = await caller.ended(await caller.submit(n=1, size=60 * MIB))
        [url] = ended["output"]
        assert hashlib.sha256(await fetched(api, url)).digest() == hashlib.sha256(bytes(60 * MIB)).digest()


def peak(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


async def test_killed_director_leaves_nothing_on_its_disk(
    caller: Caller, live: Live, given: Given, folder: Path, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = tmp_path / "tmp"
    spool.mkdir()
    monkeypatch.setenv("TMPDIR", str(spool))
    async with live.process(**given.settings(folder)) as director:
        asked = await caller.submit(n=1, size=2 * MIB, gate=str(gate))
        await eventually(lambda: caller.get(asked), "it shows one", until=lambda shown: shown["output"])
        director.process.kill()
        await director.process.wait()
    assert len(stored(folder)) == 1  # it belongs to a live prediction: the next claim names it again
    assert not list(spool.iterdir())
    gate.open()
