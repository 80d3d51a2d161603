"""Interactive calls beside a running batch wait one line longer at most, and no longer if the batch is idle work.

Quiet and busy windows alternate in one run, so that whatever else the machine does hits both.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import quantiles
from typing import Any

import anyio
import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.core.ids import ALL_LANES, PredictionId, queue_name
from director.core.settings import ApiSettings
from director.lab.chaos.wire import Answer, Request
from director.store.accounts import Accounts
from tests.support import batches
from tests.support.api import api_client
from tests.support.batches import EchoServer
from tests.support.eventually import eventually
from tests.support.live_director import director_process, keeper_process
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer

NIGHT = "night"
QUEUE = queue_name(MODEL, VERSION)
SLOTS = 4
LINE_S = 0.8
CALL_S = 0.05
GAP_S = 0.15  # between two calls: seldom two at once
WINDOW_S = 2.5
PAIRS = 20  # of a quiet window and a busy one
SETTLED_S = 2.5 * LINE_S  # from its begin: what ran before is over, and what was claimed ahead of that
NOISE_S = LINE_S / 4  # two calls at once, and a busy machine


class LongLines(EchoServer):
    async def serve(self, request: Request) -> Answer:
        if request.method == "POST" and b'"call"' not in request.body:
            await asyncio.sleep(LINE_S)
        return await super().serve(request)


class Beside:
    """A batch of one account and interactive calls of another one, at the same model."""

    def __init__(
        self, calls: AsyncClient, lines: AsyncClient, model: EchoServer, redis: Redis, scripts: Scripts
    ) -> None:
        self.calls, self.lines, self.model = calls, lines, model
        self.redis, self.scripts = redis, scripts

    async def begin(self, lane: str) -> str:
        content = batches.lines(f"l{n}" for n in range(5_000))
        made = await batches.create(self.lines, await batches.upload(self.lines, content), headers={"X-Priority": lane})
        await eventually(lambda: self.model.runs.total(), "lines run", until=(SLOTS).__le__)
        return str(made["id"])

    async def window(self, *, is_quiet: bool) -> list[float]:
        """Return the waits for a slot in one window, in seconds."""
        await self.scripts.pause(QUEUE, paused=is_quiet, account=NIGHT)
        await asyncio.sleep(SETTLED_S)
        ran, until = self._count_lines(), anyio.current_time() + WINDOW_S
        async with anyio.create_task_group() as tasks:
            ids: list[PredictionId] = []
            while anyio.current_time() < until:
                tasks.start_soon(self._call, ids)
                await asyncio.sleep(random.expovariate(1 / GAP_S))
        assert (self._count_lines() == ran) is is_quiet, "lines run in busy windows, and in no other"
        found = [await self.scripts.get(each) for each in ids]
        return [(each.record.started - each.record.created) / 1000 for each in found if each and each.record.started]

    async def _call(self, ids: list[PredictionId]) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "call"}]}
        answer = await self.calls.post("/openai/v1/chat/completions", json=body, timeout=30)
        assert answer.status_code == 200, answer.text
        ids.append(PredictionId(answer.headers["x-request-id"]))

    def _count_lines(self) -> int:
        return self.model.runs.total() - self.model.runs["call"]


@pytest.fixture
async def beside(server: RedisServer, redis: Redis, scripts: Scripts, tmp_path: Path) -> AsyncIterator[Beside]:
    settings = ApiSettings(redis_url=server.url, files_dir=str(tmp_path), openai=True)
    accounts = Accounts(redis)
    own, night = await accounts.create_token(ACCOUNT), await accounts.create_token(NIGHT, lanes=ALL_LANES)
    async with AsyncExitStack() as up:
        model = await up.enter_async_context(LongLines(pause_s=CALL_S).listening())
        calls = await up.enter_async_context(api_client(settings, token=own))
        lines = await up.enter_async_context(api_client(settings, token=night))
        keeper: dict[str, Any] = {"openai": "true", "files_dir": tmp_path, "batches_redis_url": server.url}
        await up.enter_async_context(keeper_process(server.url, **keeper))
        given: dict[str, Any] = {"runner": "openai", "concurrent_predictions": SLOTS}
        await up.enter_async_context(director_process(server.url, model.url, **given))
        yield Beside(calls, lines, model, redis, scripts)


def p95(waits: list[float]) -> float:
    return quantiles(waits, n=20)[-1]


@pytest.mark.heavy  # it judges speed
@pytest.mark.parametrize(("lane", "most_s"), [("low", LINE_S), ("idle", 0.0)])
async def test_calls_beside_a_batch_wait_one_line_longer_at_most(beside: Beside, lane: str, most_s: float) -> None:
    batch_id = await beside.begin(lane)
    quiet: list[float] = []
    busy: list[float] = []
    for _ in range(PAIRS):
        quiet += await beside.window(is_quiet=True)
        busy += await beside.window(is_quiet=False)
    await beside.lines.post(f"{batches.BATCHES}/{batch_id}/cancel")
    longer_s = p95(busy) - p95(quiet)
    print(
        f"{lane}: p95 of {len(quiet)} waits {1000 * p95(quiet):.0f} ms quiet, of {len(busy)} "
        f"{1000 * p95(busy):.0f} ms beside the batch: {longer_s / LINE_S:.2f} of a line longer, at most "
        f"{1000 * max(quiet):.0f} and {1000 * max(busy):.0f} ms"
    )
    assert longer_s <= most_s + NOISE_S
