"""Test the promises of the runner for OpenAI's API that go beyond those of every runner."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from api.predictions.validation import can_stream
from director.core.nesting import MOST_LEVELS
from director.core.runner_config import decode_runner_config
from director.servers.runners import RunnerOptions
from director.servers.runners.openai import OpenAiRunner
from director.servers.runners.runner import Began, Ended, HealthStatus, Measured, Outcome, Produced, RunRequest
from tests.support.model_server import ModelServer
from tests.support.runner_conformance import MOST_BYTES, follow, opened, the_end
from tests.support.scripted_cog import ScriptedCog, answer, scripted_cog, stream

ID = "a" * 26
CHAT = "/v1/chat/completions"


@pytest.fixture
async def scripted() -> AsyncGenerator[ScriptedCog, None]:
    async with scripted_cog() as scripted:
        scripted.on("GET", "/v1/models", answer(200, {"data": [{"id": "tiny"}, {"id": "other"}]}))
        yield scripted


def runner_of(url: str, **given: Any) -> OpenAiRunner:
    config = decode_runner_config(json.dumps({"kind": "openai"} | given))
    return OpenAiRunner(config, RunnerOptions(url=url, max_body=MOST_BYTES))


async def end_of(asked: RunRequest, url: str, **given: Any) -> Ended:
    async with opened(runner_of(url, **given)) as runner:
        return the_end(await follow(runner, asked))


def request(*, wants_progress: bool = True, **given: object) -> RunRequest:
    return RunRequest(id=ID, input=Raw(msgspec.json.encode(given)), wants_progress=wants_progress)


def piece(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


async def test_each_piece_is_an_output_and_the_numbers_are_metrics(server: ModelServer) -> None:
    async with opened(runner_of(server.url)) as runner:
        events = await follow(runner, request(prompt=json.dumps({"n": 3, "text": "ü "})))
    assert events[0] == Began()
    assert [event.item for event in events if isinstance(event, Produced)] == [
        Raw(f'"ü {n}"'.encode()) for n in range(3)
    ]
    measured = {event.name: msgspec.json.decode(event.value) for event in events if isinstance(event, Measured)}
    assert (measured["input_tokens"], measured["output_tokens"]) == (5, 3)
    assert 0 <= measured["time_to_first_token"] < 30
    ended = the_end(events)
    assert ended.output == Raw('["ü 0","ü 1","ü 2"]'.encode())
    assert {name: msgspec.json.decode(value) for name, value in ended.metrics.items()} == measured


async def test_run_without_progress_returns_everything_at_the_end(server: ModelServer) -> None:
    async with opened(runner_of(server.url)) as runner:
        began, ended = await follow(runner, request(wants_progress=False, prompt=json.dumps({"n": 2})))
    assert began == Began()
    assert the_end([ended]).output == Raw(b'["a0","a1"]')
    assert set(the_end([ended]).metrics) == {"time_to_first_token", "input_tokens", "output_tokens"}


async def test_prompt_gets_completions(server: ModelServer) -> None:
    ended = await end_of(request(prompt=json.dumps({"n": 2}), max_tokens=5), server.url, endpoint="completions")
    assert (ended.outcome, ended.output) == (Outcome.SUCCEEDED, Raw(b'["a0","a1"]'))


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ({"prompt": "Hi"}, [{"role": "user", "content": "Hi"}]),
        (
            {"prompt": "Hi", "system_prompt": "Be kind"},
            [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hi"}],
        ),
        ({"messages": [{"role": "user", "content": "Ho"}], "prompt": None}, [{"role": "user", "content": "Ho"}]),
    ],
    ids=["prompt", "system", "messages"],
)
async def test_request_to_the_server_has_the_expected_fields(
    scripted: ScriptedCog, given: dict[str, Any], messages: list[Any]
) -> None:
    scripted.on("POST", CHAT, stream(piece("ok", "stop"), DONE))
    assert (await end_of(request(**given, temperature=0.5), scripted.url)).outcome is Outcome.SUCCEEDED
    (exchange,) = scripted.asked("POST", CHAT)
    assert json.loads(exchange.body) == {
        "model": "tiny",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "messages": messages,
    }
    assert exchange.headers["x-source"] == "director"


@pytest.mark.parametrize(
    ("passed", "given", "sent"),
    [
        ([], {"top_k": 5, "stream": False, "model": "another", "max_tokens": None}, {}),
        (["top_k", "tools"], {"top_k": 5, "min_p": 0.1, "tools": [{"a": 1}]}, {"top_k": 5, "tools": [{"a": 1}]}),
        ([], {"max_new_tokens": 7, "max_length": 9}, {"max_tokens": 7}),
        ([], {"max_length": 9}, {"max_tokens": 9}),
        ([], {"max_tokens": 5, "max_length": 9}, {"max_tokens": 5}),
        (["max_length"], {"max_length": 9}, {"max_length": 9}),
        ([], {"stop_sequences": ["a", "b"]}, {"stop": ["a", "b"]}),
        ([], {"stop_sequences": "<end>,<stop>"}, {"stop": ["<end>", "<stop>"]}),
        ([], {"stop_sequences": ","}, {"stop": ","}),
        ([], {"stop_sequences": ""}, {}),
        ([], {"stop": "x", "stop_sequences": "y"}, {"stop": "x"}),
    ],
)
async def test_inputs_that_the_api_lacks_are_left_out_unless_they_are_to_pass(
    scripted: ScriptedCog, passed: list[str], given: dict[str, Any], sent: dict[str, Any]
) -> None:
    scripted.on("POST", CHAT, stream(piece("ok", "stop"), DONE))
    ended = await end_of(request(prompt="a", **given), scripted.url, **{"pass": passed})
    assert ended.outcome is Outcome.SUCCEEDED
    (exchange,) = scripted.asked("POST", CHAT)
    always = {"model": "tiny", "stream": True, "stream_options": {"include_usage": True}}
    assert json.loads(exchange.body) == {**always, "messages": [{"role": "user", "content": "a"}], **sent}


@pytest.mark.parametrize(
    ("endpoint", "choice"),
    [("chat", {"message": {"role": "assistant", "content": "Hi"}}), ("completions", {"text": "Hi"})],
)
async def test_answer_of_a_server_that_ignores_stream_is_taken(
    scripted: ScriptedCog, endpoint: str, choice: dict[str, Any]
) -> None:
    whole = {"choices": [{"index": 0, "finish_reason": "stop", **choice}], "usage": {"prompt_tokens": 5}}
    path = CHAT if endpoint == "chat" else "/v1/completions"
    scripted.on("POST", path, answer(200, whole, content_type="application/json"))
    ended = await end_of(request(prompt="a"), scripted.url, endpoint=endpoint)
    assert (ended.outcome, ended.output) == (Outcome.SUCCEEDED, Raw(b'["Hi"]'))
    assert ended.metrics["input_tokens"] == Raw(b"5")


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"choices": []}'])
async def test_answer_that_is_no_completion_fails_with_the_reason(scripted: ScriptedCog, body: bytes) -> None:
    scripted.on("POST", CHAT, answer(200, body, content_type="application/json"))
    ended = await end_of(request(prompt="a"), scripted.url)
    assert ended.outcome is Outcome.FAILED
    assert "ignores `stream`" in (ended.error or "")


async def test_inputs_that_pass_are_in_the_schema(scripted: ScriptedCog) -> None:
    async with opened(runner_of(scripted.url, **{"pass": ["top_k"]})) as runner:
        document = msgspec.json.decode(await runner.openapi_schema() or b"")
    assert "top_k" in document["components"]["schemas"]["Input"]["properties"]


@pytest.mark.parametrize("name", ["model", "stream", "stream_options"])
def test_what_the_runner_sets_cannot_pass(name: str) -> None:
    with pytest.raises(ValueError, match="which the runner sets itself"):
        runner_of("http://127.0.0.1:1", **{"pass": [name]})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "It needs a prompt, or messages"),
        ({"top_k": 5}, "It needs a prompt, or messages"),
    ],
    ids=["nothing", "unknown"],
)
async def test_invalid_request_is_never_sent(scripted: ScriptedCog, given: dict[str, Any], why: str) -> None:
    async with opened(runner_of(scripted.url)) as runner:
        (ended,) = await follow(runner, request(**given))
    assert (the_end([ended]).outcome, the_end([ended]).error) == (Outcome.INVALID, why)
    assert not scripted.asked("POST", "/v1")


@pytest.mark.parametrize(
    ("chunks", "outcome", "output"),
    [
        ([piece("a"), piece("", "length"), DONE], Outcome.SUCCEEDED, b'["a"]'),
        ([piece("a", "stop")], Outcome.SUCCEEDED, b'["a"]'),
        ([piece("", "stop"), DONE], Outcome.SUCCEEDED, b"[]"),
        ([piece("a")], Outcome.FAILED, b'["a"]'),
        ([piece("a"), DONE], Outcome.SUCCEEDED, b'["a"]'),
        ([piece("a"), b'data: {"error": {"message": "it broke", "code": 500}}\n\n'], Outcome.FAILED, b'["a"]'),
        ([piece("a"), b'data: {"error": {"message": "it broke", "code": 503}}\n\n'], Outcome.LOST, b'["a"]'),
        ([piece("a"), b'data: {"error": "it broke"}\n\n'], Outcome.FAILED, b'["a"]'),
        ([b"data: {]\n\n"], Outcome.FAILED, None),
        ([b": comment\n\n", piece("a", "stop"), DONE], Outcome.SUCCEEDED, b'["a"]'),
    ],
    ids=["length", "not done", "nothing", "cut", "no reason", "error", "overload", "text", "garbage", "comment"],
)
async def test_only_a_finished_stream_is_a_success(
    scripted: ScriptedCog, chunks: list[bytes], outcome: Outcome, output: bytes | None
) -> None:
    scripted.on("POST", CHAT, stream(*chunks))
    ended = await end_of(request(prompt="a"), scripted.url)
    assert (ended.outcome, ended.output) == (outcome, None if output is None else Raw(output))


async def test_no_nesting_of_an_answer_loses_its_run(scripted: ScriptedCog) -> None:
    ends = set()
    async with opened(runner_of(scripted.url)) as runner:
        for depth in (*range(MOST_LEVELS - 10, MOST_LEVELS + 5), *range(850, 1010, 20)):
            nested = b'{"a":' * depth + b"1" + b"}" * depth
            said = b'data: {"choices": [{"delta": {"function_call": %b}}]}\n\n' % nested
            scripted.on("POST", CHAT, stream(said, piece("", "stop"), DONE))
            ends.add(the_end(await follow(runner, request(prompt="a"))).outcome)
    assert ends == {Outcome.SUCCEEDED, Outcome.FAILED}


async def test_endless_stream_is_not_kept(scripted: ScriptedCog) -> None:
    scripted.on("POST", CHAT, stream(*[piece("x" * 10_000)] * 50))
    ended = await end_of(request(prompt="a"), scripted.url)
    assert (ended.outcome, ended.error) == (Outcome.FAILED, f"The model's output is larger than {MOST_BYTES} bytes")


async def test_cancel_closes_the_connection(scripted: ScriptedCog) -> None:
    async def wait(exchange: Any) -> None:
        await exchange.gone.wait()

    scripted.on("POST", CHAT, stream(piece("a"), then=wait))
    async with opened(runner_of(scripted.url)) as runner, aclosing(runner.run(request(prompt="a"))) as run:
        assert await anext(run) == Began()
        assert await runner.cancel(ID)
        assert the_end([event async for event in run]).outcome is Outcome.CANCELED
        (exchange,) = scripted.asked("POST", CHAT)
        await exchange.gone.wait()


async def test_list_of_models_replaces_a_missing_health_route(scripted: ScriptedCog) -> None:
    scripted.on("GET", "/health", answer(404, b"{}"))
    async with opened(runner_of(scripted.url)) as runner:
        assert (await runner.health()).status is HealthStatus.READY
        scripted.on("GET", "/v1/models", answer(503, b"{}"))
        assert (await runner.health()).status is HealthStatus.STARTING


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_schema_says_that_it_streams(server: ModelServer, endpoint: str) -> None:
    async with opened(runner_of(server.url, endpoint=endpoint)) as runner:
        schema = await runner.openapi_schema()
    document = msgspec.json.decode(schema)
    assert can_stream(document)
    schemas = document["components"]["schemas"]
    assert schemas["Output"]["x-cog-array-display"] == "concatenate"
    assert ("messages" in schemas["Input"]["properties"]) is (endpoint == "chat")
