"""A batch goes on where it was, whatever dies: each line is written once, and runs again only if it ran at the kill."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.core.settings import ApiSettings
from director.runtime.crash import BATCH_POINTS, KILLED
from director.store.accounts import Accounts
from tests.support import batches
from tests.support.api import api_client
from tests.support.batches import EchoServer
from tests.support.eventually import eventually
from tests.support.live_director import DirectorProcess, keeper_process, live_director
from tests.support.queue_driver import ACCOUNT
from tests.support.servers import RedisServer, redis_server

pytestmark = [pytest.mark.faults]
SLOTS = 8
LINES = [f"l{n}" for n in range(60)]


class Scene:
    def __init__(self, up: AsyncExitStack, url: str, files: Path, http: AsyncClient, model: EchoServer) -> None:
        self.up, self.url, self.files, self.http, self.model = up, url, files, http, model

    async def keeper(self, crash_at: str = "") -> DirectorProcess:
        given: dict[str, Any] = {"openai": "true", "files_dir": self.files, "lease_s": 3, "crash_at": crash_at}
        keeper = await self.up.enter_async_context(keeper_process(self.url, **given, batches_redis_url=self.url))
        await keeper.says("health is served")
        return keeper

    async def create(self, content: bytes = batches.lines(LINES)) -> str:
        made = await batches.create(self.http, await batches.upload(self.http, content))
        return str(made["id"])

    async def is_exact(self, batch_id: str, names: list[str], *, orphans: int = 0) -> None:
        shown = await batches.ended(self.http, batch_id)
        assert (shown["status"], shown["request_counts"]["completed"]) == ("completed", len(names))
        output, errors = await batches.results(self.http, shown)
        assert (sorted(each["custom_id"] for each in output), errors) == (sorted(names), [])
        assert set(self.model.runs.values()) == {1}
        await eventually(self.purposes, "only whole files are listed", until=["batch", "batch_output"].__eq__)
        await eventually(self.stored, "the parts are gone", until=(2 + orphans).__eq__)

    async def purposes(self) -> list[str]:
        files = (await self.http.get("/openai/v1/files")).json()["data"]
        return sorted(each["purpose"] for each in files)

    async def stored(self) -> int:
        return len([each for each in (self.files / "uploads").rglob("*.*") if each.is_file()])


@pytest.fixture
async def scene(server: RedisServer, redis: Redis, tmp_path: Path) -> AsyncIterator[Scene]:
    settings = ApiSettings(redis_url=server.url, files_dir=str(tmp_path), openai=True)
    token = await Accounts(redis).create_token(ACCOUNT)
    async with AsyncExitStack() as up:
        http = await up.enter_async_context(api_client(settings, token=token))
        model = await up.enter_async_context(EchoServer(pause_s=0.01).listening())
        given: dict[str, Any] = {"runner": "openai", "concurrent_predictions": SLOTS, "lease_s": 3, "backoff_s": 0.1}
        director = await up.enter_async_context(live_director(server.url, model.url, **given))
        await eventually(lambda: all(each.can_run for each in director.servers.all), "the server is ready")
        yield Scene(up, server.url, tmp_path, http, model)


@pytest.mark.parametrize("point", BATCH_POINTS)
async def test_keeper_that_dies_between_two_steps_costs_nothing(scene: Scene, point: str) -> None:
    keeper = await scene.keeper(crash_at=point)
    batch_id = await scene.create()
    assert await keeper.exit_code() == KILLED
    await scene.keeper()
    # what was stored in vain is swept away once its record has expired
    await scene.is_exact(batch_id, LINES, orphans=int(point in ("after_part", "after_join")))


async def test_keepers_that_are_killed_again_and_again_run_each_line_once(scene: Scene) -> None:
    keepers = [await scene.keeper() for _ in range(2)]
    names = [f"l{n}" for n in range(1_500)]
    batch_id = await scene.create(batches.lines(names))
    for _ in range(3):
        had = scene.model.runs.total()
        await eventually(lambda had=had: scene.model.runs.total() > had + 100, "some more ran")  # type: ignore[misc]
        keepers[0].send(9)
        keepers[1].send(9)
        keepers = [await scene.keeper() for _ in range(2)]
    await scene.is_exact(batch_id, names)


async def test_keeper_that_ends_in_order_hands_over_at_once(scene: Scene) -> None:
    first = await scene.keeper()
    batch_id = await scene.create()
    await eventually(lambda: scene.model.runs.total(), "some ran", until=(10).__le__)
    first.send(15)
    await first.exit_code()
    await scene.keeper()
    with anyio.fail_after(10):
        await scene.is_exact(batch_id, LINES)


async def test_keeper_without_the_rights_of_the_api_runs_no_line(tmp_path: Path) -> None:
    with redis_server(guarded=True) as guarded:
        given: dict[str, Any] = {"openai": "true", "files_dir": tmp_path}
        async with keeper_process(guarded.url, **given) as keeper:
            await keeper.says("batches cannot run: set DIRECTOR_BATCHES_REDIS_URL with the API's user")
            await keeper.says("redis is ready")
