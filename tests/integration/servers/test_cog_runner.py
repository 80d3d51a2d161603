"""Test the Cog runner on a real Cog server, or on a scripted one where a real one cannot be made to misbehave."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from msgspec import Raw

from director.core.runner_config import CogConfig
from director.servers.runners import RunnerOptions, cog
from director.servers.runners.cog import CogRunner
from director.servers.runners.http_base import ASK_TIMEOUT_S
from director.servers.runners.inbox import Arrivals, Inbox
from director.servers.runners.runner import (
    BLOCK_BYTES,
    Began,
    Ended,
    HealthStatus,
    Logged,
    Measured,
    Outcome,
    Produced,
    Restarted,
    RunEvent,
    RunRequest,
)
from tests.support.cog import cog_process, cog_schema, cog_server, write_model
from tests.support.eventually import eventually
from tests.support.runner_conformance import follow, opened
from tests.support.scripted_cog import HEALTHY, Exchange, Script, ScriptedCog, answer, frame, scripted_cog, stream
from tests.unit.core.test_arrivals import client_of, put

pytestmark = pytest.mark.cog

ID = "a" * 26
OTHER_ID = "b" * 26
PATH = f"/predictions/{ID}"

MODEL = """
    import os, time
    from typing import Iterator
    from cog import BasePredictor

    class Predictor(BasePredictor):
        def predict(self, n: int = 3, text: str = "a", gate: str = "", then: str = "") -> Iterator[str]:
            for i in range(n):
                print("token", i)
                yield f"{text}{i}"
            wait_for(gate)
            if then == "raise":
                raise ValueError("it went wrong")
            if then == "exit":
                os._exit(1)

    class Scalar(BasePredictor):
        def predict(self, n: int = 3, text: str = "a", gate: str = "", then: str = "") -> str:
            print("thinking")
            wait_for(gate)
            if then == "raise":
                raise ValueError("it went wrong")
            if then == "swallow":
                try:
                    for _ in range(3_000):  # the server cancels between two steps of Python
                        time.sleep(0.01)  # where it is canceled
                except BaseException:
                    pass
            return text * n

    class Metered(BasePredictor):
        def predict(self) -> Iterator[str]:
            self.record_metric("tokens", 2)
            yield "a"

    class Slow(BasePredictor):
        def setup(self):
            wait_for(os.environ["SETUP_GATE"])

        def healthcheck(self) -> bool:
            return not os.path.exists(os.environ["SETUP_GATE"] + ".unwell")

        def predict(self, gate: str = "") -> str:
            wait_for(gate)
            return ""
"""


INPUTS = {"n": "integer", "text": "string", "gate": "string", "then": "string"}
STREAMED = cog_schema(INPUTS)
ANSWERED = cog_schema(INPUTS, streams=False)
SCALAR = cog_schema(INPUTS, {"type": "string"}, streams=False)


def request(prediction_id: str = ID, *, wants_progress: bool = True, **inputs: object) -> RunRequest:
    return RunRequest(id=prediction_id, input=Raw(msgspec.json.encode(inputs)), wants_progress=wants_progress)


async def the_end(runner: CogRunner, asked: RunRequest) -> Ended:
    """Return the end of a run. Check that there is one end, and that it follows a beginning if the run began."""
    *progress, ended = await follow(runner, asked)
    assert isinstance(ended, Ended)
    assert not any(isinstance(event, Ended) for event in progress)
    assert [type(event) for event in progress].count(Began) == isinstance(next(iter(progress), None), Began)
    return ended


def items(events: list[RunEvent]) -> list[str]:
    produced = [event for event in events if isinstance(event, Produced)]
    assert [event.index for event in produced] == list(range(len(produced)))
    return [msgspec.json.decode(event.item) for event in produced]


def printed(events: list[RunEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Logged))


async def ready(runner: CogRunner) -> None:
    await says(runner, HealthStatus.READY)


async def says(runner: CogRunner, status: HealthStatus) -> None:
    await eventually(runner.health, f"it is {status}", until=lambda health: health.status is status)


def runner_for(url: str, *, fast: bool = False, **options: Any) -> AbstractAsyncContextManager[CogRunner]:
    return opened(CogRunner(CogConfig(fast=fast), RunnerOptions(url=url, **options)))


async def end_at(url: str) -> Ended:
    async with runner_for(url) as runner:
        return await the_end(runner, request())


@pytest.fixture(scope="module")
async def streamed_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[str, None]:
    async with cog_server(write_model(tmp_path_factory.mktemp("streamed"), MODEL, STREAMED)) as url:
        yield url


@pytest.fixture(scope="module")
async def answered_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[str, None]:
    async with cog_server(write_model(tmp_path_factory.mktemp("answered"), MODEL, ANSWERED)) as url:
        yield url


@pytest.fixture(scope="module")
async def scalar_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[str, None]:
    folder = write_model(tmp_path_factory.mktemp("scalar"), MODEL, SCALAR)
    async with cog_server(folder, stub="predict.py:Scalar") as url:
        yield url


@pytest.fixture(params=["streamed", "answered"])
async def runner(
    request: pytest.FixtureRequest, streamed_url: str, answered_url: str, inbox: Inbox
) -> AsyncGenerator[CogRunner, None]:
    """Yield a runner of the same model over both transports: streamed, and answered with callbacks during the run."""
    url = {"streamed": streamed_url, "answered": answered_url}[request.param]
    async with runner_for(url, inbox=inbox) as runner:
        await ready(runner)
        yield runner


async def test_output_and_logs_arrive_in_order_and_the_end_is_complete(runner: CogRunner) -> None:
    first, *progress, ended = await follow(runner, request(n=3))
    assert first == Began()
    assert items(progress) == ["a0", "a1", "a2"]
    assert printed(progress) == "token 0\ntoken 1\ntoken 2\n"
    assert (ended.outcome, ended.output, ended.error) == (Outcome.SUCCEEDED, Raw(b'["a0","a1","a2"]'), None)
    assert ended.logs == "token 0\ntoken 1\ntoken 2\n"
    assert set(ended.metrics) == {"predict_time"}


async def test_two_thousand_outputs_arrive_complete(runner: CogRunner) -> None:
    events = await follow(runner, request(n=2000))
    assert items(events) == [f"a{n}" for n in range(2000)]
    assert printed(events) == "".join(f"token {n}\n" for n in range(2000))
    ended = events[-1]
    assert msgspec.json.decode(ended.output or b"") == items(events)


async def test_failure_has_its_error_its_logs_and_its_partial_output(runner: CogRunner) -> None:
    ended = await the_end(runner, request(n=2, then="raise"))
    assert ended.outcome is Outcome.FAILED
    assert ended.error is not None
    assert ended.error.endswith("ValueError: it went wrong")
    assert not ended.error.startswith("Prediction failed: ")
    assert ended.logs == "token 0\ntoken 1\n"
    assert ended.output == Raw(b'["a0","a1"]')
    assert not ended.server_is_dead


async def test_canceled_run_of_a_text_model_has_no_list_of_texts(scalar_url: str, inbox: Inbox) -> None:
    async with runner_for(scalar_url, inbox=inbox) as runner:
        await ready(runner)
        async with aclosing(runner.run(request(then="swallow"))) as run:
            assert await anext(run) == Began()
            await asyncio.sleep(0.1)  # coglet does not hear a cancel in a run's first milliseconds
            await runner.cancel(ID)
            ended = [event async for event in run][-1]
    assert (getattr(ended, "outcome", None), getattr(ended, "output", b"")) == (Outcome.CANCELED, None)


async def test_run_without_progress_still_reports_a_complete_failure(runner: CogRunner) -> None:
    began, ended = await follow(runner, request(n=2, then="raise", wants_progress=False))
    assert began == Began()
    assert (ended.outcome, ended.logs) == (Outcome.FAILED, "token 0\ntoken 1\n")


async def test_second_run_waits_for_the_slot(runner: CogRunner, gate: Path) -> None:
    async with aclosing(runner.run(request(gate=str(gate)))) as first:
        assert await anext(first) == Began()
        second = asyncio.create_task(follow(runner, request(OTHER_ID, n=1)))
        await asyncio.wait({second}, timeout=0.1)
        gate.touch()
        assert [event async for event in first][-1].outcome is Outcome.SUCCEEDED  # type: ignore[union-attr]
        assert items(await second) == ["a0"]


async def test_second_run_that_waited_too_long_is_refused_and_never_begins(
    runner: CogRunner, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cog, "SLOT_PATIENCE_S", 0.1)
    async with aclosing(runner.run(request(gate=str(gate)))) as first:
        assert await anext(first) == Began()
        monkeypatch.setattr("director.servers.runners.http_base.BEGAN_AFTER_S", 30)  # a busy machine may refuse late
        assert await follow(runner, request(OTHER_ID)) == [
            Ended(
                outcome=Outcome.REFUSED,
                error="The model server had no free slot",
                server_is_dead=True,
                has_no_slot=True,
            )
        ]
    await ready(runner)


async def test_orphaned_run_is_ended_before_its_id_runs_again(runner: CogRunner, gate: Path) -> None:
    async with httpx.AsyncClient(base_url=runner.url, trust_env=False) as dead_director:
        body = {"input": {"text": "old", "gate": str(gate)}}
        left = await dead_director.put(PATH, json=body, headers={"prefer": "respond-async"})
        assert left.status_code == 202
    events = await follow(runner, request(text="new", n=2))
    assert items(events) == ["new0", "new1"]


async def test_hundred_consecutive_runs_all_succeed(runner: CogRunner) -> None:
    for n in range(100):
        assert (await the_end(runner, request(f"{n:026d}", n=1))).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("streams", [True, False])
async def test_scalar_output_is_reported_once_at_the_end(tmp_path: Path, inbox: Inbox, streams: bool) -> None:
    model = write_model(tmp_path, MODEL, cog_schema(INPUTS, {"type": "string"}, streams=streams))
    async with cog_server(model, stub="predict.py:Scalar") as url, runner_for(url, inbox=inbox) as runner:
        events = await follow(runner, request(n=2, text="é"))
    assert [type(event) for event in events] == [Began, Logged, Ended]
    assert printed(events) == "thinking\n"
    assert events[-1].output == Raw('"éé"'.encode())


async def test_fast_runs_request_no_callbacks_so_a_failure_has_no_logs(scalar_url: str, inbox: Inbox) -> None:
    async with runner_for(scalar_url, inbox=inbox, fast=True) as runner:
        began, ended = await follow(runner, request(then="raise"))
    assert began == Began()
    assert (ended.outcome, ended.logs) == (Outcome.FAILED, None)


async def test_array_output_is_reported_at_the_end_without_an_inbox(answered_url: str) -> None:
    async with runner_for(answered_url) as runner:
        assert items(await follow(runner, request(n=3))) == ["a0", "a1", "a2"]


async def test_metrics_of_the_model_are_reported_as_they_arrive(tmp_path: Path) -> None:
    async with (
        cog_server(write_model(tmp_path, MODEL, STREAMED), stub="predict.py:Metered") as url,
        runner_for(url) as runner,
    ):
        events = await follow(runner, request())
    assert Measured("tokens", Raw(b"2"), "replace") in events
    assert events[-1].metrics["tokens"] == Raw(b"2")


async def test_ready_server_names_itself_and_shows_its_schema(streamed_url: str) -> None:
    async with runner_for(streamed_url) as runner:
        health = await runner.health()
        document = await runner.openapi_schema()
    assert health.status is HealthStatus.READY
    assert health.server.startswith("coglet 0.")
    assert msgspec.json.decode(document or b"") == STREAMED


async def test_starting_running_and_unhealthy_server_reports_its_state(tmp_path: Path, gate: Path) -> None:
    folder, setup_gate = write_model(tmp_path / "slow", MODEL, SCALAR), tmp_path / "setup"
    env = {"SETUP_GATE": str(setup_gate)}
    async with (
        cog_server(folder, stub="predict.py:Slow", env=env, until="STARTING") as url,
        runner_for(url) as runner,
    ):
        assert (await runner.health()).status is HealthStatus.STARTING
        setup_gate.touch()
        await ready(runner)
        running = asyncio.create_task(follow(runner, request(gate=str(gate))))
        await says(runner, HealthStatus.BUSY)
        gate.touch()
        await running
        await ready(runner)
        unwell = setup_gate.with_name("setup.unwell")
        unwell.touch()
        await says(runner, HealthStatus.UNHEALTHY)
        unwell.unlink()
        await ready(runner)


async def test_server_that_returns_with_another_model_is_learned_again(tmp_path: Path) -> None:
    async with cog_process(write_model(tmp_path / "old", MODEL, SCALAR), stub="predict.py:Scalar") as server:
        port = int(server.url.rpartition(":")[2])
        runner = CogRunner(CogConfig(), RunnerOptions(url=server.url))
        assert items(await follow(runner, request())) == []
    async with cog_process(write_model(tmp_path / "new", MODEL, STREAMED), port=port):
        await ready(runner)
        assert items(await follow(runner, request(n=1))) == ["a0"]
        await runner.aclose()


SUCCEEDED = {"id": ID, "status": "succeeded", "output": ["a"], "logs": "", "metrics": {}}
START = frame("start", {"id": ID, "status": "processing"})


@pytest.fixture
async def streaming() -> AsyncGenerator[ScriptedCog, None]:
    async with scripted_cog(streams=True) as server:
        server.on("POST", f"{PATH}/cancel", answer(404, {}))
        yield server


@pytest.fixture
async def answering() -> AsyncGenerator[ScriptedCog, None]:
    async with scripted_cog(streams=False) as server:
        yield server


async def test_closing_a_run_does_not_wait_for_a_hanging_server(
    streaming: ScriptedCog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.servers.runners.cog.LET_GO_PATIENCE_S", 0.1)

    async def hang(exchange: Exchange) -> None:
        await exchange.gone.wait()

    streaming.on("PUT", PATH, stream(START, then=hang))
    async with runner_for(streaming.url) as runner:
        events = runner.run(request())
        assert await anext(events) == Began()
        streaming.on("POST", f"{PATH}/cancel", Script(hang))
        with anyio.fail_after(ASK_TIMEOUT_S - 1):
            await events.aclose()
        assert streaming.asked("POST", f"{PATH}/cancel")


async def test_silent_server_counts_as_begun_and_may_take_its_time(answering: ScriptedCog) -> None:
    released = asyncio.Event()

    async def act(exchange: Exchange) -> None:
        await released.wait()
        await answer(200, SUCCEEDED).act(exchange)

    answering.on("PUT", PATH, Script(act))
    async with runner_for(answering.url) as runner, aclosing(runner.run(request())) as events:
        assert await anext(events) == Began()
        released.set()
        assert [type(event) for event in [event async for event in events]] == [Produced, Ended]


async def test_server_without_a_free_slot_is_asked_again(answering: ScriptedCog) -> None:
    answering.on("PUT", PATH, answer(409, b"{}"), answer(409, b"{}"), answer(200, SUCCEEDED))
    assert (await end_at(answering.url)).outcome is Outcome.SUCCEEDED
    assert len(answering.asked("PUT")) == 3


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"])
async def test_connection_closed_without_an_answer_loses_the_run(answering: ScriptedCog, head: bytes) -> None:
    answering.on("PUT", PATH, Script(lambda exchange: exchange.write(head)))
    ended = await end_at(answering.url)
    assert (ended.outcome, ended.server_is_dead) == (Outcome.LOST, True)


@pytest.mark.parametrize("streams", [True, False])
async def test_huge_output_is_not_read_to_its_end(streams: bool) -> None:
    async def endless(exchange: Exchange) -> None:
        while not exchange.gone.is_set():
            await exchange.write(b"10000\r\n%s\r\n" % (b"x" * 0x10000))

    huge = stream(b"data: ", then=endless) if streams else answer(200, b"x" * 3_000_000)
    async with scripted_cog(streams=streams) as server, runner_for(server.url, max_body=1_000_000) as runner:
        server.on("POST", f"{PATH}/cancel", answer(404, {}))
        server.on("PUT", PATH, huge)
        ended = await the_end(runner, request())
    assert ended == Ended(outcome=Outcome.FAILED, error="The model's output is larger than 1000000 bytes")


async def test_server_that_turns_out_not_to_stream_is_remembered(streaming: ScriptedCog) -> None:
    streaming.on("PUT", PATH, answer(406, {"error": "no"}), answer(200, SUCCEEDED))
    async with runner_for(streaming.url) as runner:
        for _ in range(2):
            assert (await the_end(runner, request())).outcome is Outcome.SUCCEEDED
    accepts = [exchange.headers["accept"] for exchange in streaming.asked("PUT")]
    assert accepts == ["text/event-stream", "application/json", "application/json"]


@pytest.mark.parametrize(
    "said",
    [
        answer(200, SUCCEEDED, content_type="application/json"),
        stream(START, frame("novelty", b"?"), frame("completed", SUCCEEDED)),
    ],
    ids=["no stream", "an event of a later version"],
)
async def test_unusual_answer_to_the_request_for_a_stream_is_understood(streaming: ScriptedCog, said: Script) -> None:
    streaming.on("PUT", PATH, said)
    assert (await end_at(streaming.url)).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize(
    ("chunks", "error"),
    [
        ([], "stopped before the run had ended"),
        ([frame("error", b"what?")], "broke off: what?"),
        ([frame("output", b"{")], "stopped before the run had ended"),
        ([frame("log", {"data": 5})], "stopped before the run had ended"),
        ([frame("completed", b"<html>")], "not JSON"),
        ([frame("completed", {"id": OTHER_ID, "status": "succeeded"})], "about another prediction"),
    ],
)
async def test_unfinished_stream_of_a_ready_server_fails_the_run(
    streaming: ScriptedCog, chunks: list[bytes], error: str
) -> None:
    streaming.on("PUT", PATH, stream(START, *chunks))
    async with runner_for(streaming.url) as runner:
        began, ended = await follow(runner, request())
    assert began == Began()
    assert (ended.outcome, ended.server_is_dead) == (Outcome.FAILED, False)
    assert error in (ended.error or "")


@pytest.mark.parametrize(
    ("health", "outcome", "is_dead"),
    [
        (answer(200, HEALTHY), Outcome.FAILED, False),
        (answer(200, {**HEALTHY, "status": "BUSY"}), Outcome.FAILED, False),
        (answer(200, {**HEALTHY, "status": "UNHEALTHY"}), Outcome.LOST, False),
        (answer(200, {**HEALTHY, "status": "DEFUNCT"}), Outcome.LOST, True),
        (answer(503, b"{}"), Outcome.LOST, False),
    ],
    ids=["ready", "busy", "unhealthy", "defunct", "no health"],
)
async def test_health_decides_what_a_500_means(
    answering: ScriptedCog, health: Script, outcome: Outcome, is_dead: bool
) -> None:
    async with runner_for(answering.url) as runner:
        await runner.health()
        answering.on("GET", "/health-check", health)
        answering.on("PUT", PATH, answer(500, {"error": "Object of type nan"}))
        ended = await the_end(runner, request())
    assert (ended.outcome, ended.server_is_dead) == (outcome, is_dead)
    assert "Object of type nan" in (ended.error or "")


async def test_run_that_outpaces_its_stream_is_sent_again(streaming: ScriptedCog) -> None:
    lagged = frame("error", {"error": "SSE stream lagged; events were dropped", "skipped": 9})
    shown = frame("output", {"chunk": "a", "index": 0})
    streaming.on("PUT", PATH, stream(START, shown, lagged), answer(200, SUCCEEDED))
    async with runner_for(streaming.url) as runner:
        *progress, ended = await follow(runner, request())
    assert (ended.outcome, ended.server_is_dead) == (Outcome.SUCCEEDED, False)
    assert progress == [Began(), Produced(item=Raw(b'"a"'), index=0), Restarted("stream_lagged")]
    accepts = [exchange.headers["accept"] for exchange in streaming.asked("PUT")]
    assert accepts == ["text/event-stream", "application/json"]


async def test_files_of_a_repeated_run_do_not_reduce_its_space(streaming: ScriptedCog) -> None:
    arrivals = Arrivals("secret")
    statuses = []

    def giving(then: Script) -> Script:
        async def act(exchange: Exchange) -> None:
            async with client_of(arrivals) as client:
                statuses.append((await put(client, b"x" * BLOCK_BYTES, run=ID)).status_code)
            await then.act(exchange)

        return Script(act)

    lagged = frame("error", {"error": "SSE stream lagged; events were dropped", "skipped": 9})
    streaming.on("PUT", PATH, giving(stream(START, lagged)), giving(answer(200, SUCCEEDED)))
    async with runner_for(streaming.url, inbox=Inbox("", arrivals=arrivals), max_files=BLOCK_BYTES) as runner:
        ended = await the_end(runner, request())
    assert (statuses, ended.outcome) == ([201, 201], Outcome.SUCCEEDED)


async def test_broken_stream_connection_loses_the_run_with_its_server(streaming: ScriptedCog) -> None:
    streaming.on("PUT", PATH, stream(START, whole=False))
    ended = await end_at(streaming.url)
    assert (ended.outcome, ended.server_is_dead) == (Outcome.LOST, True)


async def test_internal_error_of_the_runner_still_gives_an_end(
    answering: ScriptedCog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def faulty(*_: object, **__: object) -> Ended:
        raise RuntimeError("oh")

    monkeypatch.setattr(cog, "put_sync", faulty)
    async with runner_for(answering.url) as runner:
        assert await follow(runner, request()) == [
            Ended(outcome=Outcome.LOST, error="Following the run failed: RuntimeError")
        ]
    assert "following a run failed" in caplog.text


async def test_wait_for_an_earlier_run_is_bounded(answering: ScriptedCog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cog, "STRANGER_PATIENCE_S", 0.1)
    answering.on("PUT", PATH, answer(202, {"id": ID, "status": "processing"}))
    answering.on("POST", f"{PATH}/cancel", answer(200, {}))
    ended = await end_at(answering.url)
    assert (ended.outcome, ended.server_is_dead) == (Outcome.LOST, True)
    assert len(answering.asked("POST")) > 1


async def test_python_server_is_named_and_stopped_when_closed_early(answering: ScriptedCog) -> None:
    async def silence(exchange: Exchange) -> None:
        await exchange.gone.wait()

    answering.on("GET", "/health-check", answer(200, {"status": "READY", "setup": {"started_at": "then"}}))
    answering.on("GET", "/", answer(200, {"cog_version": "0.16.12"}))
    answering.on("PUT", PATH, Script(silence))
    async with runner_for(answering.url) as runner:
        assert (await runner.health()).server == "cog 0.16.12 (python)"
        async with aclosing(runner.run(request())) as events:
            assert await anext(events) == Began()
        assert [exchange.path for exchange in answering.asked("POST")] == [f"{PATH}/cancel"]


async def test_state_of_one_answer_is_not_carried_to_the_next_request(answering: ScriptedCog) -> None:
    answering.on("PUT", PATH, answer(200, SUCCEEDED, set_cookie="a=b"), answer(307, b"", location="/elsewhere"))
    async with runner_for(answering.url) as runner:
        await the_end(runner, request())
        ended = await the_end(runner, request())
    assert ended.outcome is Outcome.FAILED
    assert (ended.error or "").startswith("The model server answered 307 and points to /elsewhere")
    assert [exchange.path for exchange in answering.asked("PUT")] == [PATH, PATH]
    assert all("cookie" not in exchange.headers for exchange in answering.exchanges)
