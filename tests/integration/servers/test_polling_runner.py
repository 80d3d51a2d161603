"""Test the promises of the runner for polled servers that go beyond those of every runner."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest

from director.core.runner_config import PollingConfig, WrongRunnerConfig, decode_runner_config
from director.servers.runners import RunnerOptions
from director.servers.runners.polling import PollingRunner
from director.servers.runners.runner import Accepted, Began, Ended, Outcome, RunEvent, RunRequest
from tests.support.eventually import eventually
from tests.support.model_server import ModelServer
from tests.support.runner_conformance import CONFIGS, MOST_BYTES, SUBJECTS, follow, opened, the_end
from tests.support.scripted_cog import Exchange, Script, ScriptedCog, answer, frame, scripted_cog, stream

KIND = SUBJECTS["polling"]
ID = "a" * 26


def runner_of(url: str, **given: Any) -> PollingRunner:
    config = decode_runner_config(json.dumps(CONFIGS["polling"] | given))
    return PollingRunner(config, RunnerOptions(url=url, max_body=MOST_BYTES))


async def end_of(asked: RunRequest, url: str, **given: Any) -> Ended:
    async with opened(runner_of(url, **given)) as runner:
        return the_end(await follow(runner, asked))


def request(remote: str = "", **given: object) -> RunRequest:
    asked = KIND.request(**given)
    return RunRequest(id=asked.id, input=asked.input, remote=remote)


@asynccontextmanager
async def started(
    url: str, asked: RunRequest | None = None, **given: Any
) -> AsyncGenerator[tuple[PollingRunner, AsyncGenerator[RunEvent, None]]]:
    """Yield a runner with a run that its server has accepted."""
    async with (
        opened(runner_of(url, **given)) as runner,
        asyncio.timeout(20),
        aclosing(runner.run(asked or request())) as run,
    ):
        assert [type(await anext(run)) for _ in range(2)] == [Began, Accepted]
        yield runner, run


async def jobs(server: ModelServer) -> int:
    async with httpx.AsyncClient(trust_env=False) as client:
        return int((await client.get(f"{server.url}/jobs")).json()["jobs"])


async def test_resumed_run_is_followed_and_not_started_again(server: ModelServer, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with opened(runner_of(server.url)) as first:
        run = first.run(request(gate=str(gate)))
        assert await anext(run) == Began()
        accepted = await anext(run)
        await run.aclose()
    started = await jobs(server)
    assert not gate.with_name("gate.stopped").exists(), "it is left as it is"
    async with opened(runner_of(server.url)) as second:
        assert second.knows(accepted.remote)
        async with aclosing(second.run(request(accepted.remote, gate=str(gate)))) as run:
            assert [await anext(run), await anext(run)] == [Began(), accepted]
            gate.touch()
            assert the_end([event async for event in run]).outcome is Outcome.SUCCEEDED
    assert await jobs(server) == started


async def test_run_of_another_server_is_not_polled_here(server: ModelServer) -> None:
    async with opened(runner_of(server.url)) as runner:
        events = await follow(runner, request("0123456789ab:job/0 ?#"))
    assert the_end(events).outcome is Outcome.SUCCEEDED
    assert isinstance(events[1], Accepted)
    assert events[1].remote != "0123456789ab:job/0 ?#"


async def test_run_that_the_server_forgot_is_lost_but_the_server_stays(server: ModelServer) -> None:
    runner = runner_of(server.url)
    async with opened(runner):
        events = await follow(runner, request(f"{runner._scope}nothing"))
    ended = the_end(events)
    assert (ended.outcome, ended.server_is_dead) == (Outcome.LOST, False)
    assert "not known there any more" in (ended.error or "")


async def test_unstoppable_run_is_canceled_at_once_and_keeps_its_slot(server: ModelServer, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    given = {"cancel_endpoint_template": "", "interval_s": 0.02}
    async with started(server.url, request(gate=str(gate)), **given) as (runner, run):
        assert await runner.cancel(ID)
        ended = the_end([event async for event in run])
        assert ended.outcome is Outcome.CANCELED
        await asyncio.wait({ended.goes_on}, timeout=0.1)
        assert not ended.goes_on.done()
        gate.touch()
        await ended.goes_on


@pytest.mark.parametrize("given", [{"longest_s": 0.3}, {"away_s": 0.1}], ids=str)
async def test_kept_slot_is_freed_after_the_limit_or_with_the_server(
    scripted: ScriptedCog, given: dict[str, Any]
) -> None:
    scripted.on("GET", "/jobs/7", answer(200, {"state": "running"}))
    async with started(scripted.url, cancel_endpoint_template="", **given) as (runner, run):
        assert await runner.cancel(ID)
        goes_on = the_end([event async for event in run]).goes_on
        if "away_s" in given:
            scripted.on("GET", "/jobs/7", answer(500, b""))
        await goes_on


async def test_server_that_ignores_a_cancel_keeps_the_slot(
    scripted: ScriptedCog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.servers.runners.polling.UNHEEDED_S", 0.05)
    scripted.on("GET", "/jobs/7", answer(200, {"state": "running"}))
    scripted.on("POST", "/cancel/7", answer(200, {}))
    async with started(scripted.url) as (runner, run):
        assert await runner.cancel(ID)
        ended = the_end([event async for event in run])
        assert (ended.outcome, ended.goes_on is None) == (Outcome.CANCELED, False)
        scripted.on("GET", "/jobs/7", answer(200, {"state": "done", "result": {"items": []}}))
        await ended.goes_on


async def test_remaining_runs_are_abandoned_when_the_runner_closes(server: ModelServer, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with started(server.url, request(gate=str(gate)), cancel_endpoint_template="") as (runner, run):
        await runner.cancel(ID)
        goes_on = the_end([event async for event in run]).goes_on
    assert goes_on.cancelled()
    gate.touch()


async def test_run_that_takes_too_long_is_stopped_and_fails(server: ModelServer, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    ended = await end_of(request(gate=str(gate)), server.url, longest_s=0.1)
    assert (ended.outcome, ended.error) == (Outcome.FAILED, "It ran for longer than 0.1 s")
    await eventually(gate.with_name("gate.stopped").exists, "the server stopped it")


@pytest.fixture
async def scripted() -> AsyncGenerator[ScriptedCog, None]:
    async with scripted_cog() as scripted:
        scripted.on("POST", "/jobs", answer(200, {"job": {"id": 7}}))
        yield scripted


@pytest.mark.parametrize(
    ("word", "outcome"),
    [
        ("success", Outcome.SUCCEEDED),
        ("COMPLETED", Outcome.SUCCEEDED),
        ("Done", Outcome.SUCCEEDED),
        ("error", Outcome.FAILED),
        ("Timed_Out", Outcome.FAILED),
        ("CANCELLED", Outcome.CANCELED),
        ("aborted", Outcome.CANCELED),
        ("baked", Outcome.FAILED),
        (True, Outcome.FAILED),
    ],
)
async def test_many_state_names_are_known_and_an_unknown_one_is_reported(
    scripted: ScriptedCog, word: object, outcome: Outcome
) -> None:
    done = {"state": word, "result": {"items": []}}
    scripted.on(
        "GET", "/jobs/7", answer(200, {"state": "in_queue"}), answer(200, {"state": "Running"}), answer(200, done)
    )
    ended = await end_of(request(), scripted.url)
    assert ended.outcome is outcome
    if word in ("baked", True):
        assert repr(str(word).lower()) in (ended.error or "")
    assert len(scripted.asked("POST", "/jobs")) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_brief_server_error_is_polled_again(scripted: ScriptedCog, status: int) -> None:
    stumbles = [answer(status, b"busy"), answer(200, b"<html>"), answer(200, {"state": "ok", "result": {"items": []}})]
    scripted.on("GET", "/jobs/7", *stumbles)
    assert (await end_of(request(), scripted.url, away_s=20)).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("status", [500, 503])
async def test_one_error_loses_no_run_that_is_polled_rarely(scripted: ScriptedCog, status: int) -> None:
    done = answer(200, {"state": "ok", "result": {"items": []}})
    scripted.on("GET", "/jobs/7", answer(200, {"state": "running"}), answer(status, b"busy"), done)
    assert (await end_of(request(), scripted.url, interval_s=1.2, away_s=1)).outcome is Outcome.SUCCEEDED
    assert len(scripted.asked("POST", "/jobs")) == 1


@pytest.mark.parametrize(
    ("health", "outcome", "is_dead"), [(200, Outcome.FAILED, False), (503, Outcome.LOST, True)], ids=["ready", "not"]
)
async def test_polls_with_only_errors_end_the_run_by_the_health(
    scripted: ScriptedCog, health: int, outcome: Outcome, is_dead: bool
) -> None:
    scripted.on("GET", "/jobs/7", answer(500, b"oh no"))
    scripted.on("GET", "/health", answer(health, b"{}"))
    ended = await end_of(request(), scripted.url, away_s=1)
    assert (ended.outcome, ended.server_is_dead) == (outcome, is_dead)
    assert "oh no" in (ended.error or "")


@pytest.mark.parametrize("status", [408, 409, 429, 503, 504])
async def test_full_server_that_is_ready_is_polled_until_it_answers(scripted: ScriptedCog, status: int) -> None:
    done = answer(200, {"state": "ok", "result": {"items": []}})
    scripted.on("GET", "/jobs/7", *[answer(status, b"slow down")] * 12, done)
    ended = await end_of(request(), scripted.url, interval_s=0.05, away_s=0.1)
    assert (ended.outcome, ended.error) == (Outcome.SUCCEEDED, None)
    assert len(scripted.asked("POST", "/jobs")) == 1


async def test_poll_waits_as_long_as_the_server_says(scripted: ScriptedCog) -> None:
    done = answer(200, {"state": "ok", "result": {"items": []}})
    scripted.on("GET", "/jobs/7", answer(429, b"slow down", retry_after="1"), done)
    ended = await asyncio.wait_for(end_of(request(), scripted.url, interval_s=0.02, away_s=0.1), 20)
    assert ended.outcome is Outcome.SUCCEEDED
    assert len(scripted.asked("GET", "/jobs/7")) == 2


@pytest.mark.parametrize("status", [429, 502, 503])
async def test_run_that_is_lost_by_its_polls_is_stopped_first(scripted: ScriptedCog, status: int) -> None:
    scripted.on("GET", "/jobs/7", answer(status, b"no"))
    scripted.on("GET", "/health", answer(503, b"{}"))
    ended = await end_of(request(), scripted.url, interval_s=0.02, away_s=0.1)
    assert ended.outcome is Outcome.LOST
    assert len(scripted.asked("POST", "/cancel/7")) == 1


@pytest.mark.parametrize("name", ["..", "", None, "x" * 300, "a\nb", {"a": 1}], ids=str)
async def test_unusable_run_id_counts_as_missing(scripted: ScriptedCog, name: object) -> None:
    scripted.on("POST", "/jobs", answer(200, {"job": {"id": name}}))
    ended = await end_of(request(), scripted.url)
    assert ended.outcome is Outcome.FAILED
    assert (ended.error or "").startswith("The model server's answer is without an id at /job/id: ")
    assert not scripted.asked("GET", "/jobs/")


async def test_cancel_is_seen_without_waiting_for_the_next_poll(scripted: ScriptedCog) -> None:
    scripted.on("GET", "/jobs/7", answer(200, {"state": "running"}), answer(200, {"state": "canceled"}))
    scripted.on("POST", "/cancel/7", answer(200, {}))
    async with started(scripted.url, interval_s=300) as (runner, run):
        await eventually(lambda: scripted.asked("GET", "/jobs/7"), "it was polled once")
        assert await runner.cancel(ID)
        assert [type(event) async for event in run] == [Ended]


async def test_cancel_before_the_run_id_is_known_takes_effect_later(scripted: ScriptedCog) -> None:
    accepting = asyncio.Event()

    async def accept_late(exchange: Exchange) -> None:
        await accepting.wait()
        await answer(200, {"job": {"id": 7}}).act(exchange)

    scripted.on("POST", "/jobs", Script(accept_late))
    scripted.on("POST", "/cancel/7", answer(200, {}))
    scripted.on("GET", "/jobs/7", answer(200, {"state": "canceled"}))
    async with (
        opened(runner_of(scripted.url)) as runner,
        asyncio.timeout(20),
        aclosing(runner.run(request())) as run,
    ):
        assert await anext(run) == Began()
        assert await runner.cancel(ID)
        accepting.set()
        assert the_end([event async for event in run]).outcome is Outcome.CANCELED
    assert len(scripted.asked("POST", "/cancel/7")) == 1


def polled(scripted: ScriptedCog, **given: Any) -> PollingRunner:
    fields = {
        "kind": "polling",
        "path": "/run",
        "poll_endpoint_template": "/run/{id}",
        "interval_s": 0.02,
        "away_s": 0.5,
    }
    config = decode_runner_config(json.dumps(fields | {"health": "", "output": ""} | given))
    assert isinstance(config, PollingConfig)
    return PollingRunner(config, RunnerOptions(url=scripted.url, max_body=MOST_BYTES))


EVENTS = (b": a comment\n\n", frame("heartbeat", b"null"), frame("generating", b'["A"]'), frame("complete", b'["AB"]'))


async def test_event_stream_in_place_of_polls_is_followed_to_its_end() -> None:
    async with scripted_cog() as scripted, opened(polled(scripted)) as runner:
        scripted.on("POST", "/run", answer(200, {"id": "e1"}))
        scripted.on("GET", "/run/e1", stream(*EVENTS, frame("complete", b'["never"]')))
        ended = the_end(await follow(runner, request()))
    assert (ended.outcome, bytes(ended.output or b"")) == (Outcome.SUCCEEDED, b'["AB"]')


@pytest.mark.parametrize(
    ("data", "outcome", "why"),
    [
        (b'{"error": "no booms here"}', Outcome.FAILED, "no booms here"),
        (b'"it went wrong"', Outcome.FAILED, "it went wrong"),
        (b"null", Outcome.FAILED, "without saying why"),
        (b'"404: Not Found"', Outcome.LOST, "not known there any more"),
    ],
)
async def test_event_of_a_failure_has_its_reason(data: bytes, outcome: Outcome, why: str) -> None:
    async with scripted_cog() as scripted, opened(polled(scripted)) as runner:
        scripted.on("POST", "/run", answer(200, {"id": "e1"}))
        scripted.on("GET", "/run/e1", stream(frame("error", data)))
        ended = the_end(await follow(runner, request()))
    assert ended.outcome is outcome
    assert why in (ended.error or "")


async def test_event_stream_that_breaks_off_is_opened_again() -> None:
    async with scripted_cog() as scripted, opened(polled(scripted)) as runner:
        scripted.on("POST", "/run", answer(200, {"id": "e1"}))
        scripted.on("GET", "/run/e1", stream(EVENTS[1], whole=False), stream(*EVENTS))
        ended = the_end(await follow(runner, request()))
    assert ended.outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("whole", [True, False])
async def test_event_stream_longer_than_the_patience_may_end(whole: bool) -> None:
    async def last(exchange: Exchange) -> None:
        await asyncio.sleep(0.3)  # longer than `away_s`

    async with scripted_cog() as scripted, opened(polled(scripted, away_s=0.2)) as runner:
        scripted.on("POST", "/run", answer(200, {"id": "e1"}))
        held = stream(EVENTS[1], then=last, whole=whole)
        scripted.on("GET", "/run/e1", held, held, stream(*EVENTS))
        ended = the_end(await follow(runner, request()))
    assert (ended.outcome, ended.error) == (Outcome.SUCCEEDED, None)


async def test_short_event_streams_with_a_state_are_polls() -> None:
    async with scripted_cog() as scripted, opened(polled(scripted, away_s=0.05)) as runner:
        scripted.on("POST", "/run", answer(200, {"id": "e1"}))
        scripted.on("GET", "/run/e1", *[stream(frame("processing", b"null"))] * 9, stream(*EVENTS))
        ended = the_end(await follow(runner, request()))
    assert (ended.outcome, ended.error) == (Outcome.SUCCEEDED, None)


@pytest.mark.parametrize(
    ("frames", "outcome", "said"),
    [
        ([frame("complete", b"[1]")], Outcome.SUCCEEDED, "[1]"),
        ([frame("error", b"boom")], Outcome.FAILED, "boom"),
        ([frame("heartbeat", b"null")], Outcome.FAILED, "longer than"),
    ],
)
async def test_result_that_is_an_event_stream_ends_by_its_word(
    frames: list[bytes], outcome: Outcome, said: str
) -> None:
    async def silent(exchange: Exchange) -> None:
        await anyio.sleep_forever()

    config = {"result_endpoint_template": "/run/{id}/result", "longest_s": 1}
    async with scripted_cog() as scripted, opened(polled(scripted, **config)) as runner:
        scripted.on("POST", "/run", answer(200, {"id": "e1"}))
        scripted.on("GET", "/run/e1/result", stream(*frames, then=silent))
        scripted.on("GET", "/run/e1", answer(200, {"status": "done"}))
        ended = the_end(await follow(runner, request()))
    assert ended.outcome is outcome
    assert said in (ended.error or bytes(ended.output or b"").decode())


async def test_canceled_prediction_does_not_wait_for_an_event_stream() -> None:
    async def silent(exchange: Exchange) -> None:
        await anyio.sleep_forever()

    async with scripted_cog() as scripted, opened(polled(scripted)) as runner:
        scripted.on("POST", "/run", answer(200, {"id": "e1"}))
        scripted.on("GET", "/run/e1", stream(EVENTS[1], then=silent))
        asked = request()
        async with asyncio.timeout(5), aclosing(runner.run(asked)) as run:
            assert [type(await anext(run)) for _ in range(2)] == [Began, Accepted]
            await eventually(lambda: scripted.asked("GET", "/run/e1"), "it is followed")
            await runner.cancel(asked.id)
            assert the_end([await anext(run)]).outcome is Outcome.CANCELED


async def test_result_is_fetched_from_a_path_of_its_own() -> None:
    paths = {"poll_endpoint_template": "/run/status?task={id}", "result_endpoint_template": "/run/get?task={id}"}
    async with scripted_cog() as scripted, opened(polled(scripted, submit_method="PUT", **paths)) as runner:
        scripted.on("PUT", "/run", answer(200, {"id": "t/1"}))
        scripted.on(
            "GET",
            "/run/status?task=t%2F1",
            answer(200, {"status": "in_progress"}),
            answer(200, {"status": "completed"}),
        )
        scripted.on("GET", "/run/get?task=t%2F1", answer(500, b"not yet"), answer(200, {"out": "ABC"}))
        ended = the_end(await follow(runner, request()))
    assert (ended.outcome, msgspec.json.decode(ended.output or b"")) == (Outcome.SUCCEEDED, {"out": "ABC"})


COMFY = {"preset": "comfyui", "interval_s": 0.02, "kind": "polling"}


@pytest.mark.parametrize(
    ("history", "outcome", "output"),
    [
        (
            {"status": {"status_str": "success"}, "outputs": {"9": {"images": []}}},
            Outcome.SUCCEEDED,
            {"9": {"images": []}},
        ),
        ({"status": {"status_str": "error", "messages": [["execution_error"]]}, "outputs": {}}, Outcome.FAILED, None),
    ],
)
async def test_history_of_comfyui_has_the_id_inside(history: dict[str, Any], outcome: Outcome, output: Any) -> None:
    async with scripted_cog() as scripted:
        config = decode_runner_config(json.dumps(COMFY))
        assert isinstance(config, PollingConfig)
        scripted.on("POST", "/prompt", answer(200, {"prompt_id": "a-1", "number": 1}))
        scripted.on("GET", "/history/a-1", answer(200, {}), answer(200, {"a-1": history}))
        async with opened(PollingRunner(config, RunnerOptions(url=scripted.url))) as runner:
            ended = the_end(await follow(runner, request()))
    assert ended.outcome is outcome
    assert (ended.output and msgspec.json.decode(ended.output)) == output


async def test_cancel_may_have_a_body_with_the_id() -> None:
    async with scripted_cog() as scripted:
        config = decode_runner_config(json.dumps(COMFY))
        assert isinstance(config, PollingConfig)
        scripted.on("POST", "/prompt", answer(200, {"prompt_id": 'a"1'}))
        scripted.on("GET", "/history/a%221", answer(200, {}))
        async with opened(PollingRunner(config, RunnerOptions(url=scripted.url))) as runner:
            ended = the_end(await follow(runner, request()))
            assert (ended.outcome, "cannot be looked for" in (ended.error or "")) == (Outcome.FAILED, True)
        scripted.on("POST", "/prompt", answer(200, {"prompt_id": "a-1"}))
        scripted.on("GET", "/history/a-1", answer(200, {}))
        scripted.on("POST", "/interrupt", answer(200, b""))
        async with opened(PollingRunner(config, RunnerOptions(url=scripted.url))) as runner:
            asked = request()
            async with asyncio.timeout(5), aclosing(runner.run(asked)) as run:
                assert [type(await anext(run)) for _ in range(2)] == [Began, Accepted]
                assert await runner.cancel(asked.id)
        [stopped] = scripted.asked("POST", "/interrupt")
    assert msgspec.json.decode(stopped.body) == {"prompt_id": "a-1"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"result_endpoint_template": "/get"}, "`result_endpoint_template` needs"),
        ({"without_status": "who knows"}, "`without_status` is one of"),
        ({"cancel_endpoint_template": "/stop"}, "`cancel_endpoint_template` needs"),
    ],
)
def test_configuration_of_polls_that_cannot_be_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(WrongRunnerConfig, match=why):
        decode_runner_config(json.dumps({"kind": "polling", "path": "/a", "poll_endpoint_template": "/a/{id}"} | given))
