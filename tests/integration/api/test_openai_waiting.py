"""Test how calls of OpenAI's API wait: 64 clients on 4 slots, with a real director and a scripted model server."""

import re
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from statistics import mean
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import TaskGroup
from msgspec import Struct, field
from redis.asyncio import Redis

from director.core.policy import Policy
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support import openai_server as support
from tests.support.api import LiveApi, live_api
from tests.support.eventually import eventually
from tests.support.live_director import director_process, keeping
from tests.support.openai_server import OpenAiServer, openai_server
from tests.support.queue_driver import MODEL, VERSION
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.heavy, pytest.mark.long]

SLOTS = 4
RUN_S = 1.5
AHEAD = re.compile(r"(\d+) ahead")
WAVES, WAVE_S = 4, 4.1  # no multiple of a run: each wave comes at another moment of it
# The second is much less than is expected of its bytes, or of a run before any has ended
USAGES = [
    {"prompt_tokens": 20, "completion_tokens": 200, "total_tokens": 220},
    {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
]
LEAST_STREAMS = 30  # whose place was told more than once, else nothing was tried


class Heard(Struct):
    """Keeps what one client heard, by time.monotonic: its first token, its end, and its places in the queue."""

    asked_s: float
    first_s: float = 0.0
    ended_s: float = 0.0
    places: list[tuple[float, int]] = field(default_factory=list)
    last: str = ""

    @property
    def wait_s(self) -> float:
        return self.first_s - self.asked_s

    def hear(self, line: str) -> None:
        now = time.monotonic()
        if found := AHEAD.search(line) if line.startswith(":") else None:
            self.places.append((now, int(found[1])))
        if line.startswith("data: "):
            self.first_s = self.first_s or now
            self.last = line


class Crowd:
    """Clients that stream from one model. Each run ends so long after its first token."""

    def __init__(self, http: httpx.AsyncClient, live: LiveApi, model: OpenAiServer, tasks: TaskGroup) -> None:
        self._http = http
        self._live = live
        self._model = model
        self._tasks = tasks
        self._marks = 0

    async def call(self, token: str, into: list[Heard], **asked: Any) -> Heard:
        self._marks += 1
        mark = f"run-{self._marks}"
        messages = [{"role": "user", "content": f"hold:{mark}"}]
        body = {"model": MODEL, "stream": True, "messages": messages, **asked}
        headers = {"Authorization": f"Bearer {token}"}
        heard = Heard(time.monotonic())
        into.append(heard)
        url = f"{self._live.url}/openai/v1/chat/completions"
        async with self._http.stream("POST", url, json=body, headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                was_silent = not heard.first_s
                heard.hear(line)
                if was_silent and heard.first_s:
                    self._tasks.start_soon(self._end_run, mark)
        heard.ended_s = time.monotonic()
        assert heard.last == "data: [DONE]"
        return heard

    async def _end_run(self, mark: str) -> None:
        await anyio.sleep(RUN_S)  # the model's own time
        self._model.release(mark)


class Service(Struct, frozen=True):
    live: LiveApi
    model: OpenAiServer
    tokens: dict[str, str]


@pytest.fixture(params=USAGES, ids=["chats", "short calls"])
async def service(
    server: RedisServer, redis: Redis, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Service]:
    monkeypatch.setattr(support, "USAGE", request.param)
    await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="openai", policy=Policy())
    tokens = {name: await Accounts(redis).create_token(name) for name in ("many", *(f"few-{n}" for n in range(4)))}
    runner = {"runner": "openai", "runner_config": '{"kind": "openai", "endpoint": "chat"}'}
    async with (
        openai_server() as model,
        director_process(server.url, model.url, concurrent_predictions=SLOTS, **runner),
        keeping(server.url),
        live_api(server.url, env={"DIRECTOR_OPENAI": "true"}) as live,
    ):
        yield Service(live, model, tokens)


async def test_sixty_calls_of_one_account_delay_others_by_less_than_a_round(service: Service) -> None:
    many: list[Heard] = []
    few: list[Heard] = []
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(timeout=120, trust_env=False, limits=limits) as http,
        anyio.create_task_group() as tasks,
    ):
        crowd = Crowd(http, service.live, service.model, tasks)
        for _ in range(60):
            tasks.start_soon(crowd.call, service.tokens["many"], many)
        await eventually(lambda: sum(each.first_s > 0 for each in many), "all slots run", until=SLOTS.__eq__)
        await eventually(lambda: all(each.places or each.first_s for each in many), "the others wait")
        for _ in range(WAVES):
            for token in list(service.tokens.values())[1:]:
                tasks.start_soon(crowd.call, token, few)
            await anyio.sleep(WAVE_S)  # the callers' own time
    run_s = mean(each.ended_s - each.first_s for each in (*many, *few))
    round_s = run_s * len(service.tokens) / SLOTS
    waits = sorted(each.wait_s / round_s for each in few)
    print(f"runs of {run_s:.2f} s, a round of {round_s:.2f} s; rounds waited: {', '.join(f'{w:.2f}' for w in waits)}")
    print(f"the last of the sixty waited {max(each.wait_s for each in many):.1f} s")
    assert waits[-1] <= 1
    assert max(each.wait_s for each in many) > 4 * round_s  # else there was no queue
    assert sum(len(each.places) > 1 for each in many) >= LEAST_STREAMS
    assert [grown for each in (*many, *few) for grown in growths(each)] == []


def growths(heard: Heard) -> list[tuple[int, int]]:
    return [(before, after) for (_, before), (_, after) in pairwise(heard.places) if after > before]
