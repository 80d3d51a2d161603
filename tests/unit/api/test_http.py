import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response

from api.web.errors import Problem
from api.web.http import MAX_NESTING, decode_json, read_body
from tests.support.api import door_to

MAX_BYTES = 1_000


async def echo(request: Request) -> Response:
    return Response(await read_body(request, max_bytes=MAX_BYTES))


async def post(content: bytes | AsyncIterator[bytes], headers: dict[str, str] | None = None) -> httpx.Response:
    transport = httpx.ASGITransport(door_to(echo, method="POST"))
    async with httpx.AsyncClient(transport=transport, base_url="http://director") as client:
        return await client.post("/", content=content, headers=headers)


def detail_of_refusal(body: bytes) -> str:
    with pytest.raises(Problem) as refused:
        decode_json(body, object)
    assert refused.value.status == 400
    return refused.value.document.detail


async def test_a_body_of_the_largest_size_arrives_whole() -> None:
    assert (await post(b"x" * MAX_BYTES)).content == b"x" * MAX_BYTES


async def test_announced_oversize_is_refused_before_the_body_is_read() -> None:
    async def never() -> AsyncIterator[bytes]:
        raise AssertionError("read")
        yield b""

    answer = await post(never(), {"content-length": str(MAX_BYTES + 1)})
    assert (answer.status_code, answer.json()["code"], answer.json()["limit"]) == (413, "too_large", MAX_BYTES)


async def test_a_length_of_ten_thousand_digits_is_too_large_too() -> None:
    assert (await post(b"{}", {"content-length": "9" * 10_000})).status_code == 413


async def test_a_body_that_never_comes_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.web.http.LONGEST_S", 0.01)

    async def begun() -> AsyncIterator[bytes]:
        yield b"{"
        await anyio.sleep_forever()

    answer = await post(begun())
    assert (answer.status_code, answer.json()["code"]) == (408, "too_slow")
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"a": 1,}', "trailing comma"),
        (b"{'a': 1}", "byte 1"),
        (b'{"a": 1', "truncated"),
        (b'{"a": NaN}', "byte 6"),
        (b'{"a": 1} {"b": 2}', "trailing characters"),
        (b'{"a": 1e999}', "out of range"),
        (b'{"a": ' + b"1" * 5_000 + b"}", "out of range"),
        (b'{"a": "\\ud800\\u0041"}', "surrogate"),
        (b'{"secret": hunter2}', "byte 11"),
    ],
)
def test_what_is_not_json_is_refused_with_a_reason_and_not_quoted(body: bytes, reason: str) -> None:
    detail = detail_of_refusal(body)
    assert reason in detail
    assert "hunter2" not in detail


@pytest.mark.parametrize("kind", [object, dict[str, msgspec.Raw], msgspec.Raw])
def test_invalid_utf8_is_refused_even_in_raw_members(kind: type[Any]) -> None:
    with pytest.raises(Problem, match="not UTF-8 \\(byte 6\\)"):
        decode_json(b'{"a":"\xff"}', kind)


@pytest.mark.parametrize("levels", [MAX_NESTING + 1, 1_000, 100_000])
@pytest.mark.parametrize(
    ("opening", "inside", "closing"),
    [(b"[", b"", b"]"), (b'{"a":', b"1", b"}"), (b"[", b"", b""), (b'{"a":[{},', b"1", b"]}")],
)
def test_nesting_too_deeply_is_refused(levels: int, opening: bytes, inside: bytes, closing: bytes) -> None:
    assert "nested too deeply" in detail_of_refusal(opening * levels + inside + closing * levels)


def test_nesting_of_different_kinds_counts_each_level() -> None:
    for levels in (MAX_NESTING - 1, MAX_NESTING + 1):
        pairs, odd = divmod(levels, 2)
        text = b'[{"a":' * pairs + b"[]" * odd + b"}]" * pairs
        padded = b"[%b%b]" % (text, b",[],{}" * 200_000)
        if levels < MAX_NESTING:
            decode_json(padded, object)
        else:
            assert "nested too deeply" in detail_of_refusal(padded)


def test_depth_of_a_body_takes_linear_time() -> None:
    bodies = [b"[" * 500_000 + b"]" * 500_000, b"[[]," * 250_000, b"[[[]]," * 170_000, b"{},[{}]," * 125_000]
    for body in bodies:
        began = time.process_time()
        with suppress(Problem):
            decode_json(body, object)
        assert time.process_time() - began < 1  # about 0.05 s; it took 5 s where each level was a pass


def test_brackets_side_by_side_or_inside_strings_are_no_nesting() -> None:
    value = [[]] * 500 + ['[{"' * 500, "\\", '\\"[' * 500, "[" * 500 + "\\"]
    assert decode_json(json.dumps(value).encode(), list) == value


@given(st.recursive(st.text() | st.integers(-9, 9), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_json_that_is_not_deep_is_read(value: object) -> None:
    # the brackets beside it make sure that the nesting is really measured
    padded = [value, "[" * MAX_NESTING, ["]"]]
    assert decode_json(json.dumps(padded).encode(), list) == padded


@given(
    st.lists(st.sampled_from([b"[", b"]", b"{", b"}", b'"', b"\\", b"a", b",", b":", b"1", b" ", b"\xff"])).map(
        b"".join
    )
)
def test_any_bytes_are_read_or_refused_and_never_crash(body: bytes) -> None:
    for text in (body, b"[" * 90 + body):
        refused = None
        try:
            decode_json(text, object)
        except Problem as problem:
            refused = problem
        assert refused is None or refused.status == 400
