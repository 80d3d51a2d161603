"""A batch keeps its parts where the file store is slow to take them, is a bucket, or Redis is full for hours."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.core.settings import ApiSettings
from director.files.choose import store_in
from director.keeper.tidier import Tidier
from director.store.accounts import Accounts
from director.store.caller_files import GRACE_S
from tests.support import batches
from tests.support.api import api_client
from tests.support.batches import BATCHES, EchoServer, ShiftedClock
from tests.support.bucket import AWS, bucket_url, moto_folder
from tests.support.eventually import eventually
from tests.support.live_director import keeping, live_director
from tests.support.queue_driver import ACCOUNT
from tests.support.servers import RedisServer

pytestmark = pytest.mark.faults

NAMES = [f"l{n}" for n in range(12)]


@pytest.fixture
async def model(server: RedisServer, redis: Redis) -> AsyncIterator[EchoServer]:
    async with AsyncExitStack() as up:
        model = await up.enter_async_context(EchoServer().listening())
        await up.enter_async_context(keeping(server.url, lease_s=3))
        given: dict[str, Any] = {"runner": "openai", "concurrent_predictions": 16, "lease_s": 3, "backoff_s": 0.1}
        director = await up.enter_async_context(live_director(server.url, model.url, **given))
        await eventually(lambda: all(each.can_run for each in director.servers.all), "the server is ready")
        yield model


async def has_all(http: AsyncClient, batch_id: str) -> None:
    output, errors = await batches.results(http, await batches.ended(http, batch_id))
    assert (sorted(each["custom_id"] for each in output), errors) == (sorted(NAMES), [])


async def test_redis_that_is_full_for_longer_than_the_sweeper_waits_costs_no_part(
    server: RedisServer, redis: Redis, model: EchoServer, scripts: Scripts, tmp_path: Path
) -> None:
    settings = ApiSettings(redis_url=server.url, files_dir=str(tmp_path), openai=True, cache_s=0)
    token, clock = await Accounts(redis).create_token(ACCOUNT), ShiftedClock()
    store = store_in(str(tmp_path), redis, clock)
    assert store is not None
    clock.ahead_ms = int(2 * GRACE_S * 1000)
    model.go.clear()
    async with (
        api_client(settings, token=token) as http,
        batches.engine(settings) as engine,
        anyio.create_task_group() as tasks,
    ):
        made = await batches.create(http, await batches.upload(http, batches.lines(NAMES)))
        tasks.start_soon(engine.run)
        await eventually(lambda: len(model.runs), "all run", until=len(NAMES).__eq__)
        await redis.config_set("maxmemory", 1)
        try:
            model.go.set()
            await eventually(lambda: engine._capacity.unwritten.total(), "answers wait", until=(1).__le__, limit_s=20)
            for _ in range(3):
                assert (await Tidier(redis, scripts, store, clock).run_once()).removed == 0
                await anyio.sleep(1)
            assert (await batches.get(http, made["id"]))["request_counts"]["completed"] == 0
        finally:
            await redis.config_set("maxmemory", 0)
        await has_all(http, made["id"])
        tasks.cancel_scope.cancel()


@pytest.mark.heavy  # the S3 stand-in comes from a package registry
async def test_batch_is_read_from_and_written_to_a_bucket(
    server: RedisServer, redis: Redis, model: EchoServer, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)
    cache = pytestconfig.cache
    folder = moto_folder(cache.mkdir("clients") if cache is not None else Path("/tmp"))
    token = await Accounts(redis).create_token(ACCOUNT)
    async with bucket_url(folder) as url:
        settings = ApiSettings(redis_url=server.url, files_url=url, openai=True, cache_s=0)
        async with api_client(settings, token=token) as http, batches.engine(settings) as engine:
            made = await batches.create(http, await batches.upload(http, batches.lines(NAMES)))
            assert await engine.run_once() == 1
            await has_all(http, made["id"])
            canceled = await batches.create(http, await batches.upload(http, batches.lines(NAMES)))
            await http.post(f"{BATCHES}/{canceled['id']}/cancel")
            assert await engine.run_once() == 1
            shown = await batches.get(http, canceled["id"])
            assert (shown["status"], shown["request_counts"]["failed"]) in [("cancelled", 0), ("cancelled", len(NAMES))]
