"""Test what a director makes of odd answers: of an input that its server refuses, and of an engine that is dead."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import pytest
from msgspec import Struct, field
from redis.asyncio import Redis

from director.lab.chaos.wire import Answer, Request, listening
from tests.support.eventually import eventually
from tests.support.live_director import Caller, keeping, live_director
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.faults]

HTTP: Final = {"runner": "http", "runner_config": json.dumps({"kind": "http", "path": "/predict"})}
EACH: Final = {"kind": "http", "path": "/predict", "input": {"args": {"$each": "/prompt"}}, "batch": {"most": 4}}
BATCHES: Final = {"runner": "http", "runner_config": json.dumps(EACH)}
OPENAI: Final = {"runner": "openai", "runner_config": json.dumps({"kind": "openai", "model": "tiny"})}
DEAD: Final = {"error": {"message": "EngineCore encountered an issue. See stack trace (above).", "code": 500}}
POISONED: Final = b'{"message": "Prediction failed: shape mismatch"}'
SLOW_S: Final = 0.1  # a run, long enough that others run beside it
FINE: Final = {"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]}


class Front(Struct):
    """Answers by what its runs say. `is_dead`: its engine is, and the front lives. `shared`: runs that came in one
    request with others.
    """

    runs: Counter[str] = field(default_factory=Counter)
    shared: Counter[str] = field(default_factory=Counter)
    is_dead: bool = False
    is_held: bool = False
    refusal: int = 503
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, request: Request) -> Answer:
        if request.method == "GET":
            return Answer(503 if self.is_dead else 200)
        given = json.loads(request.body)
        if "args" in given:
            self.runs.update(given["args"])
            self.shared.update(given["args"] if len(given["args"]) > 1 else [])
            is_refused = "poison" in given["args"]
            return (
                Answer(503, POISONED) if is_refused else Answer(200, json.dumps(["fine"] * len(given["args"])).encode())
            )
        text = given["messages"][0]["content"] if "messages" in given else given["prompt"]
        self.runs[text] += 1
        while self.is_held and not self.is_dead:
            self.changed.clear()
            await self.changed.wait()
        if self.is_dead:
            return Answer(500, json.dumps(DEAD).encode())
        if text.startswith("slow"):
            await asyncio.sleep(SLOW_S)  # the model's own time
        match text:
            case "poison":
                return Answer(self.refusal, POISONED)
            case "unreadable":
                return Answer(200, b'{"score": NaN}')
            case "replica":
                is_first = self.runs[text] == 1
                return Answer(500, b"The actor died unexpectedly before finishing") if is_first else Answer(200, b"1")
        return Answer(200, json.dumps(FINE).encode())

    def set(self, *, is_dead: bool = False) -> None:
        self.is_dead, self.is_held = is_dead, False
        self.changed.set()


@pytest.fixture(autouse=True)
async def keeper(server: RedisServer) -> AsyncGenerator[None]:
    """Without a keeper nothing that waits for its next attempt becomes due."""
    async with keeping(server.url):
        yield


@asynccontextmanager
async def front() -> AsyncGenerator[tuple[Front, str]]:
    server = Front()
    async with listening(server) as port:
        yield server, f"http://127.0.0.1:{port}"


async def retried(caller: Caller, prediction_id: Any) -> list[str]:
    return [kind for kind in await caller.kinds(prediction_id) if kind in ("started", "retried", "released")]


async def test_input_that_a_ready_server_refuses_holds_up_no_other(caller: Caller, server: RedisServer) -> None:
    async with front() as (model, url), live_director(server.url, url, **HTTP) as director:
        poison = await caller.submit(prompt="poison")
        for number in range(4):
            good = await caller.ended(await caller.submit(prompt=f"{number}"))
            assert good["metrics"]["queue_time"] < 1
        shown = await eventually(
            lambda: caller.get(poison), "it is dead", until=lambda shown: shown["status"] == "failed", limit_s=60
        )
        kinds = Counter(await retried(caller, poison))
        [one] = director.servers.all
        assert one.trust.failures <= 3  # the refusals of an attempt are one
        assert not one.is_resting
    # three refusals are an attempt, and there are three
    assert (model.runs["poison"], kinds["released"], kinds["retried"]) == (9, 6, 2)
    assert shown["code"] == "refused"
    assert "shape mismatch" in shown["error"]


@pytest.mark.parametrize("status", [409, 429, 503])
async def test_input_that_a_server_under_load_refuses_ends_as_a_dead_letter(
    caller: Caller, server: RedisServer, status: int
) -> None:
    async with front() as (model, url), live_director(server.url, url, concurrent_predictions=3, **HTTP):
        model.refusal = status
        poison = await caller.submit(prompt="poison")
        good = 0
        while await caller.status(poison) != "failed":
            for each in [await caller.submit(prompt=f"slow {good + number}") for number in range(12)]:
                assert (await caller.ended(each))["status"] == "succeeded"
                good += 1
        shown = await caller.get(poison)
    assert shown["code"] == "refused"
    assert "shape mismatch" in shown["error"]
    assert 9 <= model.runs["poison"] <= 9 + 3  # some until it is known how many runs the server takes


async def test_input_that_a_batch_is_refused_for_ends_alone(caller: Caller, server: RedisServer) -> None:
    async with front() as (model, url):
        poison = await caller.submit(prompt="poison")
        mates = [await caller.submit(prompt=f"{number}") for number in range(3)]
        async with live_director(server.url, url, **BATCHES):
            ends = [await caller.ended(each) for each in mates]
            shown = await eventually(
                lambda: caller.get(poison), "it is dead", until=lambda shown: shown["status"] == "failed", limit_s=60
            )
        kinds = Counter(await retried(caller, mates[0]))
    assert [(end["status"], end["output"]) for end in ends] == [("succeeded", "fine")] * 3
    assert (kinds["retried"], shown["code"]) == (0, "refused")
    assert "shape mismatch" in shown["error"]
    # Three requests have others in it at most: fewer if its wait for a claim ends before theirs, for then it is alone
    assert model.runs["poison"] - model.shared["poison"] == 9  # three refusals are an attempt, and there are three
    assert 1 <= model.shared["poison"] <= 3


async def test_three_unreadable_answers_do_not_hold_up_a_good_one(
    caller: Caller, redis: Redis, server: RedisServer
) -> None:
    async with front() as (model, url), live_director(server.url, url, **HTTP) as director:
        odd = [await caller.submit(prompt="unreadable") for _ in range(3)]
        good = await caller.ended(await caller.submit(prompt="good"))
        ends = [await caller.ended(each) for each in odd]
        [one] = director.servers.all
        assert (one.trust.failures, one.is_resting, one.doubt.is_set()) == (0, False, False)
    assert [end["status"] for end in ends] == ["failed"] * 3
    assert model.runs == {"unreadable": 3, "good": 1}
    assert good["metrics"]["queue_time"] < 1


async def test_runs_of_a_dead_engine_behind_a_living_front_run_again(caller: Caller, server: RedisServer) -> None:
    async with front() as (model, url), live_director(server.url, url, concurrent_predictions=2, **OPENAI):
        model.is_held = True
        ids = [await caller.submit(prompt=f"{number}") for number in range(2)]
        await eventually(lambda: len(model.runs) == 2, "both run")
        model.set(is_dead=True)
        for each in ids:
            await eventually(partial(retried, caller, each), "it is retried", until=lambda kinds: "retried" in kinds)
        model.set()
        ends = [await caller.ended(each) for each in ids]
    assert [(end["status"], end["output"]) for end in ends] == [("succeeded", ["fine"])] * 2
    assert model.runs == {"0": 2, "1": 2}


async def test_run_of_a_lost_replica_runs_again_on_the_same_front(caller: Caller, server: RedisServer) -> None:
    async with front() as (model, url), live_director(server.url, url, **HTTP):
        shown = await caller.ended(await caller.submit(prompt="replica"))
    assert (shown["status"], model.runs["replica"]) == ("succeeded", 2)
