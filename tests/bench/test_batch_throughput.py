"""A batch runs at 0.9 times the rate of the same lines posted directly, with the same slots. Both alternate."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from httpx import AsyncClient, Limits
from redis.asyncio import Redis

from director.lab.chaos.wire import Answer, Request
from director.store.accounts import Accounts
from tests.support import batches
from tests.support.api import live_api
from tests.support.batches import EchoServer
from tests.support.eventually import eventually
from tests.support.live_director import director_process, keeper_process
from tests.support.queue_driver import ACCOUNT, MODEL
from tests.support.servers import RedisServer

pytestmark = pytest.mark.heavy

SLOTS = 16
RUN_S = 1.0  # a rate at which no processor is the limit, of the calls' own process least of all
LINES = 480
PAIRS = 2
CALLERS = 48
LEAST = 0.9


class Filling(EchoServer):
    """Its answers have so many bytes more: an embedding of 1,536 numbers is 32 KiB of JSON."""

    fill = b""

    async def serve(self, request: Request) -> Answer:
        answer = await super().serve(request)
        return Answer(answer.status, answer.body.replace(b'"c"', b'"c' + self.fill + b'"'), answer.headers)


@pytest.fixture
async def model() -> AsyncIterator[Filling]:
    async with Filling(pause_s=RUN_S).listening() as model:
        assert isinstance(model, Filling)
        yield model


@pytest.fixture
async def http(server: RedisServer, redis: Redis, tmp_path: Path, model: Filling) -> AsyncIterator[AsyncClient]:
    files = {"openai": "true", "files_dir": tmp_path}
    headers = {"Authorization": f"Bearer {await Accounts(redis).create_token(ACCOUNT)}"}
    given: dict[str, Any] = {"runner": "openai", "concurrent_predictions": SLOTS}
    async with AsyncExitStack() as up:
        await up.enter_async_context(keeper_process(server.url, **files, batches_redis_url=server.url))
        await up.enter_async_context(director_process(server.url, model.url, **given))
        env = {f"DIRECTOR_{name.upper()}": str(value) for name, value in files.items()}
        api = await up.enter_async_context(live_api(server.url, env=env))
        client = AsyncClient(base_url=api.url, trust_env=False, headers=headers, timeout=120, limits=Limits())
        client = await up.enter_async_context(client)
        await eventually(partial(call, client, "first"), "the model is ready", until=(200).__eq__)
        yield client


async def call(http: AsyncClient, name: str) -> int:
    body = {"model": MODEL, "messages": [{"role": "user", "content": name}]}
    return (await http.post("/openai/v1/chat/completions", json=body)).status_code


async def post_directly(http: AsyncClient, names: list[str]) -> float:
    upcoming = iter(names)

    async def post() -> None:
        for name in upcoming:
            assert await call(http, name) == 200

    began = time.monotonic()
    async with anyio.create_task_group() as tasks:
        for _ in range(CALLERS):
            tasks.start_soon(post)
    return time.monotonic() - began


async def run_batch(http: AsyncClient, names: list[str]) -> float:
    file_id = await batches.upload(http, batches.lines(names))
    began = time.monotonic()
    made = await batches.create(http, file_id)
    shown = await batches.ended(http, made["id"], limit_s=300)
    took_s = time.monotonic() - began
    assert (shown["status"], shown["request_counts"]["completed"]) == ("completed", len(names))
    return took_s


@pytest.mark.parametrize("size", [0, 32 << 10], ids=["small", "embeddings"])
async def test_batch_runs_at_nine_tenths_of_direct_posts(http: AsyncClient, model: Filling, size: int) -> None:
    model.fill = b"x" * size
    names = [f"l{n}" for n in range(LINES)]
    direct_s, batch_s = [], []
    for _ in range(PAIRS):
        direct_s.append(await post_directly(http, names))
        batch_s.append(await run_batch(http, names))
    ratio = sum(direct_s) / sum(batch_s)
    shown = [(round(direct, 1), round(batch, 1)) for direct, batch in zip(direct_s, batch_s, strict=True)]
    print(f"answers of {size} bytes and more: {LINES} lines took, directly and as a batch, {shown} s: {ratio:.3f}")
    assert ratio >= LEAST
