"""Run a service with one of everything as a process of its own, for tests that try every route."""

from collections.abc import AsyncGenerator, Iterator, Mapping
from concurrent.futures import wait
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import anyio
import httpx
from anyio.from_thread import start_blocking_portal
from msgspec import Raw, Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import FileId, PredictionId, QueueName, queue_name
from director.core.policy import Policy
from director.files.local import LocalFiles
from director.files.store import FileName, Links
from director.store.accounts import Accounts
from director.store.catalog import Catalog
from director.store.models import Collection, Collections
from tests.support.api import PlayedDirector, live_api
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver
from tests.support.servers import redis_server

LLM: Final = "acme/llm"  # of OpenAI's API
LLM_VERSION: Final = "d4" * 32
OTHER: Final = "globex"  # whose limits and suspension a test may change: the caller's own would end the test
LATER_S: Final = 4_000_000_000
STREAMING: Final = Raw(
    b'{"components":{"schemas":{"Input":{"type":"object"},"TrainingInput":{"type":"object"},'
    b'"Output":{"type":"array","items":{},"x-cog-array-type":"iterator"}}}}'
)


class Real(Struct, frozen=True, kw_only=True):
    path: Mapping[str, str]
    query: Mapping[str, str] | None = None


class Scene(Struct, frozen=True, kw_only=True):
    """`real`: values by the beginning of the path."""

    url: str
    token: str
    real: Mapping[str, tuple[Real, ...]]


@asynccontextmanager
async def scene(folder: Path) -> AsyncGenerator[Scene, None]:
    with redis_server() as server, (folder / "api.log").open("wb") as log:
        redis = client(server.url)
        gatherer = Gatherer(redis)
        try:
            token = await Accounts(redis).create_token(ACCOUNT, scopes=("read", "run", "admin"))
            await Accounts(redis).create_token(OTHER)
            async with live_api(
                server.url, env={"DIRECTOR_FILES_DIR": str(folder), "DIRECTOR_OPENAI": "true"}, log=log
            ) as api:
                headers = {"Authorization": f"Bearer {token}"}
                async with httpx.AsyncClient(base_url=f"{api.url}/v1", headers=headers, trust_env=False) as caller:
                    real = await _runs(redis, Scripts(gatherer), caller)
                    real |= await _things(redis, caller)
                    real |= await _openai(redis, Scripts(gatherer), caller)
                    real |= await _files(LocalFiles(folder, Links(redis, SystemClock())), redis, caller)
                with playing_llm(server.url):
                    yield Scene(url=api.url, token=token, real=real)
        finally:
            await gatherer.aclose()
            await redis.aclose()


async def _runs(redis: Redis, scripts: Scripts, caller: httpx.AsyncClient) -> dict[str, tuple[Real, ...]]:
    catalog = Catalog(redis, scripts, SystemClock())
    queue = await catalog.register(MODEL, VERSION, schema=STREAMING, server="echo", policy=Policy())
    asked = {"version": MODEL, "input": {"text": "hi"}}
    for kind in ("training", "procedure"):
        await catalog.register_kind(MODEL, VERSION, kind, schema=STREAMING, server="echo", policy=Policy())
    driver = QueueDriver(redis, scripts, queue)
    dead = [await driver.die() for _ in range(3)]
    played = PlayedDirector(scripts, queue)
    ended = await _made(caller, "/predictions", {**asked, "webhook": "https://receiver.invalid/hook"})
    await played.finish(await played.claim(), output=b'["a","b"]', logs="x\n", metrics=b'{"predict_time":1}')
    running = await _made(caller, "/predictions", asked)
    await played.begin(await played.claim(), b'"a"')
    waiting = await _made(caller, "/predictions", asked)
    return {
        "predictions": tuple(Real(path={"id": one["id"]}) for one in (ended, running, waiting)),
        "streams": (Real(path={"address": ended["urls"]["stream"].rpartition("/")[2]}),),
        "admin/dead": tuple(Real(path={"id": one}) for one in dead),
        "admin/queues": (Real(path=_parts(queue), query={"state": "waiting"}), Real(path=_parts(queue))),
    }


def _parts(queue: QueueName) -> dict[str, str]:
    model, _, version = queue.rpartition(":")
    owner, _, name = model.partition("/")
    return {"owner": owner, "name": name, "version": version}


async def _things(redis: Redis, caller: httpx.AsyncClient) -> dict[str, tuple[Real, ...]]:
    await Collections(redis).put("fast", Collection(name="Fast", models=(MODEL,)))
    await Collections(redis).put_hardware("cpu", "CPU")
    mine = {"owner": ACCOUNT, "name": "mine", "visibility": "private", "hardware": "cpu"}
    await _made(caller, "/models", {**mine, "description": "Mine."})
    await caller.patch(f"/models/{MODEL}", json={"readme": "Read me."})
    release = {"model": MODEL, "version": VERSION, "hardware": "cpu", "min_instances": 0, "max_instances": 1}
    await _made(caller, "/deployments", {"name": "prod", **release})
    tokens = (await caller.get(f"/admin/accounts/{OTHER}/tokens")).json()["results"]
    return {
        "models": tuple(Real(path={"owner": ACCOUNT, "name": name, "id": VERSION}) for name in ("echo", "mine")),
        "deployments": (Real(path={"owner": ACCOUNT, "name": "prod"}),),
        "collections": (Real(path={"slug": "fast"}),),
        "admin/accounts": tuple(Real(path={"name": OTHER, "id": one["id"]}) for one in tokens),
    }


async def _openai(redis: Redis, scripts: Scripts, caller: httpx.AsyncClient) -> dict[str, tuple[Real, ...]]:
    """Register a model for OpenAI's API, and make a batch of it."""
    owner, _, name = LLM.partition("/")
    catalog = Catalog(redis, scripts, SystemClock())
    await catalog.register(LLM, LLM_VERSION, schema=STREAMING, server="openai", policy=Policy())
    await redis.hset(keys.aliases(), "gpt-4o", LLM)
    base = str(caller.base_url.copy_with(path="/openai/v1"))
    given = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", b"{}")}}
    file_id = (await caller.post(f"{base}/files", **given)).json()["id"]  # type: ignore[arg-type]
    asked = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    batch_id = (await caller.post(f"{base}/batches", json=asked)).json()["id"]
    return {
        "openai/v1/files": (Real(path={"id": file_id.removeprefix("file-")}),),
        "openai/v1/batches": (Real(path={"id": batch_id}),),
        "openai": (Real(path={"owner": owner, "name": name, "id": "gpt-4o"}),),
    }


@contextmanager
def playing_llm(url: str) -> Iterator[None]:
    """Answer calls of OpenAI's API in a thread, since the tests of the contract hold up this one."""

    async def play() -> None:
        redis = client(url)
        gatherer = Gatherer(redis)
        played = PlayedDirector(Scripts(gatherer), queue_name(LLM, LLM_VERSION))
        try:
            while True:
                with suppress(TimeoutError):  # nothing was asked for a while
                    await played.run(lambda _: b'{"object":"chat.completion","choices":[]}')
        finally:
            with anyio.CancelScope(shield=True):
                await gatherer.aclose()
                await redis.aclose()

    with start_blocking_portal() as portal:
        running = portal.start_task_soon(play)
        try:
            yield
        finally:
            running.cancel()
            wait([running])


async def _files(store: LocalFiles, redis: Redis, caller: httpx.AsyncClient) -> dict[str, tuple[Real, ...]]:
    answer = await caller.post("/files", files={"content": ("a.txt", b"abc", "text/plain")})
    given, links = FileId(answer.json()["id"]), Links(redis, SystemClock())
    address = await links.download(ACCOUNT, given, name="a.txt", base="", expires_s=LATER_S)
    output = FileName(PredictionId("0" * 26), "0" * 32, "png")
    await store.put(output, b"png", content_type="image/png")
    shown = await links.sign(str(output), base="", expires_s=LATER_S)
    return {
        "files": (Real(path={"id": given, "name": "a.txt"}, query=_query(address)),),
        "outputs": (Real(path={"name": str(output)}, query=_query(shown)),),
    }


def _query(address: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(address).query))


async def _made(caller: httpx.AsyncClient, path: str, body: Mapping[str, object]) -> dict[str, Any]:
    answer = await caller.post(path, json=body)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found
