"""Kill every part of a service again and again under one large batch, and cut the power of its Redis. Then count its
lines and its runs.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from httpx import AsyncClient
from redis.exceptions import RedisError

from director.broker.redis_client import client
from director.lab.chaos.proxy import LOOPBACK, Link
from director.lab.chaos.rest import ALL_KEPT, cut, size
from director.store.accounts import Accounts
from tests.support import batches
from tests.support.api import LiveApi, live_api
from tests.support.batches import ENDED, EchoServer
from tests.support.eventually import eventually
from tests.support.live_director import DirectorProcess, director_process, keeper_process
from tests.support.queue_driver import ACCOUNT
from tests.support.servers import as_user, redis_server

pytestmark = [pytest.mark.faults, pytest.mark.long]
SLOTS = 64
MB = 1 << 20
PARTS = ("keeper", "director", "api", "model", "redis", "power")
LOST_S = 1.5  # of what was answered, at a power cut with everysec


class Storm:
    """A service of processes. A part that is killed comes back at once. All reach Redis over one link."""

    def __init__(self, up: AsyncExitStack, files: Path, durability: str = "always") -> None:
        self.up, self.files, self.durability = up, files, durability
        self.model = EchoServer(pause_s=0.02)
        self.keepers: list[DirectorProcess] = []
        self.peak_kb = self.redis_peak = 0
        self.kills: dict[str, int] = {}
        self.rerun = self.dropped = 0  # runs in what everysec loses, and bytes of the log

    async def start(self) -> None:
        config = ALL_KEPT | {"appendfsync": self.durability}
        self.redis = self.up.enter_context(redis_server(guarded=True, config=config))
        self.boss: Any = client(self.redis.admin_url)
        self.up.push_async_callback(self.boss.aclose)
        self.way = Link("all:redis", 0)
        await self.way.listen(partial(asyncio.open_unix_connection, str(self.redis.socket)))
        self.up.push_async_callback(self.way.stop)
        self.url = f"redis://director:director@{LOOPBACK}:{self.way.port}/0"
        await self.serve_model()
        self.token = await Accounts(self.boss).create_token(ACCOUNT)
        for _ in range(2):
            await self.keep()
        await self.direct()
        self.env = {"DIRECTOR_OPENAI": "true", "DIRECTOR_FILES_DIR": str(self.files)}
        self.env["DIRECTOR_DURABILITY"] = self.durability
        self.api: LiveApi = await self.up.enter_async_context(live_api(self.url, env=self.env))
        headers = {"Authorization": f"Bearer {self.token}"}
        http = AsyncClient(base_url=self.api.url, trust_env=False, headers=headers, timeout=60)
        self.http = await self.up.enter_async_context(http)

    async def serve_model(self) -> None:
        self.model_up = AsyncExitStack()
        await self.model_up.enter_async_context(self.model.listening())
        self.up.push_async_callback(self.model_up.aclose)

    async def keep(self) -> None:
        given: dict[str, Any] = {"openai": "true", "files_dir": self.files, "lease_s": 3}
        given |= {"batches_redis_url": as_user("api", self.url), "durability": self.durability}
        keeper = keeper_process(self.url, **given)
        self.keepers.append(await self.up.enter_async_context(keeper))

    async def direct(self) -> None:
        given: dict[str, Any] = {"runner": "openai", "concurrent_predictions": SLOTS, "lease_s": 3, "backoff_s": 0.1}
        given |= {"attempts": 20, "max_failures": 0, "breaker_after": 0, "durability": self.durability}
        process = director_process(self.url, self.model.url, **given)
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
            self.api = await self.up.enter_async_context(live_api(self.url, env=self.env, port=port))
        elif what == "model":
            await self.model_up.aclose()
            await self.serve_model()
        elif what == "power":
            await self.cut_power()
        else:
            self.redis.kill()
            self.redis.start()

    async def cut_power(self) -> None:
        """Drop what the log of Redis has got since its last sync. With `always` no reply to that has left it, with
        `everysec` those of some seconds have.
        """
        length, runs = size(self.redis.folder), self.model.runs.total()
        if self.durability == "always":
            self.way.hold_replies()
            length = size(self.redis.folder)
            await self.boss.ping()  # it answers once it has synced what it wrote before
            await eventually(lambda: size(self.redis.folder), "more is written", until=length.__lt__)
        else:
            await anyio.sleep(LOST_S)
            self.rerun += self.model.runs.total() - runs
        self.redis.freeze()
        before = size(self.redis.folder)
        cut(self.redis.folder, length, is_torn=False)
        self.dropped += before - size(self.redis.folder)
        self.redis.kill()
        self.way.reset()
        self.redis.start()
        self.way.pass_replies()

    async def sample(self) -> None:
        for keeper in self.keepers:
            status = Path(f"/proc/{keeper.process.pid}/status")
            if status.exists() and "VmRSS" in (text := status.read_text()):
                self.peak_kb = max(self.peak_kb, int(text.partition("VmRSS:")[2].split()[0]))
        with suppress(RedisError):  # its own peak begins again at each start
            self.redis_peak = max(self.redis_peak, (await self.boss.info("memory"))["used_memory_peak"])


@pytest.fixture
async def storm(tmp_path: Path, durability: str) -> AsyncIterator[Storm]:
    async with AsyncExitStack() as up:
        storm = Storm(up, tmp_path, durability)
        await storm.start()
        yield storm


@pytest.mark.parametrize(
    ("count", "times", "durability"),
    [(500, 1, "always"), (500, 1, "everysec"), pytest.param(50_000, 5, "always", marks=pytest.mark.heavy)],
)
async def test_every_line_is_written_once_under_kills_and_power_cuts(storm: Storm, count: int, times: int) -> None:
    filler = "" if count == 500 else " x" * 1_000
    content = b"".join(batches.line(f"l{n}", f"l{n}{filler}") + b"\n" for n in range(count))
    made = await batches.create(storm.http, await batches.upload(storm.http, content))
    parts = [*PARTS] * times
    random.Random(count).shuffle(parts)
    began, shown = anyio.current_time(), made

    async def look() -> bool:
        nonlocal shown
        await storm.sample()
        try:
            shown = await batches.get(storm.http, made["id"])
        except (httpx.TransportError, AssertionError):  # the API, or Redis, is being killed
            return False
        return shown["status"] in ENDED

    await eventually(look, "it runs", until=lambda _: storm.model.runs, limit_s=60)
    for place, part in enumerate(parts, start=1):
        most = count * place // (len(parts) + 1)
        while len(storm.model.runs) < most and not await look():  # noqa: ASYNC110 - it looks
            await anyio.sleep(0.1)
        await storm.kill(part)
    await eventually(look, "the batch ended", limit_s=600)
    took_s = anyio.current_time() - began
    output, errors = await batches.results(storm.http, shown)
    names = [each["custom_id"] for each in (*output, *errors)]
    extra = storm.model.runs.total() - count
    print(
        f"{count} lines ({len(content) / MB:.0f} MB) in {took_s:.0f} s, kills {storm.kills}, which dropped "
        f"{storm.dropped} bytes of the log, runs beyond one: {extra}, at most {storm.rerun} of which everysec lost, "
        f"peak of a keeper {storm.peak_kb / 1024:.0f} MB, of Redis {storm.redis_peak / MB:.0f} MB"
    )
    assert (shown["status"], len(names), len(set(names))) == ("completed", count, count)
    assert errors == []
    assert storm.dropped > 0, "the power cuts took something"
    assert extra <= storm.rerun + SLOTS * sum(storm.kills[part] for part in ("director", "model", "redis", "power"))
