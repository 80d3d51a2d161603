"""The pieces of a stream add up to the answer that the server would have given at once."""

import json
from collections.abc import Sequence
from copy import deepcopy
from functools import reduce
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from director.servers.runners.answers import Unreadable
from director.servers.runners.openai_answers import (
    Assembly,
    Pile,
    counts_in,
    legible,
    merge,
    read_piece,
)

TEXT: Final = st.text(st.characters(codec="utf-8"), max_size=8)


def js(value: Any) -> bytes:
    return json.dumps(value).encode()


def cut(draw: st.DrawFn, text: str) -> list[str]:
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def answers(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a whole answer, and chunks that a server may send in its place."""
    head = {"id": "c1", "created": 7, "model": "tiny", "system_fingerprint": draw(st.none() | st.just("f"))}
    chunks, choices = [], []
    for index in range(draw(st.integers(1, 3))):
        message: dict[str, Any] = {"role": "assistant"}
        deltas: list[dict[str, Any]] = [{"role": "assistant"}]
        for name in ("reasoning_content", "content", "refusal"):
            if text := draw(TEXT):
                message[name] = text
                deltas += [{name: part} for part in cut(draw, text)]
        calls = [
            {"id": f"call{n}", "type": "function", "function": {"name": f"f{n}", "arguments": draw(TEXT)}}
            for n in range(draw(st.integers(0, 2)))
        ]
        for n, call in enumerate(calls):
            first, *parts = cut(draw, call["function"]["arguments"])
            deltas.append({"tool_calls": [{"index": n, **call, "function": {**call["function"], "arguments": first}}]})
            deltas += [{"tool_calls": [{"index": n, "function": {"arguments": part}}]} for part in parts]
        if calls:
            message["tool_calls"] = calls
        logprobs = [{"token": f"t{n}", "logprob": -n / 2, "top_logprobs": []} for n in range(len(deltas))]
        for delta, logprob in zip(deltas, logprobs, strict=True):
            choice = {"index": index, "delta": delta, "logprobs": {"content": [logprob]}, "finish_reason": None}
            chunks.append({**head, "object": "chat.completion.chunk", "choices": [choice], "usage": None})
        end = {"index": index, "delta": {}, "logprobs": None, "finish_reason": "stop"}
        chunks.append({**head, "object": "chat.completion.chunk", "choices": [end], "usage": None})
        choices.append({"index": index, "message": message, "logprobs": {"content": logprobs}, "finish_reason": "stop"})
    usage = {"prompt_tokens": 3, "completion_tokens": len(chunks), "prompt_tokens_details": {"cached_tokens": 2}}
    chunks.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
    return {**head, "object": "chat.completion", "choices": choices, "usage": usage}, chunks


@given(answers())
def test_chunks_add_up_to_the_whole_answer(case: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    whole, chunks = case
    assembly = Assembly()
    for chunk in chunks:
        assembly.add(read_piece(js(chunk)))
    assert json.loads(bytes(assembly.whole() or b"")) == whole


def test_chunks_of_a_completion_add_up_with_their_logprobs() -> None:
    assembly = Assembly()
    for n in range(300):
        choice = {"index": 0, "text": f"{n} ", "logprobs": {"tokens": [f"{n}"], "token_logprobs": [-0.5]}}
        assembly.add(read_piece(js({"object": "text_completion", "choices": [choice | {"finish_reason": None}]})))
    texts = [f"{n}" for n in range(300)]
    choice = {"index": 0, "text": " ".join(texts) + " ", "finish_reason": None}
    choice |= {"logprobs": {"tokens": texts, "token_logprobs": [-0.5] * 300}}
    assert json.loads(bytes(assembly.whole() or b"")) == {"object": "text_completion", "choices": [choice]}


DELTAS: Final = st.lists(
    st.dictionaries(
        st.sampled_from(["content", "role", "tool_calls", "logprobs"]),
        st.none()
        | TEXT
        | st.lists(st.fixed_dictionaries({"index": st.integers(0, 2), "arguments": TEXT}), max_size=2)
        | st.lists(st.integers(), max_size=2),
    ),
    max_size=200,
)


@given(DELTAS)
def test_pile_adds_up_to_what_merging_all_at_once_gives(deltas: Sequence[dict[str, Any]]) -> None:
    kept, pile = deepcopy(deltas), Pile()
    same_kinds = [{name: part for name, part in delta.items() if isinstance(part, str)} for delta in deltas]
    for delta in same_kinds:
        pile.add(delta)
    assert (pile.merge_all() or {}) == (merge(same_kinds) or {})
    assert reduce(lambda one, two: merge([one, two]), same_kinds, {}) == (merge(same_kinds) or {})
    merge(deltas)
    assert deltas == kept, "what was merged is left as it was"


@pytest.mark.parametrize(
    ("choice", "text", "reasoning", "says", "is_more"),
    [
        ({"delta": {"content": "a"}}, "a", "", True, False),
        ({"delta": {"content": "", "role": "assistant"}}, "", "", False, False),
        ({"delta": {"reasoning_content": "r"}}, "", "r", True, False),
        ({"delta": {"reasoning": "r", "reasoning_content": "r"}}, "", "r", True, False),
        ({"delta": {"tool_calls": [{"index": 0}]}}, "", "", True, True),
        ({"delta": {"refusal": "no"}}, "", "", True, True),
        ({"delta": {"audio": {"data": "AA"}}}, "", "", True, True),
        ({"delta": {"content": "a"}, "index": 1}, "", "", True, True),
        ({"text": "a"}, "a", "", True, False),
        ({"message": {"content": "a"}}, "a", "", True, False),
        ({"delta": None}, "", "", False, False),
    ],
)
def test_piece_tells_what_it_says(choice: dict[str, Any], text: str, reasoning: str, says: bool, is_more: bool) -> None:
    piece = read_piece(js({"choices": [choice]}))
    assert (piece.text, piece.reasoning, piece.says, piece.is_more) == (text, reasoning, says, is_more)


@pytest.mark.parametrize(
    ("choices", "is_role"),
    [
        ([{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}], True),
        ([{"index": n, "delta": {"role": "assistant", "content": None, "tool_calls": []}} for n in range(2)], True),
        ([{"delta": {"role": "assistant"}}, {"index": 1, "delta": {"role": "assistant", "content": "a"}}], False),
        ([{"delta": {"role": "assistant"}}, {"index": 1, "delta": {}, "finish_reason": "stop"}], False),
        ([{"delta": {"role": "assistant", "content": ""}, "finish_reason": "stop"}], False),
        ([{"delta": {"role": "assistant", "annotations": ["x"]}}], False),
        ([{"delta": {"role": "assistant"}, "logprobs": {"content": []}}], False),
        ([{"delta": {"content": ""}}], False),
        ([{"text": ""}], False),
        ([], False),
    ],
)
def test_chunk_with_the_role_alone_says_nothing_else(choices: list[dict[str, Any]], is_role: bool) -> None:
    assert read_piece(js({"choices": choices})).is_role is is_role


@pytest.mark.parametrize(
    ("found", "is_alone"),
    [
        ({"choices": [], "usage": {"prompt_tokens": 1}}, True),
        ({"usage": {"prompt_tokens": 1}}, True),
        ({"choices": [], "usage": None}, False),
        ({"choices": [{"delta": {}}], "usage": {"prompt_tokens": 1}}, False),
        ({"choices": [], "prompt_filter_results": []}, False),
    ],
)
def test_piece_with_usage_alone_is_told_from_others(found: dict[str, Any], is_alone: bool) -> None:
    assert read_piece(js(found)).is_usage_alone is is_alone


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (b'{"choices" : [] , "a":1.0e2}', None),
        (b'{"choices": [], "a": NaN}', b'{"choices":[],"a":null}'),
        (b'{"choices": [], "a": "\\ud83d"}', b'{"choices": [], "a": "\\ufffd"}'),
        (b'{"choices": [], "a": "\\ud83d\\ude00"}', None),
    ],
)
def test_bytes_of_a_piece_stay_unless_no_reader_takes_them(data: bytes, kept: bytes | None) -> None:
    assert bytes(legible(read_piece(data))) == (kept or data)


def test_number_beyond_json_makes_a_piece_illegible() -> None:
    with pytest.raises(Unreadable, match="beyond"):
        legible(read_piece(b'{"choices": [], "a": 1e999}'))


def test_cached_tokens_are_counted_where_there_are_some() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    assert counts_in(usage) == {"input_tokens": 5, "output_tokens": 2, "cached_tokens": 4}
    assert counts_in({"prompt_tokens": True, "completion_tokens": "2"}) == {}
    assert counts_in([usage]) == {}
