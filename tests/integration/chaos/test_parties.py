"""Check the scripted parties of a fault-injection run: the model server as a director sees it, and the sink."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import msgspec
import pytest

from director.chaos.journal import CogEnded, CogStarted, Delivered, Journal, Line, read
from director.chaos.parties import Cog, Sink
from director.chaos.wire import Caller, Handler, Unanswered, listening
from director.core import signing
from director.core.runner_config import CogConfig
from director.servers.runners import RunnerOptions
from director.servers.runners.cog import CogRunner
from director.servers.runners.runner import Ended, HealthStatus, Outcome, RunRequest
from tests.support.eventually import eventually

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    async with listening(handler) as port:
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def cog(folder: Path, *, slots: int = 2) -> AsyncIterator[CogRunner]:
    with closing(Journal(folder / "cog-0.jsonl")) as journal:
        async with serving(Cog("cog-0", slots, journal)) as url:
            runner = CogRunner(CogConfig(), RunnerOptions(url=url, slots=slots))
            try:
                yield runner
            finally:
                await runner.aclose()


async def end_of(runner: CogRunner, prediction_id: str, **script: object) -> Ended:
    request = RunRequest(id=prediction_id, input=msgspec.Raw(msgspec.json.encode(script)), wants_progress=False)
    async for event in runner.run(request):
        if isinstance(event, Ended):
            return event
    raise AssertionError("a run has an end")


def lines(folder: Path) -> list[Line]:
    return list(read(folder / "cog-0.jsonl"))


async def test_a_director_finds_the_scripted_server_ready(tmp_path: Path):
    async with cog(tmp_path) as runner:
        assert (await runner.health()).status is HealthStatus.READY


async def test_a_run_is_recorded_and_its_outputs_name_it(tmp_path: Path):
    async with cog(tmp_path) as runner:
        ended = await end_of(runner, "one", outputs=2)
    assert ended.outcome is Outcome.SUCCEEDED
    start, end = lines(tmp_path)
    assert isinstance(start, CogStarted)
    assert isinstance(end, CogEnded)
    assert (start.id, start.run, end.outcome) == ("one", end.run, "succeeded")
    assert ended.output is not None
    assert msgspec.json.decode(ended.output) == [{"run": start.run, "i": 0}, {"run": start.run, "i": 1}]


async def test_a_scripted_failure_is_the_models(tmp_path: Path):
    async with cog(tmp_path) as runner:
        assert (await end_of(runner, "one", outcome="fail")).outcome is Outcome.FAILED


async def test_a_run_that_hangs_ends_when_it_is_canceled(tmp_path: Path):
    async with cog(tmp_path) as runner:
        running = asyncio.create_task(end_of(runner, "one", outcome="hang"))
        await eventually(lambda: runner.cancel("one"), "a cancel that is heard")
        assert (await running).outcome is Outcome.CANCELED


async def test_a_run_ends_when_its_client_hangs_up(tmp_path: Path):
    async with cog(tmp_path) as runner:
        caller = Caller(runner.url)
        with pytest.raises(Unanswered):
            await caller.ask("PUT", "/predictions/one", b'{"input":{"outcome":"hang"}}', within_s=0.2)
        ended = await eventually(lambda: lines(tmp_path)[1:], "its end")
        assert [line.outcome for line in ended if isinstance(line, CogEnded)] == ["canceled"]


async def test_a_full_server_refuses_and_an_id_runs_only_once(tmp_path: Path):
    async with cog(tmp_path, slots=1) as runner:
        running = asyncio.create_task(end_of(runner, "one", outcome="hang"))
        await eventually(lambda: lines(tmp_path), "its start")
        caller = Caller(runner.url)
        body = b'{"input":{}}'
        assert (await caller.ask("PUT", "/predictions/two", body, within_s=5)).status == 409
        assert (await caller.ask("PUT", "/predictions/one", body, within_s=5)).status == 202
        caller.close()
        await runner.cancel("one")
        await running


@asynccontextmanager
async def sink(folder: Path, secret: str) -> AsyncIterator[str]:
    with closing(Journal(folder / "sink.jsonl")) as journal:
        async with serving(Sink(journal, {"3": secret})) as url:
            yield url


async def deliver(url: str, secret: str, *, body: bytes = b'{"id":"one","status":"succeeded"}') -> int:
    headers = signing.headers([secret], message_id="msg_one_completed", timestamp_s=int(time.time()), body=body)
    caller = Caller(url)
    try:
        return (await caller.ask("POST", "/hook/3", body, headers=headers, within_s=5)).status
    finally:
        caller.close()


async def test_the_sink_recognises_a_valid_signature(tmp_path: Path):
    secret = signing.new_secret()
    async with sink(tmp_path, secret) as url:
        assert await deliver(url, secret) == 200
        assert await deliver(url, signing.new_secret()) == 200
    delivered = [line for line in read(tmp_path / "sink.jsonl") if isinstance(line, Delivered)]
    assert [line.signed for line in delivered] == [True, False]
    assert {(line.id, line.webhook_id, line.status) for line in delivered} == {
        ("one", "msg_one_completed", "succeeded")
    }


async def test_the_sink_fails_and_breaks_connections_on_request(tmp_path: Path):
    secret = signing.new_secret()
    async with sink(tmp_path, secret) as url:
        orders = Caller(url)
        await orders.ask("PUT", "/mode/error", within_s=5)
        assert await deliver(url, secret) == 500
        await orders.ask("PUT", "/mode/reset", within_s=5)
        with pytest.raises(Unanswered):
            await deliver(url, secret)
        await orders.ask("PUT", "/mode/ok", within_s=5)
        assert await deliver(url, secret) == 200
        orders.close()
