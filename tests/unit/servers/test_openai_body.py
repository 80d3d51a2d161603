"""The body of a call of OpenAI's API reaches the server byte for byte but for its model and its wish for usage."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from director.core.runner_config import MOST_MEMBERS
from director.servers.runners.openai_body import USAGE_WANTED, InvalidInput, splice

SPACES: Final = st.text(" \t\n\r", max_size=3)
VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
NAMES: Final = st.sampled_from(["model", "messages", "n", "stream", "stream_options", "ü", "modelx", "mode", ""])


@st.composite
def written(draw: st.DrawFn, value: Any) -> str:
    """Return JSON of a value, in one of the ways in which it can be written."""
    text = json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, None, 1, "\t"])),
        separators=draw(st.sampled_from([None, (",", ":"), (" , ", " : ")])),
    )
    try:  # half of a pair has no UTF-8
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value)
    return text


@st.composite
def named(draw: st.DrawFn, name: str) -> str:
    """Return a key of JSON, in which each letter may be escaped."""
    parts = [f"\\u{ord(letter):04x}" if draw(st.booleans()) else letter for letter in name]
    return f'"{"".join(parts)}"'


Pairs = list[tuple[str, str, str]]
"""Members: their name, what stands before the value, and the value."""


@st.composite
def members(draw: st.DrawFn, streams: st.SearchStrategy[str] | None = None) -> Pairs:
    found: Pairs = []
    for name in draw(st.lists(NAMES, max_size=8)):
        value = draw(streams) if streams is not None and name == "stream" else draw(VALUES.flatmap(written))
        before = f"{draw(SPACES)}{draw(named(name))}{draw(SPACES)}:{draw(SPACES)}"
        found.append((name, before, value))
    return found


def joined(pairs: Pairs, space: str = "") -> bytes:
    inside = ",".join(before + value + space for _, before, value in pairs)
    return f"{space}{{{inside or space}}}{space}".encode()


def test_forty_unknown_fields_reach_the_server_as_they_were_written() -> None:
    unknown = "".join(f' , "field_{n}" :\t{{"a": [{n}.0, 1E{n}, "\\u00e9é\\/"]}}' for n in range(40))
    body = '{"messages": [{"model": "no"}], "model":"acme/llm", "temperature": 0.10, "seed":1e2' + unknown + " }\n"
    found = splice(body.encode(), model="tiny", adds_usage=True)
    assert found.body == body.replace('"acme/llm"', '"tiny"').encode()
    assert (found.is_streamed, found.adds_usage) == (False, False)


@given(members(streams=st.sampled_from(["false", "null", "1", '"true"'])), st.text(max_size=5), SPACES)
def test_nothing_but_the_model_changes_in_a_body_that_is_not_streamed(pairs: Pairs, model: str, space: str) -> None:
    expected = [(name, before, json.dumps(model) if name == "model" else value) for name, before, value in pairs]
    found = splice(joined(pairs, space), model=model, adds_usage=True)
    assert json.loads(found.body) == json.loads(joined(expected if model else pairs, space))
    if model.isascii() and model.isprintable() and not set(model) & set('"\\'):
        assert found.body == joined(expected if model else pairs, space)
    assert (found.is_streamed, found.adds_usage) == (False, False)


@given(members(streams=st.just("true")), st.text(max_size=5), SPACES)
def test_streamed_body_differs_only_by_model_and_wish_for_usage(pairs: Pairs, model: str, space: str) -> None:
    body = joined(pairs, space)
    before, found = json.loads(body), splice(body, model=model, adds_usage=True)
    after = json.loads(found.body)
    assert found.is_streamed is ("stream" in before)
    options = before.get("stream_options")
    may_ask = found.is_streamed and ("stream_options" not in before or options is None or isinstance(options, dict))
    if may_ask and not (isinstance(options, dict) and options.get("include_usage", None) not in (None, False)):
        assert after["stream_options"] == {**(options or {}), "include_usage": True}
        assert found.adds_usage
        after["stream_options"] = options
        if "stream_options" not in before:
            del after["stream_options"]
    assert after == before | ({"model": model} if model and "model" in before else {})
    if not found.is_streamed or not may_ask:
        assert not found.adds_usage


OPTIONS: Final = {
    "absent": ("", "", True),
    "null": ('"stream_options": null, ', '"stream_options": {"include_usage":true}, ', True),
    "empty": ('"stream_options": {}, ', '"stream_options": {"include_usage":true}, ', True),
    "empty with a space": ('"stream_options": { }, ', '"stream_options": {"include_usage":true }, ', True),
    "another": ('"stream_options": {"a": 1}, ', '"stream_options": {"include_usage":true,"a": 1}, ', True),
    "false": ('"stream_options":{"include_usage" :false}, ', '"stream_options":{"include_usage" :true}, ', True),
    "of null": ('"stream_options": {"include_usage": null}, ', '"stream_options": {"include_usage": true}, ', True),
    "true": ('"stream_options": {"include_usage": true}, ', None, False),
    "escaped": (
        '"stream_options": {"include\\u005fusage": false}, ',
        '"stream_options": {"include\\u005fusage": true}, ',
        True,
    ),
    "a text": ('"stream_options": "yes", ', None, False),
    "a list": ('"stream_options": [{"include_usage": false}], ', None, False),
    "of a text": ('"stream_options": {"include_usage": "no"}, ', None, False),
    "of a number": ('"stream_options": {"include_usage": 0}, ', None, False),
    "twice": (
        '"stream_options": 5, "stream_options": {"include_usage": false}, ',
        '"stream_options": 5, "stream_options": {"include_usage": true}, ',
        True,
    ),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_usage_is_asked_for_where_its_caller_did_not(case: str) -> None:
    options, changed, adds = OPTIONS[case]
    end = '"model": "a", "stream":true, "n": 1}'
    found = splice(("{" + options + end).encode(), model="", adds_usage=True)
    inserted = f'"stream":true,"stream_options":{USAGE_WANTED}'
    expected = "{" + (options if changed is None else changed) + end
    assert found.body.decode() == (expected.replace('"stream":true', inserted) if case == "absent" else expected)
    assert (found.is_streamed, found.adds_usage) == (True, adds)


@pytest.mark.parametrize("options", [options for options, _, _ in OPTIONS.values()])
def test_server_that_refuses_stream_options_gets_the_body_as_it_is(options: str) -> None:
    body = ("{" + options + '"model": "a", "stream":true}').encode()
    found = splice(body, model="", adds_usage=False)
    assert (found.body, found.is_streamed, found.adds_usage) == (body, True, False)


@pytest.mark.parametrize(
    ("body", "spliced"),
    [
        ('{"mod\\u0065l":"a"}', '{"mod\\u0065l":"t"}'),
        ('{"model":"a","model":{"b":[1]}}', '{"model":"t","model":"t"}'),
        ('{"a":{"model":"a"},"b":["model",{"model":1}],"c":"\\"model\\":1","model":null}', None),
        ('{"m":"}\\\\","model":"a"}', '{"m":"}\\\\","model":"t"}'),
        ('{"Model":"a"," model":"b","model ":"c"}', '{"Model":"a"," model":"b","model ":"c"}'),
        ('{"model":-1.5e3}', '{"model":"t"}'),
        ("{}", "{}"),
    ],
)
def test_every_model_at_the_top_is_replaced_and_no_other(body: str, spliced: str | None) -> None:
    expected = body.replace('"model":null', '"model":"t"') if spliced is None else spliced
    assert splice(body.encode(), model="t", adds_usage=True).body.decode() == expected


@pytest.mark.parametrize("streams", [("true", "false"), ("false", "true")])
def test_last_wish_for_a_stream_counts(streams: tuple[str, str]) -> None:
    body = f'{{"stream": {streams[0]}, "stream": {streams[1]}}}'
    found = splice(body.encode(), model="", adds_usage=True)
    assert found.is_streamed is (streams[1] == "true")
    assert (b"include_usage" in found.body) is found.is_streamed


@pytest.mark.parametrize(
    "body",
    ["", "[]", "null", '"{}"', "{", '{"a"', '{"a":', '{"a":1', '{"a":{', '{"a":1,}', '{"a" 1}', "{a:1}", '{"\\x":1}'],
)
def test_body_that_is_no_object_is_refused(body: str) -> None:
    with pytest.raises(InvalidInput):
        splice(body.encode(), model="t", adds_usage=True)


@pytest.mark.parametrize(
    "inner", [b"[" * 300 + b"]" * 300, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000]
)
def test_deeply_nested_body_is_refused(inner: bytes) -> None:
    with pytest.raises(InvalidInput, match="too deeply"):
        splice(b'{"a":%b,"model":"a"}' % inner, model="t", adds_usage=True)


@pytest.mark.parametrize(
    "value", [b'"%b"' % (b'\\"' * 500_000), b"[%b[]]" % (b"[]," * 300_000), b"1" * 1_000_000, b'"\\ud800 \xc3\xa9"']
)
def test_large_and_odd_values_go_on_as_they_are(value: bytes) -> None:
    body = b'{"a":%b,"model":"a","b":%b}' % (value, value)
    assert splice(body, model="t", adds_usage=True).body == body.replace(b'"model":"a"', b'"model":"t"')


def test_body_of_too_many_members_is_refused() -> None:
    pairs = ",".join(f'"{n}":{n}' for n in range(MOST_MEMBERS))
    assert splice(f"{{{pairs}}}".encode(), model="t", adds_usage=True)
    with pytest.raises(InvalidInput, match="1,000 members"):
        splice(f'{{{pairs},"a":1}}'.encode(), model="t", adds_usage=True)
