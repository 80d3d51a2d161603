"""Test, with all real parts, what happened to users of other servers of many models."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.store.catalog import Catalog
from tests.integration.gpus.test_swaps import GIB, callers, check, pool_file
from tests.support.eventually import eventually, every
from tests.support.fake_device import FakeDevices, fake_devices
from tests.support.live_director import Caller, pool_process
from tests.support.servers import RedisServer

pytestmark = pytest.mark.faults

Stage = tuple[FakeDevices, Caller, Caller]


@pytest.fixture
def stage(server: RedisServer, redis: Redis, scripts: Scripts, catalog: Catalog, tmp_path: Path) -> Any:
    """Return a director of two models on a device with room for one. The first is loaded when it yields."""

    @asynccontextmanager
    async def staged(**habits: Any) -> AsyncGenerator[Stage]:
        with fake_devices(gpu0=GIB) as devices:
            models = {name: {"max_wait_s": 1, "habits": habits} for name in ("acme/a", "acme/b")}
            pool = pool_file(tmp_path, devices, models)
            async with pool_process(server.url, pool, devices_dir=tmp_path / "devices", drain_s=5) as director:
                known = await callers(redis, scripts, catalog, list(models))
                await check(known["acme/a"], [await known["acme/a"].submit(seconds=0)])
                devices.loads.clear()
                yield devices, known["acme/a"], known["acme/b"]
                director.send(15)
                assert await director.exit_code() == 0
            assert devices.cut == []

    return staged


async def test_run_of_an_image_is_not_cut_off_by_a_request_for_another_model(stage: Any) -> None:
    """llama-swap #588: a run of 20 minutes was cut off."""
    async with stage() as (devices, image, chat):
        long = await image.submit(seconds=4)
        await eventually(devices.running, "the image is made")
        short = await chat.submit(seconds=0)
        await chat.shows_reason(short, "waiting_for_device")
        assert devices.running() == ["acme/a"]
        await check(image, [long])
        await check(chat, [short])
        assert devices.loads == ["acme/b"]


async def test_second_request_neither_unloads_nor_fails_the_first(stage: Any) -> None:
    """llama-swap #19 failed the first request. llama.cpp #21678 evicted a model that was still loading, in a loop."""
    async with stage(load_s=1.5) as (devices, first, second):
        await check(second, [await second.submit(seconds=0)])
        asked = await first.submit(seconds=0)
        await eventually(lambda: devices.loads[1:], "the first loads")
        other = await second.submit(seconds=0)
        await check(first, [asked])
        await check(second, [other])
        assert devices.loads == ["acme/b", "acme/a", "acme/b"]


async def test_requests_for_the_model_that_leaves_do_not_lock_both(stage: Any) -> None:
    """Ollama #17408: each load hung for 5.5 hours after the model that was chosen to leave got a request."""
    async with stage(forks=True) as (devices, busy, other):
        asked = [await busy.submit(seconds=0.2) for _ in range(10)]
        wanted = await other.submit(seconds=0)
        async for _ in every(0.2):  # as much as it runs
            if await other.status(wanted) == "succeeded":
                break
            asked.append(await busy.submit(seconds=0.2))
        await check(busy, asked)
        await check(other, [wanted])
        assert devices.loads[0] == "acme/b"
