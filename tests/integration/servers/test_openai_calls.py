"""A call of OpenAI's API reaches its server, and the answer its caller, byte for byte."""

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
import pytest
from msgspec import Raw

from director.core.runner_config import Endpoint, decode_runner_config
from director.servers.runners import RunnerOptions
from director.servers.runners.openai import PATHS, OpenAiRunner
from director.servers.runners.runner import (
    CHUNKS_OF_OUTPUT,
    Began,
    Counted,
    Ended,
    Logged,
    Measured,
    Outcome,
    Produced,
    RunEvent,
    RunRequest,
)
from tests.support.runner_conformance import MOST_BYTES, follow, opened, the_end
from tests.support.scripted_cog import ScriptedCog, answer, scripted_cog, stream

ID: Final = "a" * 26
KEY: Final = "sk-very-secret"
UNKNOWN: Final = "".join(f' ,"field_{n}" : {{"é\\u00e9":[{n}.50, 1E{n}]}}' for n in range(40))
BODY: Final = '{ "model" :"acme/llm","messages":[{"role":"user","content":"H\\u0069 ü"}]%s%s}\n'
DONE: Final = b"data: [DONE]\n\n"
USAGE: Final = (
    b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}'
)
# as servers write them: any order, spaces, escapes and unknown members
CHUNKS: Final = (
    b'{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}',
    b'{"x": [1.0, 1e2] ,"id":"c","choices":[{"index":0,"delta":{"reasoning_content":"Hm"},"logprobs":null}]}',
    b'{"choices": [{"delta": {"content": "\\u00fc\xc3\xbc \\ud83d\\ude00"}, "index": 0, "token_ids": [7]}], "id": "c"}',
    b' {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop","stop_reason":null}]} ',
)


@pytest.fixture
async def scripted() -> AsyncGenerator[ScriptedCog, None]:
    async with scripted_cog() as scripted:
        yield scripted


def runner_of(url: str, **given: Any) -> OpenAiRunner:
    config = decode_runner_config(json.dumps({"kind": "openai", "model": "tiny"} | given))
    return OpenAiRunner(config, RunnerOptions(url=url, max_body=MOST_BYTES, headers={"authorization": KEY}))


def call(body: str, endpoint: Endpoint = "chat") -> RunRequest:
    return RunRequest(id=ID, input=Raw(body.encode()), endpoint=endpoint)


def event(data: bytes) -> bytes:
    return b"data: %b\n\n" % data


async def made(asked: RunRequest, url: str, **given: Any) -> list[RunEvent]:
    async with opened(runner_of(url, **given)) as runner:
        return await follow(runner, asked)


def chunks_of(events: list[RunEvent]) -> list[bytes]:
    shown = [event for event in events if isinstance(event, Produced)]
    assert [event.index for event in shown] == list(range(len(shown)))
    return [bytes(event.item) for event in shown]


def body_at(scripted: ScriptedCog, endpoint: Endpoint = "chat") -> bytes:
    (exchange,) = scripted.asked("POST", f"/v1{PATHS[endpoint]}")
    return exchange.body


def metrics_of(ended: Ended) -> dict[str, Any]:
    return {name: msgspec.json.decode(value) for name, value in ended.metrics.items()}


@pytest.mark.parametrize("endpoint", ["chat", "completions", "embeddings"])
@pytest.mark.parametrize("own", ["chat", "completions", "embeddings"])
async def test_bytes_of_a_call_are_the_same_on_both_sides(
    scripted: ScriptedCog, endpoint: Endpoint, own: Endpoint
) -> None:
    said = {
        "chat": b'{"choices" :[{"message":{"content":"\\u00fc\xc3\xbc"},"x":1.0}],"usage":{"prompt_tokens":9}}',
        "completions": b'{"choices" :[{"index":0,"text":"\\u00fc\xc3\xbc","x":1.0}],"usage":{"prompt_tokens":9}}',
        "embeddings": b'{ "data":[{"embedding":[0.50, 1e2],"index":0}],"usage":{"prompt_tokens":9},"x":1.0}',
    }
    scripted.on("POST", f"/v1{PATHS[endpoint]}", answer(200, said[endpoint], content_type="application/json"))
    body = BODY % (UNKNOWN, "")
    events = await made(call(body, endpoint), scripted.url, endpoint=own)
    assert body_at(scripted, endpoint) == body.replace('"acme/llm"', '"tiny"').encode()
    ended = the_end(events)
    assert (ended.outcome, ended.output) == (Outcome.SUCCEEDED, Raw(said[endpoint]))
    assert (chunks_of(events), metrics_of(ended)) == ([], {"input_tokens": 9})


@pytest.mark.parametrize(
    ("said", "output"),
    [
        (b' {"choices": [{"message": {"content": "a"}}]}\n', None),
        (
            b'{"choices": [{"message": {"content": "a"}, "p": NaN}]}',
            b'{"choices":[{"message":{"content":"a"},"p":null}]}',
        ),
        (b'{"choices": [{"message": {"content": "a"}, "p": 1e999}]}', b""),
    ],
    ids=["spaces", "no number", "beyond"],
)
async def test_answer_is_kept_with_its_spaces_and_legal(
    scripted: ScriptedCog, said: bytes, output: bytes | None
) -> None:
    scripted.on("POST", "/v1/chat/completions", answer(200, said, content_type="application/json"))
    ended = the_end(await made(call(BODY % ("", "")), scripted.url))
    assert bytes(ended.output or b"") == (said if output is None else output)
    assert ended.outcome is (Outcome.FAILED if output == b"" else Outcome.SUCCEEDED)


@pytest.mark.parametrize("asks", [False, True])
async def test_chunks_of_a_stream_are_the_same_on_both_sides(scripted: ScriptedCog, asks: bool) -> None:
    scripted.on("POST", "/v1/chat/completions", stream(b": ping\n\n", *map(event, (*CHUNKS, USAGE)), DONE))
    options = ', "stream_options": {"include_usage": true}' if asks else ""
    body = BODY % (UNKNOWN, ', "stream" : true' + options)
    events = await made(call(body), scripted.url)
    added = "" if asks else ',"stream_options":{"include_usage":true}'
    sent = BODY % (UNKNOWN, ', "stream" : true' + options + added)
    assert body_at(scripted) == sent.replace('"acme/llm"', '"tiny"').encode()
    assert events[0] == Began()
    assert chunks_of(events) == [*CHUNKS, *([USAGE] if asks else [])]
    assert [event.tokens for event in events if isinstance(event, Produced)][:4] == [0, 1, 1, 0]
    ended = the_end(events)
    assert ended.outcome is Outcome.SUCCEEDED
    assert json.loads(bytes(ended.output or b"")) == {
        "id": "c",
        "object": "chat.completion",
        "x": [1.0, 100.0],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "üü 😀", "reasoning_content": "Hm"},
                "logprobs": None,
                "token_ids": [7],
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": json.loads(USAGE)["usage"],
    }
    assert metrics_of(ended).items() >= {"input_tokens": 9, "output_tokens": 2, "cached_tokens": 8}.items()
    assert 0 <= metrics_of(ended)["time_to_first_token"] < 30


async def test_usage_with_each_chunk_is_reported_once(scripted: ScriptedCog) -> None:
    counted = [
        json.dumps({"choices": [{"delta": {"content": "a"}}], "usage": {"prompt_tokens": 9, "completion_tokens": n}})
        for n in range(1, 4)
    ]
    pieces = [event(chunk.encode()) for chunk in counted]
    scripted.on("POST", "/v1/chat/completions", stream(*pieces, event(CHUNKS[3]), event(USAGE), DONE))
    events = await made(call(BODY % ("", ', "stream": true')), scripted.url)
    measured = [(event.name, bytes(event.value)) for event in events if isinstance(event, Measured)]
    assert measured[1:] == [("input_tokens", b"9"), ("output_tokens", b"2"), ("cached_tokens", b"8")]
    scripted.on("POST", "/v1/chat/completions", stream(*pieces))
    ended = the_end(await made(call(BODY % ("", ', "stream": true')), scripted.url))
    assert metrics_of(ended).items() >= {"input_tokens": 9, "output_tokens": 3}.items()


async def test_chunk_of_several_lines_is_one_chunk(scripted: ScriptedCog) -> None:
    scripted.on("POST", "/v1/chat/completions", stream(b'data: {"choices":\ndata: []}\n\n', event(CHUNKS[3]), DONE))
    events = await made(call(BODY % ("", ', "stream": true')), scripted.url)
    assert chunks_of(events) == [b'{"choices":\n[]}', CHUNKS[3]]


async def test_server_without_stream_options_gets_none(scripted: ScriptedCog) -> None:
    scripted.on("POST", "/v1/chat/completions", stream(*map(event, CHUNKS), DONE))
    body = BODY % ("", ', "stream": true')
    events = await made(call(body), scripted.url, include_usage=False)
    assert body_at(scripted) == body.replace('"acme/llm"', '"tiny"').encode()
    assert chunks_of(events) == list(CHUNKS)


@pytest.mark.parametrize(
    ("status", "body", "outcome", "output"),
    [
        (400, b'{"error" : {"message": "too long", "type": "t", "param": "n", "code": 400}}', Outcome.INVALID, None),
        (422, b'{"detail": [{"loc": ["body", "n"], "msg": "too long"}]}', Outcome.INVALID, None),
        (404, b'{"error": {"message": "too long", "code": 404}}', Outcome.INVALID, None),
        (501, b'{"error": {"message": "too long"}}', Outcome.INVALID, None),
        (400, b"too long", Outcome.INVALID, b""),
        (400, b'["too long"]', Outcome.INVALID, b""),
        (400, b'{"error": "too long %s"}' % KEY.encode(), Outcome.INVALID, b'{"error": "too long ***"}'),
        (500, b'{"error": {"message": "too long"}}', Outcome.FAILED, None),
        (429, b'{"error": {"message": "too long"}}', Outcome.REFUSED, None),
    ],
)
async def test_refusal_has_the_words_and_the_status_of_the_server(
    scripted: ScriptedCog, status: int, body: bytes, outcome: Outcome, output: bytes | None
) -> None:
    scripted.on("POST", "/v1/chat/completions", answer(status, body))
    (ended,) = [each for each in await made(call(BODY % ("", "")), scripted.url) if isinstance(each, Ended)]
    assert (ended.outcome, metrics_of(ended)) == (outcome, {"http_status": status})
    assert "too long" in (ended.error or "")
    expected = body if output is None else output
    shown = bytes(ended.output or b"")
    assert shown == expected


async def test_packed_refusal_shows_no_secret(scripted: ScriptedCog) -> None:
    packed = gzip.compress(b'{"error": {"message": "no: %s"}}' % KEY.encode())
    scripted.on("POST", "/v1/chat/completions", answer(400, packed, content_encoding="gzip"))
    ended = the_end(await made(call(BODY % ("", "")), scripted.url))
    assert (ended.outcome, ended.output) == (Outcome.INVALID, Raw(b'{"error": {"message": "no: ***"}}'))
    assert KEY not in (ended.error or "")


async def test_refused_input_of_replicates_form_has_no_output(scripted: ScriptedCog) -> None:
    scripted.on("POST", "/v1/chat/completions", answer(400, b'{"error": {"message": "too long"}}'))
    ended = the_end(await made(RunRequest(id=ID, input=Raw(b'{"prompt": "a"}')), scripted.url))
    assert (ended.outcome, ended.output, ended.metrics) == (Outcome.INVALID, None, {})


@pytest.mark.parametrize("body", ["[1]", '{"a"', "5"])
async def test_body_that_is_no_object_is_never_sent(scripted: ScriptedCog, body: str) -> None:
    ended = the_end(await made(call(body), scripted.url))
    assert (ended.outcome, ended.error) == (Outcome.INVALID, "Its body is no JSON object")
    assert not scripted.asked("POST", "/v1")


async def test_canceled_call_has_the_answer_so_far(scripted: ScriptedCog) -> None:
    async def wait(exchange: Any) -> None:
        await exchange.gone.wait()

    scripted.on("POST", "/v1/chat/completions", stream(*map(event, CHUNKS[:3]), then=wait))
    asked, events = call(BODY % ("", ', "stream": true')), list[RunEvent]()
    async with opened(runner_of(scripted.url)) as runner:
        shown = asyncio.Event()

        def hear(event: RunEvent) -> None:
            events.append(event)
            if len(chunks_of(events)) == 3:
                shown.set()

        assert isinstance(runner, OpenAiRunner)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(runner.hear(asked, hear))
            await shown.wait()
            await runner.cancel(ID)
    ended = the_end(events)
    assert ended.outcome is Outcome.CANCELED
    [choice] = json.loads(bytes(ended.output or b""))["choices"]
    assert choice["message"] == {"role": "assistant", "content": "üü 😀", "reasoning_content": "Hm"}
    assert "finish_reason" not in choice, "it is not invented"
    assert sum(event.tokens for event in events if isinstance(event, Produced)) == 2


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (event(b'{"error": {"message": "it broke", "code": 500}}'), Outcome.FAILED),
        (event(b'{"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}'), Outcome.FAILED),
        (b"", Outcome.FAILED),
    ],
)
async def test_stream_that_breaks_off_keeps_its_chunks_and_fails(
    scripted: ScriptedCog, end: bytes, outcome: Outcome
) -> None:
    scripted.on("POST", "/v1/chat/completions", stream(*map(event, CHUNKS[:3]), end))
    events = await made(call(BODY % ("", ', "stream": true')), scripted.url)
    ended = the_end(events)
    assert (ended.outcome, chunks_of(events)) == (outcome, list(CHUNKS[:3]))
    assert json.loads(bytes(ended.output or b""))["choices"][0]["message"]["content"] == "üü 😀"


async def test_server_that_ignores_stream_gives_the_answer_without_chunks(scripted: ScriptedCog) -> None:
    said = b'{"object":"chat.completion","choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}'
    scripted.on("POST", "/v1/chat/completions", answer(200, said, content_type="application/json"))
    events = await made(call(BODY % ("", ', "stream": true')), scripted.url)
    assert (the_end(events).output, chunks_of(events)) == (Raw(said), [])


async def test_server_that_streams_unasked_gives_the_whole_answer(scripted: ScriptedCog) -> None:
    scripted.on("POST", "/v1/chat/completions", stream(*map(event, (*CHUNKS, USAGE)), DONE))
    events = await made(call(BODY % ("", "")), scripted.url)
    assert chunks_of(events) == []
    assert sum(event.tokens for event in events if isinstance(event, Counted)) == 2
    assert json.loads(bytes(the_end(events).output or b""))["choices"][0]["message"]["content"] == "üü 😀"


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"choices": []}', b"[]", b""])
async def test_answer_that_is_no_completion_fails_the_call(
    scripted: ScriptedCog, body: bytes, is_streamed: bool
) -> None:
    scripted.on("POST", "/v1/chat/completions", answer(200, body, content_type="application/json"))
    events = await made(call(BODY % ("", ', "stream": true' if is_streamed else "")), scripted.url)
    assert (the_end(events).outcome, chunks_of(events)) == (Outcome.FAILED, [])


async def test_stream_without_end_fails_as_too_large(scripted: ScriptedCog) -> None:
    chunk = event(b'{"choices":[{"index":0,"delta":{"content":"%b"}}]}' % (b"x" * 10_000))
    scripted.on("POST", "/v1/chat/completions", stream(*[chunk] * (CHUNKS_OF_OUTPUT * MOST_BYTES // 10_000 + 1)))
    events = await made(call(BODY % ("", ', "stream": true')), scripted.url)
    assert (the_end(events).outcome, the_end(events).code) == (Outcome.FAILED, "output_too_large")
    assert len(b"".join(chunks_of(events))) <= CHUNKS_OF_OUTPUT * MOST_BYTES


async def test_answer_beyond_the_limit_fails_as_too_large(scripted: ScriptedCog) -> None:
    said = b'{"choices":[{"index":0,"message":{"content":"%b"}}]}' % (b"x" * MOST_BYTES)
    scripted.on("POST", "/v1/chat/completions", answer(200, said))
    ended = the_end(await made(call(BODY % ("", "")), scripted.url))
    assert (ended.outcome, ended.code) == (Outcome.FAILED, "output_too_large")


# Inputs in the form of Replicate's API lose nothing either


def chat_chunk(delta: dict[str, Any], **more: Any) -> bytes:
    return event(json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None, **more}]}).encode())


STOP: Final = chat_chunk({}, finish_reason="stop")


def asked(**given: Any) -> RunRequest:
    return RunRequest(id=ID, input=Raw(json.dumps({"prompt": "a", **given}).encode()))


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_comes_as_logs_and_is_counted(scripted: ScriptedCog, name: str) -> None:
    pieces = [chat_chunk({name: "Let "}), chat_chunk({name: "me"}), chat_chunk({"content": "Hi"}), STOP, DONE]
    scripted.on("POST", "/v1/chat/completions", stream(*pieces))
    events = await made(asked(), scripted.url)
    said = [event for event in events if isinstance(event, Logged | Counted | Produced)]
    assert said == [Logged("Let "), Counted(1), Logged("me"), Counted(1), Produced(Raw(b'"Hi"'), 0, 1)]
    ended = the_end(events)
    assert (ended.output, ended.logs) == (Raw(b'["Hi"]'), "Let me")


async def test_logprobs_that_were_asked_for_make_the_answer_one_object(scripted: ScriptedCog) -> None:
    logprobs = {"content": [{"token": "Hi", "logprob": -0.5}]}
    pieces = [chat_chunk({"content": "Hi"}, logprobs=logprobs), chat_chunk({"content": "!"}, logprobs=logprobs), STOP]
    scripted.on("POST", "/v1/chat/completions", stream(*pieces, DONE))
    passed = {"pass": ["logprobs"]}
    with_them = the_end(await made(asked(logprobs=True), scripted.url, **passed))
    [choice] = json.loads(bytes(with_them.output or b""))["choices"]
    assert (choice["message"]["content"], choice["logprobs"]) == ("Hi!", {"content": logprobs["content"] * 2})
    for given in ({}, {"logprobs": False}):
        assert the_end(await made(asked(**given), scripted.url, **passed)).output == Raw(b'["Hi","!"]')


@pytest.mark.parametrize(
    ("given", "output"),
    [
        ({"input": "a"}, b"[0.5, 1]"),
        ({"input": ["a"]}, b"[[0.5, 1]]"),
        ({"input": ["a", "b"], "dimensions": 2, "top_k": 5}, b"[[0.5, 1],[7]]"),
    ],
)
async def test_embeddings_are_the_vectors_of_the_inputs(
    scripted: ScriptedCog, given: dict[str, Any], output: bytes
) -> None:
    vectors = [{"index": 1, "embedding": [7]}, {"index": 0, "embedding": [0.5, 1]}]
    found = vectors if output.count(b"[") == 3 else vectors[1:]
    said = {"object": "list", "data": found, "usage": {"prompt_tokens": 5, "total_tokens": 5}}
    scripted.on("POST", "/v1/embeddings", answer(200, said, content_type="application/json"))
    events = await made(RunRequest(id=ID, input=Raw(json.dumps(given).encode())), scripted.url, endpoint="embeddings")
    assert json.loads(body_at(scripted, "embeddings")) == {
        "model": "tiny",
        **{name: value for name, value in given.items() if name != "top_k"},
    }
    ended = the_end(events)
    assert (ended.outcome, ended.output) == (Outcome.SUCCEEDED, Raw(output))
    assert metrics_of(ended) == {"input_tokens": 5}


async def test_input_without_a_text_to_embed_is_never_sent(scripted: ScriptedCog) -> None:
    ended = the_end(await made(asked(), scripted.url, endpoint="embeddings"))
    assert (ended.outcome, ended.error) == (Outcome.INVALID, "It needs an input")
    assert not scripted.asked("POST", "/v1")


@pytest.mark.parametrize("endpoint", ["chat", "embeddings"])
async def test_stream_that_was_not_asked_for_is_bounded(scripted: ScriptedCog, endpoint: Endpoint) -> None:
    chunk = event(b'{"choices":[{"index":0,"delta":{"content":"%b"}}]}' % (b"a" * 10_000))
    scripted.on("POST", f"/v1{PATHS[endpoint]}", stream(*[chunk] * (CHUNKS_OF_OUTPUT * MOST_BYTES // 10_000 + 1)))
    ended = the_end(await made(call(BODY % ("", ""), endpoint), scripted.url))
    assert (ended.outcome, ended.code) == (Outcome.FAILED, "output_too_large")


@pytest.mark.parametrize("is_whole", [False, True])
async def test_stream_without_done_needs_each_text_to_finish(scripted: ScriptedCog, is_whole: bool) -> None:
    said = [
        b'{"choices":[{"index":0,"delta":{"content":"a"}},{"index":1,"delta":{"content":"half of th"}}]}',
        b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
        b'{"choices":[{"index":1,"delta":{"content":"at"},"finish_reason":"stop"}]}',
    ]
    scripted.on("POST", "/v1/chat/completions", stream(*map(event, said if is_whole else said[:2])))
    ended = the_end(await made(call(BODY % (',"n":2', ',"stream":true')), scripted.url))
    assert ended.outcome is (Outcome.SUCCEEDED if is_whole else Outcome.FAILED)
