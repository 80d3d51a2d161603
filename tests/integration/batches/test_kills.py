"""A batch goes on where it was, whatever dies: each line is written once, and runs again only if it ran at the kill."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker.redis_client import client
from director.core.settings import ApiSettings
from director.lab.chaos.rest import cut, size
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
    def __init__(self, up: AsyncExitStack, url: str, files: Path, *, durability: str = "always") -> None:
        self.up, self.url, self.files, self.durability = up, url, files, durability

    async def start(self, token: str) -> None:
        settings = ApiSettings(redis_url=self.url, files_dir=str(self.files), openai=True, durability=self.durability)
        self.http: AsyncClient = await self.up.enter_async_context(api_client(settings, token=token))
        self.model: EchoServer = await self.up.enter_async_context(EchoServer(pause_s=0.01).listening())
        given: dict[str, Any] = {"runner": "openai", "concurrent_predictions": SLOTS, "lease_s": 3, "backoff_s": 0.1}
        given["durability"] = self.durability
        director = await self.up.enter_async_context(live_director(self.url, self.model.url, **given))
        await eventually(lambda: all(each.can_run for each in director.servers.all), "the server is ready")

    async def keeper(self, crash_at: str = "") -> DirectorProcess:
        given: dict[str, Any] = {"openai": "true", "files_dir": self.files, "lease_s": 3, "crash_at": crash_at}
        given["durability"] = self.durability
        keeper = await self.up.enter_async_context(keeper_process(self.url, **given, batches_redis_url=self.url))
        await keeper.says("health is served")
        return keeper

    async def create(self, content: bytes = batches.lines(LINES)) -> str:
        made = await batches.create(self.http, await batches.upload(self.http, content))
        return str(made["id"])

    async def is_exact(self, batch_id: str, names: list[str], *, orphans: int | None = None) -> None:
        shown = await batches.ended(self.http, batch_id)
        assert (shown["status"], shown["request_counts"]["completed"]) == ("completed", len(names))
        output, errors = await batches.results(self.http, shown)
        assert (sorted(each["custom_id"] for each in output), errors) == (sorted(names), [])
        assert set(self.model.runs.values()) == {1}
        await eventually(self.purposes, "only whole files are listed", until=["batch", "batch_output"].__eq__)
        if orphans is not None:
            await eventually(self.stored, "the parts are gone", until=(2 + orphans).__eq__, limit_s=40)

    async def status(self, batch_id: str) -> str:
        answer = await self.http.get(f"{batches.BATCHES}/{batch_id}")
        return str(answer.json().get("status"))  # None while Redis is away

    async def purposes(self) -> list[str]:
        files = (await self.http.get("/openai/v1/files")).json()["data"]
        return sorted(each["purpose"] for each in files)

    async def stored(self) -> int:
        return len([each for each in (self.files / "uploads").rglob("*.*") if each.is_file()])


@pytest.fixture
async def scene(server: RedisServer, redis: Redis, tmp_path: Path) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as up:
        scene = Scene(up, server.url, tmp_path)
        await scene.start(await Accounts(redis).create_token(ACCOUNT))
        yield scene


@pytest.mark.parametrize("point", BATCH_POINTS)
async def test_keeper_that_dies_between_two_steps_costs_nothing(scene: Scene, point: str) -> None:
    keeper = await scene.keeper(crash_at=point)
    batch_id = await scene.create()
    assert await keeper.exit_code() == KILLED
    await scene.keeper()
    # what was stored in vain is swept away once its record has expired
    orphans = {"after_part": 1, "after_join": 1, "after_batch_end": 0}
    await scene.is_exact(batch_id, LINES, orphans=orphans.get(point))


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


async def test_batch_whose_end_a_power_cut_took_ends_again(tmp_path: Path) -> None:
    async with AsyncExitStack() as up:
        redis = up.enter_context(redis_server(config={"appendfsync": "everysec"}))
        scene = Scene(up, redis.url, tmp_path, durability="everysec")
        boss = client(redis.url)
        up.push_async_callback(boss.aclose)
        await scene.start(await Accounts(boss).create_token(ACCOUNT))
        first = await scene.keeper(crash_at="after_join")
        batch_id = await scene.create()
        assert await first.exit_code() == KILLED
        synced = size(redis.folder)
        await scene.keeper()
        await batches.ended(scene.http, batch_id)
        await anyio.sleep(1)  # what follows its end at once is done, and is lost
        redis.freeze()
        cut(redis.folder, synced, is_torn=False)
        redis.kill()
        redis.start()
        status = partial(scene.status, batch_id)
        await eventually(status, "its end is lost", until="finalizing".__eq__)
        await eventually(status, "it ends again", until="completed".__eq__, limit_s=40)
        await scene.is_exact(batch_id, LINES, orphans=2)


async def test_keeper_without_the_rights_of_the_api_runs_no_line(tmp_path: Path) -> None:
    with redis_server(guarded=True) as guarded:
        given: dict[str, Any] = {"openai": "true", "files_dir": tmp_path}
        async with keeper_process(guarded.url, **given) as keeper:
            await keeper.says("batches cannot run: set DIRECTOR_BATCHES_REDIS_URL with the API's user")
            await keeper.says("redis is ready")
