"""Test what a call's end is to its caller, and an answer as chunks, without a server."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from api.openai.chunks import Chunks, Cut, EndedEarly
from api.openai.ends import STATUSES, as_chunks, error_event, event, failure, failure_of
from director.core.ids import PredictionId, QueueName
from director.core.schema import Event, Record, Stored
from director.core.states import END_CODES, Status

CHUNK = b'{"choices":[]}'
ANSWER = (
    b'{"id":"c","object":"chat.completion","created":1,"n":1.50,"choices":'
    b'[{"index":0,"finish_reason":"stop","logprobs":null,"message":{"role":"assistant","content":"hi"}}],'
    b'"usage":{"total_tokens":7}}'
)


def stored(status: Status = Status.FAILED, *, output: bytes = b"", given: bytes = b"{}", **facts: Any) -> Stored:
    record = Record(
        id=PredictionId("a" * 26),
        account="a",
        model="a/b",
        version="c",
        queue=QueueName("a/b:c"),
        created=1,
        status=status,
        **facts,
    )
    return Stored(record=record, input=Raw(given), output=Raw(output) if output else None)


async def say_nothing() -> tuple[bytes, float]:
    return b"", 1.0


def chunks_of(*, restarts: bool = False, is_open: bool = True) -> Chunks:
    chunks = Chunks(restarts=restarts, write_comment=say_nothing)
    chunks.is_open = is_open
    return chunks


def log(*kinds: str) -> list[Event]:
    events = [(kind, b"") if kind in ("created", "started", "completed") else (kind, CHUNK) for kind in kinds]
    return [Event(seq, kind, 0, data) for seq, (kind, data) in enumerate(events, start=1)]


def test_every_code_of_an_end_has_an_error_that_clients_understand() -> None:
    for code in END_CODES:
        failed = failure_of(stored(code=code, error="why"))
        assert 400 <= failed.status < 600
        assert json.loads(failed.body)["error"]["code"] == code
        assert ("x-should-retry" in failed.headers) is (code != "start_by_exceeded")
    assert set(STATUSES) - {"canceled"} <= set(END_CODES)


def test_call_that_never_began_says_when_to_come_again() -> None:
    failed = failure_of(stored(code="start_by_exceeded", error="late", eta50=12_400))
    assert (failed.status, failed.headers) == (503, {"Retry-After": "12", "retry-after-ms": "12000"})


@pytest.mark.parametrize(
    ("metrics", "output"),
    [
        (b'{"http_status":200}', b"{}"),
        (b'{"http_status":"x"}', b"{}"),
        (b'{"http_status":[400]}', b"{}"),
        (b'{"http_status":400}', b"[]"),
        (b'{"http_status":400}', b""),
        (b"{}", b"{}"),
    ],
)
def test_other_outputs_are_no_words_of_a_refusing_server(metrics: bytes, output: bytes) -> None:
    failed = failure_of(stored(code="invalid_input", error="no", output=output, metrics=metrics.decode()))
    assert (failed.status, json.loads(failed.body)["error"]["message"]) == (400, "no")


def test_event_of_a_refusal_has_the_member_error() -> None:
    for body, shown in ((b'{"error":{"a":1}}', b'{"error":{"a":1}}'), (b'{"a":1}', b'{"error":{"a":1}}')):
        failed = failure_of(stored(code="invalid_input", error="no", output=body, metrics='{"http_status":422}'))
        assert (failed.status, failed.body) == (422, body)
        assert error_event(failed) == b"data: %b\n\n" % shown


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner)), st.sampled_from([None, 2]))
def test_event_holds_the_same_json(value: Any, indent: int | None) -> None:
    data = json.dumps(value, indent=indent).encode()
    lines = event(data).decode().removesuffix("\n\n").split("\n")
    assert all(line.startswith("data: ") for line in lines)
    assert json.loads("\n".join(line.removeprefix("data: ") for line in lines)) == value


def test_answer_becomes_a_chunk_with_all_its_members() -> None:
    [chunk] = as_chunks(ANSWER, with_usage=False)
    assert b'"n":1.50' in chunk
    shown = json.loads(chunk)
    assert (shown["object"], shown["id"]) == ("chat.completion.chunk", "c")
    assert shown["choices"] == [
        {"index": 0, "finish_reason": "stop", "logprobs": None, "delta": {"role": "assistant", "content": "hi"}}
    ]
    first, usage = map(json.loads, as_chunks(ANSWER, with_usage=True))
    assert first == shown
    assert (usage["choices"], usage["usage"]) == ([], {"total_tokens": 7})


def test_answer_of_completions_stays_as_it_is() -> None:
    answer = b'{"object":"text_completion","choices":[{"text":"hi","index":0}]}'
    assert as_chunks(answer, with_usage=True) == [answer]


def test_answer_without_chunks_is_assembled_and_only_success_is_done() -> None:
    chunks = chunks_of()
    assert chunks.events(log("created", "started", "completed")) == b""
    wants = b'{"stream_options":{"include_usage":true}}'
    sent = chunks.end(stored(Status.SUCCEEDED, output=ANSWER, given=wants))
    assert sent == b"".join(map(event, [*as_chunks(ANSWER, with_usage=True), b"[DONE]"]))
    for status in (Status.FAILED, Status.CANCELED, Status.ABORTED):
        assert b"[DONE]" not in chunks_of().end(stored(status, output=ANSWER))


def test_failure_before_the_head_is_no_event() -> None:
    with pytest.raises(EndedEarly) as early:
        chunks_of(is_open=False).end(stored(Status.CANCELED))
    assert (early.value.failure.status, early.value.failure.code) == (409, "canceled")


def test_chunks_removed_before_they_were_read_are_an_error() -> None:
    chunks = chunks_of()
    assert chunks.events(log("created", "started", "output")) == event(CHUNK)
    assert chunks.events([]) == b""
    ended = chunks.end(stored(Status.SUCCEEDED, output=ANSWER))
    assert b"data_removed" in ended
    assert b"[DONE]" not in ended


def test_second_text_never_follows_a_first_one() -> None:
    chunks = chunks_of()
    chunks.events(log("created", "started", "output"))
    after = log("created", "started", "output", "output", "retried", "output")
    with pytest.raises(Cut) as cut:
        chunks.events(after[3:])
    assert (cut.value.rest, cut.value.failure.code) == (event(CHUNK), "server_lost")


def test_text_that_was_not_sent_may_be_followed_by_another() -> None:
    chunks = chunks_of()
    events = log("created", "started", "output", "retried", "started", "output", "completed")
    assert chunks.events(events) == event(CHUNK)
    assert chunks.end(stored(Status.SUCCEEDED)) == b"data: [DONE]\n\n"


def test_log_that_lost_events_is_a_restart() -> None:
    chunks = chunks_of(restarts=True)
    events = log("created", "started", "output", "output")
    chunks.events(events)
    assert chunks.events(events[:3]) == b": retried\n\n" + event(CHUNK)
    strict = chunks_of()
    strict.events(events)
    with pytest.raises(Cut):
        strict.events(events[:3])


def test_failure_names_its_code_and_type() -> None:
    shown = msgspec.json.decode(failure("timed_out", "Too long.").body)
    assert shown == {"error": {"message": "Too long.", "type": "server_error", "param": None, "code": "timed_out"}}


@pytest.mark.parametrize(
    "answer",
    [
        b'{"choices":[{"index":0,"message":null}]}',
        b'{"choices":null}',
        b'{"choices":[1]}',
        b'{"choices":[{"message":"text"}]}',
        b'{"choices":{"a":1}}',
        b'{"odd":true}',
    ],
)
def test_answer_of_another_shape_stays_as_it_is(answer: bytes) -> None:
    [chunk] = as_chunks(answer, with_usage=True)
    assert json.loads(chunk) == json.loads(answer)


def test_tool_call_of_another_shape_stays_as_it_is() -> None:
    [chunk] = as_chunks(b'{"choices":[{"message":{"tool_calls":[1,{"id":"t"}]}}]}', with_usage=False)
    [choice] = json.loads(chunk)["choices"]
    assert choice["delta"]["tool_calls"] == [1, {"index": 1, "id": "t"}]


def test_half_of_a_surrogate_pair_passes_in_an_error() -> None:
    body = b'{"error":{"message":"\\ud800"}}'
    failed = failure_of(stored(output=body, metrics=Raw(b'{"http_status":400}')))
    assert error_event(failed) == b"data: %b\n\n" % body


def test_usage_is_known_beside_half_of_a_surrogate_pair() -> None:
    given = b'{"messages":["\\ud800"],"stream_options":{"include_usage":true}}'
    assert b'"usage":{"total_tokens":7}' in chunks_of().end(stored(Status.SUCCEEDED, output=ANSWER, given=given))


@pytest.mark.parametrize("answer", [b'["He","llo"]', b'"text"'])
def test_stored_answer_of_another_kind_is_a_failure(answer: bytes) -> None:
    """A director of an older release ran the call."""
    with pytest.raises(EndedEarly) as early:
        chunks_of(is_open=False).end(stored(Status.SUCCEEDED, output=answer))
    assert early.value.failure.status == 500


@pytest.mark.parametrize("item", [b'"text"', b"[1]", b"1"])
def test_output_that_is_no_chunk_cuts_the_stream(item: bytes) -> None:
    with pytest.raises(Cut) as cut:
        chunks_of().events([Event(1, "output", 0, b"{}"), Event(2, "output", 0, item)])
    assert (cut.value.rest, cut.value.failure.status) == (b"data: {}\n\n", 500)
