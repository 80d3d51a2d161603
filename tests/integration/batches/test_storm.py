"""Kill every part of a service again and again under one large batch, then count its lines and its runs."""

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from httpx import AsyncClient

from director.broker.redis_client import client
from director.store.accounts import Accounts
from tests.support import batches
from tests.support.api import LiveApi, live_api
from tests.support.batches import ENDED, EchoServer
from tests.support.eventually import eventually
from tests.support.live_director import DirectorProcess, director_process, keeper_process
from tests.support.queue_driver import ACCOUNT
from tests.support.servers import redis_server

pytestmark = [pytest.mark.faults, pytest.mark.long]
SLOTS = 64
MB = 1 << 20


class Storm:
    """A service of processes. A part that is killed comes back at once."""

    def __init__(self, up: AsyncExitStack, files: Path) -> None:
        self.up, self.files = up, files
        self.model = EchoServer(pause_s=0.02)
        self.keepers: list[DirectorProcess] = []
        self.peak_kb = 0
        self.kills: dict[str, int] = {}

    async def start(self) -> None:
        self.redis = self.up.enter_context(redis_server(guarded=True))
        self.boss: Any = client(self.redis.admin_url)
        self.up.push_async_callback(self.boss.aclose)
        await self.serve_model()
        self.token = await Accounts(self.boss).create_token(ACCOUNT)
        for _ in range(2):
            await self.keep()
        await self.direct()
        self.env = {"DIRECTOR_OPENAI": "true", "DIRECTOR_FILES_DIR": str(self.files)}
        self.api: LiveApi = await self.up.enter_async_context(live_api(self.redis.url, env=self.env))
        headers = {"Authorization": f"Bearer {self.token}"}
        http = AsyncClient(base_url=self.api.url, trust_env=False, headers=headers, timeout=60)
        self.http = await self.up.enter_async_context(http)

    async def serve_model(self) -> None:
        self.model_up = AsyncExitStack()
        await self.model_up.enter_async_context(self.model.listening())
        self.up.push_async_callback(self.model_up.aclose)

    async def keep(self) -> None:
        given: dict[str, Any] = {"openai": "true", "files_dir": self.files, "lease_s": 3}
        api_user = self.redis.url_of("api")
        keeper = keeper_process(self.redis.url, **given, batches_redis_url=api_user)
        self.keepers.append(await self.up.enter_async_context(keeper))

    async def direct(self) -> None:
        given: dict[str, Any] = {"runner": "openai", "concurrent_predictions": SLOTS, "lease_s": 3, "backoff_s": 0.1}
        given |= {"attempts": 20, "max_failures": 0, "breaker_after": 0}
        process = director_process(self.redis.url, self.model.url, **given)
        self.director = await self.up.enter_async_context(process)

    async def kill(self, what: str) -> None:
        self.kills[what] = self.kills.get(what, 0) + 1
        if what == "keeper":
            self.keepers.pop(0).send(9)
            await self.keep()
        elif what == "director":
            self.director.send(9)
            await self.direct()
        elif what == "api":
            self.api.process.kill()
            await self.api.process.wait()
            port = int(self.api.url.rpartition(":")[2])
            self.api = await self.up.enter_async_context(live_api(self.redis.url, env=self.env, port=port))
        elif what == "model":
            await self.model_up.aclose()
            await self.serve_model()
        else:
            self.redis.kill()
            self.redis.start()

    def sample(self) -> None:
        for keeper in self.keepers:
            status = Path(f"/proc/{keeper.process.pid}/status")
            if status.exists() and "VmRSS" in (text := status.read_text()):
                self.peak_kb = max(self.peak_kb, int(text.partition("VmRSS:")[2].split()[0]))


@pytest.fixture
async def storm(tmp_path: Path) -> AsyncIterator[Storm]:
    async with AsyncExitStack() as up:
        storm = Storm(up, tmp_path)
        await storm.start()
        yield storm


@pytest.mark.parametrize(
    ("count", "kills"), [(500, 5), pytest.param(50_000, 25, marks=pytest.mark.heavy)], ids=["500", "50000"]
)
async def test_every_line_is_written_once_under_kills(storm: Storm, count: int, kills: int) -> None:
    filler = "" if count == 500 else " x" * 1_000
    content = b"".join(batches.line(f"l{n}", f"l{n}{filler}") + b"\n" for n in range(count))
    made = await batches.create(storm.http, await batches.upload(storm.http, content))
    parts = ["keeper", "director", "api", "model", "redis"] * (kills // 5)
    random.Random(count).shuffle(parts)
    began, shown = anyio.current_time(), made

    async def look() -> bool:
        nonlocal shown
        storm.sample()
        try:
            shown = await batches.get(storm.http, made["id"])
        except (httpx.TransportError, AssertionError):  # the API, or Redis, is being killed
            return False
        return shown["status"] in ENDED

    await eventually(look, "it runs", until=lambda _: storm.model.runs, limit_s=60)  # type: ignore[arg-type]
    for place, part in enumerate(parts, start=1):
        most = count * place // (kills + 1)
        while len(storm.model.runs) < most and not await look():  # noqa: ASYNC110 - it looks
            await anyio.sleep(0.1)
        await storm.kill(part)
    await eventually(look, "the batch ended", limit_s=600)
    took_s = anyio.current_time() - began
    output, errors = await batches.results(storm.http, shown)
    names = [each["custom_id"] for each in (*output, *errors)]
    extra = storm.model.runs.total() - count
    info = await storm.boss.info("memory")
    print(
        f"{count} lines ({len(content) / MB:.0f} MB) in {took_s:.0f} s, kills {storm.kills}, runs beyond one: {extra}, "
        f"peak of a keeper {storm.peak_kb / 1024:.0f} MB, of Redis {info['used_memory_peak'] / MB:.0f} MB"
    )
    assert (shown["status"], len(names), len(set(names))) == ("completed", count, count)
    assert errors == []
    assert extra <= SLOTS * (storm.kills["director"] + storm.kills["model"] + storm.kills["redis"])
