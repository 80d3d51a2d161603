"""Kill each part in the middle of fifty streams of OpenAI's API, and compare each stream with what its server sent."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

import anyio
import httpx
import pytest
from httpx import AsyncClient

from director.broker import keys
from director.broker.redis_client import client
from director.core.ids import queue_name
from director.core.usage import Used
from director.lab.chaos.wire import Answer, Request
from director.store.accounts import Accounts
from tests.integration.api.test_openai_whole_way import Stream
from tests.support.api import live_api
from tests.support.eventually import eventually
from tests.support.live_director import TERMINAL, director_process, keeping
from tests.support.openai_server import SHOWN, Journaled, tokens
from tests.support.queue_driver import MODEL, VERSION
from tests.support.servers import redis_server

pytestmark = [pytest.mark.faults]
STREAMS: Final = 50
ACCOUNTS: Final = [f"account{n}" for n in range(5)]
WHOLE, BROKE = "whole", "broken"
POISON, TWICE = "s7", 2


class Followed(Stream):
    """One stream of an account. `end` is `whole`, `broken`, the code of its error, or says what is wrong with it."""

    def __init__(self, http: AsyncClient, tag: str, account: str) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": tag}], "stream": True}
        super().__init__(http, json.dumps(body).encode())
        self.tag, self.account, self.is_broken = tag, account, False

    async def read(self) -> None:
        try:
            await super().read()
        except httpx.TransportError:
            self.is_broken = True

    @property
    def chunks(self) -> list[bytes]:
        return [each for each in self.data if each != b"[DONE]" and not each.startswith(b'{"error"')]

    @property
    def end(self) -> str:
        last = json.loads(self.data[-1]) if self.data and self.data[-1] != b"[DONE]" else {}
        if self.is_broken or "error" in last:
            return BROKE if self.is_broken else str(last["error"]["code"])
        finished = [*self.data[-2:-1], b""][0].endswith(b'"finish_reason": "stop"}]}')
        return WHOLE if finished and not last else f"{self.status}: {self.raw[-200:]!r}"


class Site:
    """A whole service with two APIs, where one director runs all streams."""

    def __init__(self) -> None:
        self.model = Journaled()
        self.clients: dict[tuple[int, str], AsyncClient] = {}

    async def start(self, up: AsyncExitStack) -> None:
        self.up = up
        self.server = up.enter_context(redis_server(guarded=True))
        self.boss: Any = client(self.server.admin_url)
        up.push_async_callback(self.boss.aclose)
        await self.model.start()
        up.push_async_callback(self.model.kill)
        env = {"DIRECTOR_OPENAI": "true"}
        self.apis = [await up.enter_async_context(live_api(self.server.url, env=env)) for _ in range(2)]
        for account in ACCOUNTS:
            headers = {"Authorization": f"Bearer {await Accounts(self.boss).create_token(account)}"}
            for number, api in enumerate(self.apis):
                http = AsyncClient(base_url=api.url, trust_env=False, headers=headers, timeout=60)
                self.clients[number, account] = await up.enter_async_context(http)
        await up.enter_async_context(keeping(self.server.url, lease_s=3))
        await self.direct()

    async def direct(self) -> None:
        given = {"runner": "openai", "concurrent_predictions": STREAMS, "lease_s": 3, "backoff_s": 0.1}
        process = director_process(self.server.url, f"http://127.0.0.1:{self.model.port}", **given)
        self.director = await self.up.enter_async_context(process)
        await self.director.says("model registered")

    def streams(self, prefix: str, *apis: int) -> list[Followed]:
        of = [(apis[n // 2 % len(apis)], ACCOUNTS[n % len(ACCOUNTS)]) for n in range(STREAMS)]
        return [Followed(self.clients[each], f"{prefix}{n}", each[1]) for n, each in enumerate(of)]

    async def used(self, account: str) -> int:
        rows = [await self.boss.hvals(key) for key in await self.boss.keys(f"*:ledger:*:{account}")]
        return sum(Used.unpack(each.decode()).output_tokens for row in rows for each in row)

    async def unended(self) -> list[bytes]:
        records = await self.boss.keys("*:rec:*")
        return [key for key in records if (await self.boss.hget(key, "status")).decode() not in TERMINAL]

    # ---- each kills one part, and lets the streams go on ----

    async def kill_model(self) -> None:
        await self.model.kill()
        self.model.go = True
        await self.model.start()

    async def kill_director(self) -> None:
        self.director.process.kill()
        await eventually(lambda: self.model.open, "its requests broke", until=(0).__eq__)
        self.model.go = True
        await self.direct()

    async def kill_api(self) -> None:
        self.apis[0].process.kill()
        await self.apis[0].process.wait()
        self.model.go = True

    async def kill_redis(self) -> None:
        self.server.kill()
        self.model.go = True
        await eventually(lambda: self.model.open, "all was sent meanwhile", until=(0).__eq__)
        self.server.start()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with AsyncExitStack() as up:
        site = Site()
        await site.start(up)
        yield site


# Each has what is killed, whether the n-th stream has chunks then, and its end
CASES: Final[dict[str, Any]] = {
    "model before": (Site.kill_model, lambda n: n % 2, lambda n: "server_lost" if n % 2 else WHOLE),
    "model after": (Site.kill_model, lambda _: True, lambda _: "server_lost"),
    "director": (Site.kill_director, lambda n: n % 2, lambda n: "director_lost" if n % 2 else WHOLE),
    "api": (Site.kill_api, lambda n: n % 2, lambda n: WHOLE if n // 2 % 2 else BROKE),
    "redis": (Site.kill_redis, lambda n: n % 2, lambda _: WHOLE),
}


@pytest.mark.parametrize("case", CASES)
async def test_each_of_fifty_streams_ends_as_documented(site: Site, case: str) -> None:
    kill, has_shown, end_of = CASES[case]
    model, streams = site.model, site.streams("s", 0, 1)
    model.shown = {each.tag for n, each in enumerate(streams) if has_shown(n)}
    async with anyio.create_task_group() as tasks:
        for each in streams:
            tasks.start_soon(each.read)
        await eventually(lambda: model.open, "all run", until=STREAMS.__eq__)
        for each in streams:
            await each.has(SHOWN if each.tag in model.shown else 0)
        await kill(site)
    assert [each.end for each in streams] == [end_of(n) for n in range(STREAMS)]
    for each in streams:
        runs = [run for run in model.sent[each.tag] if run[: len(each.chunks)] == each.chunks]
        assert len(runs) == 1 or not each.chunks, each.tag
        assert each.end != WHOLE or runs == [each.chunks], each.tag
    await eventually(site.unended, "each has an end", until=[].__eq__)
    for account in ACCOUNTS:
        own = [each for each in streams if each.account == account]
        sent = sum(tokens(run) for each in own for run in model.sent[each.tag])
        used = await site.used(account)
        assert sum(tokens(each.chunks) for each in own) <= used <= sent, account
    model.go = False
    last = site.streams("t", 1)
    async with anyio.create_task_group() as tasks:
        for each in last:
            tasks.start_soon(each.read)
        await eventually(lambda: model.open, "every slot is free", until=STREAMS.__eq__)
        model.go = True
    assert [each.end for each in last] == [WHOLE] * STREAMS
    await eventually(site.unended, "each has an end", until=[].__eq__)
    assert await site.boss.zcard(keys.lease(queue_name(MODEL, VERSION))) == 0


async def test_fifty_calls_run_side_by_side_again_after_one_death(site: Site) -> None:
    model, streams = site.model, site.streams("s", 0, 1)
    async with anyio.create_task_group() as tasks:
        for each in streams:
            tasks.start_soon(each.read)
        await eventually(lambda: model.open, "all run", until=STREAMS.__eq__)
        await model.kill()
        await eventually(lambda: model.open, "all are lost", until=(0).__eq__)
        await model.start()
        began = time.monotonic()
        await eventually(lambda: model.open, "all run again, beside each other", until=STREAMS.__eq__)
        model.go = True
    print(f"fifty calls were repeated in {time.monotonic() - began:.1f} s")
    assert [each.end for each in streams] == [WHOLE] * STREAMS
    assert {len(runs) for runs in model.sent.values()} == {2}


class Poisoned(Journaled):
    """One call kills it: twice once all others run, then at once. `beside` has how many ran at each death."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port
        self.beside: list[int] = []
        self._dying = asyncio.Event()

    async def serve(self, request: Request) -> Answer:
        is_poison = request.method != "GET" and json.loads(request.body)["messages"][0]["content"] == POISON
        if is_poison and len(self.beside) < TWICE:
            await eventually(lambda: self.open, "all others run", until=(STREAMS - 1).__eq__)
        if is_poison:
            self.beside.append(self.open)
            self._dying.set()
            await request.gone.wait()
        return await super().serve(request)

    async def supervise(self) -> None:
        while True:
            await self._dying.wait()
            self._dying.clear()
            await self.kill()
            self.go = len(self.beside) >= TWICE
            await self.start()


async def test_poison_among_fifty_calls_harms_none_of_its_neighbours(site: Site) -> None:
    await site.model.kill()
    site.model = model = Poisoned(site.model.port)
    site.up.push_async_callback(model.kill)
    await model.start()
    streams = site.streams("s", 0, 1)
    began = time.monotonic()
    async with anyio.create_task_group() as supervising:
        supervising.start_soon(model.supervise)
        async with anyio.create_task_group() as tasks:
            for each in streams:
                tasks.start_soon(each.read)
        supervising.cancel_scope.cancel()
    print(f"all ended in {time.monotonic() - began:.1f} s; the poison ran beside {model.beside}")
    assert model.beside == [STREAMS - 1, STREAMS - 1, 0]
    assert [each.tag for each in streams if each.end != WHOLE] == [POISON]
    assert b'"server_lost"' in next(each.raw for each in streams if each.tag == POISON)
