"""Test runs on Cog servers 0.9 to 0.12, which accept nothing else during an open PUT; scripted, to misbehave."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import httpx
import msgspec
import pytest
from msgspec import Raw

from director.core.runner_config import CogConfig
from director.servers.runners import RunnerOptions
from director.servers.runners import cog_follow as cog_called
from director.servers.runners.cog import CogRunner
from director.servers.runners.inbox import Inbox
from director.servers.runners.runner import Began, Ended, HealthStatus, Logged, Outcome, Produced, RunRequest
from tests.support.eventually import eventually
from tests.support.runner_conformance import follow, opened
from tests.support.scripted_cog import Exchange, Script, ScriptedCog, answer, scripted_cog

ID = "a" * 26
PATH = f"/predictions/{ID}"
REQUEST = RunRequest(id=ID, input=Raw(b'{"text":"a"}'))
TAKEN: dict[str, Any] = {"id": ID, "status": "processing", "output": None, "logs": ""}


def health(status: str) -> Script:
    return answer(200, {"status": status, "setup": {"started_at": "then"}})


@pytest.fixture
async def old() -> AsyncGenerator[ScriptedCog, None]:
    """Yield a server that is READY, is too old to report its version, and has no run."""
    async with scripted_cog(streams=False) as cog:
        cog.on("GET", "/health-check", health("READY"))
        cog.on("POST", f"{PATH}/cancel", answer(404, b"{}"))
        cog.on("PUT", PATH, answer(202, TAKEN))
        yield cog


@pytest.fixture
async def runner(old: ScriptedCog, inbox: Inbox) -> AsyncGenerator[CogRunner, None]:
    async with opened(CogRunner(CogConfig(), RunnerOptions(url=old.url, inbox=inbox))) as runner:
        await runner.health()
        yield runner


async def callbacks(old: ScriptedCog, *snapshots: dict[str, Any]) -> None:
    await eventually(lambda: old.asked("PUT"), "another task asks")
    asked = msgspec.json.decode(old.asked("PUT")[-1].body)
    async with httpx.AsyncClient(trust_env=False) as client:
        for snapshot in snapshots:
            await client.post(asked["webhook"], json={**TAKEN, **snapshot})


async def test_body_has_the_id(old: ScriptedCog, runner: CogRunner) -> None:
    await asyncio.gather(follow(runner, REQUEST), callbacks(old, {"status": "canceled"}))
    assert [msgspec.json.decode(put.body)["id"] for put in old.asked("PUT")] == [ID]


@pytest.mark.parametrize(
    ("version", "path"), [("", "/predictions"), ("0.12.1", "/predictions"), ("0.13.7", "/trainings")]
)
async def test_training_goes_where_the_version_of_the_server_accepts_it(
    old: ScriptedCog, inbox: Inbox, version: str, path: str
) -> None:
    old.on("GET", "/", answer(200, {"cog_version": version} if version else {}))
    old.on("POST", f"/predictions/{ID}/cancel", answer(404, b"{}"))
    old.on("PUT", f"{path}/{ID}", answer(200, {**TAKEN, "status": "succeeded", "output": "weights"}))
    async with opened(CogRunner(CogConfig(), RunnerOptions(url=old.url, inbox=inbox, trains=True))) as runner:
        await runner.health()
        assert (await follow(runner, REQUEST))[-1].outcome is Outcome.SUCCEEDED
        await runner.cancel(ID)
    assert old.asked("POST", "/")[-1].path == f"/predictions/{ID}/cancel", "they answer 500 to a cancel of /trainings"


@pytest.mark.parametrize("version", ["", "0.12.1", "0.13.7", "0.16.12"])
async def test_path_on_the_disk_of_the_server_is_never_shown(old: ScriptedCog, inbox: Inbox, version: str) -> None:
    output = {"type": "array", "items": {"type": "string", "format": "uri"}, "x-cog-array-type": "iterator"}
    old.on("GET", "/", answer(200, {"cog_version": version} if version else {}))
    old.on("GET", "/openapi.json", answer(200, {"components": {"schemas": {"Output": output}}}))
    told = asyncio.Event()

    async def act(exchange: Exchange) -> None:
        await told.wait()
        await answer(200, {**TAKEN, "status": "succeeded", "output": ["data:,a"], "logs": "one"}).act(exchange)

    old.on("PUT", PATH, Script(act))
    async with opened(CogRunner(CogConfig(), RunnerOptions(url=old.url, inbox=inbox))) as runner:
        await runner.health()
        async with aclosing(runner.run(REQUEST)) as run:
            assert await anext(run) == Began()
            await callbacks(old, {"output": ["/tmp/a.bin"], "logs": "one"})
            assert await anext(run) == Logged("one")
            told.set()
            rest = [event async for event in run]
    assert rest == [
        Produced(Raw(b'"data:,a"'), 0),
        Ended(outcome=Outcome.SUCCEEDED, output=Raw(b'["data:,a"]'), logs="one"),
    ]


async def test_last_callback_is_the_end_and_no_request_stays_open(old: ScriptedCog, runner: CogRunner) -> None:
    told = [{"output": ["a"]}, {"output": ["a", "b"], "status": "succeeded", "metrics": {"predict_time": 1}}]
    events, _ = await asyncio.gather(follow(runner, REQUEST), callbacks(old, *told))
    assert events[:3] == [Began(), Produced(Raw(b'"a"'), 0), Produced(Raw(b'"b"'), 1)]
    assert events[3] == Ended(
        outcome=Outcome.SUCCEEDED, output=Raw(b'["a","b"]'), logs="", metrics={"predict_time": Raw(b"1")}
    )
    [put] = old.asked("PUT")
    assert put.headers["prefer"] == "respond-async"
    assert [exchange.path for exchange in old.asked("POST")] == [f"{PATH}/cancel"], "what a dead director left is ended"


async def test_foreign_callback_is_ignored(old: ScriptedCog, runner: CogRunner) -> None:
    told = [{"id": "b" * 26, "status": "failed"}, {"status": 7}, {"status": "canceled"}]
    events, _ = await asyncio.gather(follow(runner, REQUEST), callbacks(old, *told))
    assert [type(event) for event in events] == [Began, Ended]
    assert events[-1] == Ended(outcome=Outcome.CANCELED)


async def test_refused_input_is_answered_without_waiting(old: ScriptedCog, runner: CogRunner) -> None:
    old.on("PUT", PATH, answer(422, {"detail": [{"loc": ["body", "input", "n"], "msg": "no integer"}]}))
    assert await follow(runner, REQUEST) == [Ended(outcome=Outcome.INVALID, error="n: no integer")]


async def test_dead_worker_loses_the_run(old: ScriptedCog, runner: CogRunner) -> None:
    error = "Prediction failed for an unknown reason. It might have run out of memory? (exitcode -9)"
    events, _ = await asyncio.gather(follow(runner, REQUEST), callbacks(old, {"status": "failed", "error": error}))
    assert events[-1] == Ended(outcome=Outcome.LOST, error=error, server_is_dead=True)


@pytest.mark.parametrize("status", ["DEFUNCT", "SETUP_FAILED"])
async def test_server_that_disappears_during_the_run_loses_it(
    old: ScriptedCog, runner: CogRunner, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setattr(cog_called, "LOOK_AFTER_S", 0.01)
    old.on("GET", "/health-check", health("BUSY"), health(status))
    ended = (await follow(runner, REQUEST))[-1]
    assert (ended.outcome, ended.server_is_dead) == (Outcome.LOST, True)


async def test_server_that_is_ready_without_an_end_has_lost_the_run(
    old: ScriptedCog, runner: CogRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cog_called, "LOOK_AFTER_S", 0.01)
    monkeypatch.setattr(cog_called, "REPORTED_WITHIN_S", 0.05)
    old.on("GET", "/health-check", health("READY"), health("BUSY"), health("READY"))
    assert (await follow(runner, REQUEST))[-1] == cog_called.NO_END


async def test_first_cancel_waits_until_the_run_can_receive_it(
    old: ScriptedCog, runner: CogRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.servers.runners.cog.FIRST_CANCEL_AFTER_S", 0.3)
    async with aclosing(runner.run(REQUEST)) as events:
        assert await anext(events) == Began()
        before = len(old.asked("POST"))
        canceling = asyncio.create_task(runner.cancel(ID))
        await asyncio.sleep(0.05)  # well before the first cancel may be sent
        assert len(old.asked("POST")) == before
        await canceling
        assert len(old.asked("POST")) == before + 1


@pytest.mark.parametrize("fast", [False, True])
async def test_run_with_an_open_request_leaves_the_server_busy_and_unasked(
    old: ScriptedCog, inbox: Inbox, fast: bool
) -> None:
    """This happens if the output may be files, which only the answer contains, or if no callbacks are wanted."""
    output: dict[str, Any] = {"type": "string"} if fast else {"type": "string", "format": "uri"}
    old.on("GET", "/openapi.json", answer(200, {"components": {"schemas": {"Output": output}}}))
    released = asyncio.Event()

    async def act(exchange: Exchange) -> None:
        await released.wait()
        await answer(200, {"status": "succeeded", "output": "x"}).act(exchange)

    old.on("PUT", PATH, Script(act))
    async with opened(CogRunner(CogConfig(fast=fast), RunnerOptions(url=old.url, inbox=inbox))) as runner:
        ready = await runner.health()
        async with aclosing(runner.run(REQUEST)) as events:
            assert await anext(events) == Began()
            looks = len(old.asked("GET", "/health-check"))
            busy = await runner.health()
            assert (busy.status, busy.since, busy.server) == (HealthStatus.BUSY, ready.since, ready.server)
            assert len(old.asked("GET", "/health-check")) == looks
            released.set()
            assert [event async for event in events][-1] == Ended(
                outcome=Outcome.SUCCEEDED, output=Raw(b'"x"'), logs=""
            )
        assert "prefer" not in old.asked("PUT")[0].headers
        assert (await runner.health()).status is HealthStatus.READY
