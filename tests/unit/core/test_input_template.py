import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from director.core.json_pointer import Pointer
from director.core.runner_config import WHOLE_INPUT, Template


def filled(template: Any, given: bytes) -> bytes:
    return Template(template).fill(Raw(given))


@pytest.mark.parametrize(
    ("template", "sent"),
    [
        ({"$input": ""}, b'{"a": 1.50, "b": [1, 2], "n": null}'),
        ({"x": {"$input": "/a"}}, b'{"x":1.50}'),
        ({"x": {"$input": "/b/1"}, "y": "/a"}, b'{"x":2,"y":"/a"}'),
        ({"x": {"$input": "/c"}, "y": 1}, b'{"y":1}'),
        ({"x": {"$input": "/c", "$default": [0]}}, b'{"x":[0]}'),
        ({"x": {"$input": "/c", "$default": None}}, b'{"x":null}'),
        ({"x": {"$input": "/a", "$default": 7}}, b'{"x":1.50}'),
        ({"x": {"$input": "/n", "$default": 7}}, b'{"x":null}'),
        ([{"$input": "/c"}, {"$input": "/a"}, {"deep": [{"$input": "/b"}]}], b'[1.50,{"deep":[[1, 2]]}]'),
        ({"$input": "/c"}, b"null"),
        ("text", b'"text"'),
    ],
)
def test_it_is_filled_from_the_input(template: Any, sent: bytes) -> None:
    assert filled(template, b'{"a": 1.50, "b": [1, 2], "n": null}') == sent


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner)))
def test_a_value_stays_one_value_whatever_is_in_it(value: Any) -> None:
    sent = filled({"model": "m", "prompt": {"$input": "/p"}}, json.dumps({"p": value}).encode())
    assert json.loads(sent) == {"model": "m", "prompt": value}


def test_what_a_caller_writes_is_no_template() -> None:
    assert (
        filled({"p": {"$input": "/p"}}, b'{"p": {"$input": "/secret"}, "secret": 1}') == b'{"p":{"$input": "/secret"}}'
    )


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ({"a": [{"$input": "x"}]}, "at /a/0: a JSON pointer"),
        ({"a/b": {"$input": 3}}, r"at /a~1b \$input is not a text"),
        ({"a": {"$input": "", "other": 1}}, "'other'"),
        ({"a": float("nan")}, "at /a"),
        ({"a": object()}, "at /a"),
        ([0] * 1000, "at most 1000"),
    ],
)
def test_a_mistake_is_told_with_its_place(template: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Template(template)


def test_templates_have_a_bound_in_depth() -> None:
    deep: Any = 1
    for _ in range(20):
        deep = {"a": deep}
    with pytest.raises(ValueError, match="16 deep"):
        Template(deep)


def test_the_whole_input_is_sent_as_it_came() -> None:
    assert WHOLE_INPUT.fill(Raw(b'{ "a" : 1 }')) == b'{ "a" : 1 }'
    assert msgspec.json.decode(WHOLE_INPUT.fill(Raw(b"{}"))) == {}


def test_each_collects_a_list_and_the_rest_is_shared() -> None:
    template = Template({"texts": {"$each": "/text"}, "k": {"$input": "/k"}, "fixed": [1]})
    first, second = Raw(b'{"text": 1.50, "k": 2}'), Raw(b'{"text": {"a": null}, "k": 2}')
    assert template.fill(first, second) == b'{"texts":[1.50,{"a": null}],"k":2,"fixed":[1]}'
    assert template.fill(second) == b'{"texts":[{"a": null}],"k":2,"fixed":[1]}'
    assert template.shared(first) == template.shared(second)
    assert template.shared(Raw(b'{"text": 1.50, "k": 3}')) != template.shared(first)


def test_input_without_a_value_for_each_needs_a_default() -> None:
    lacking = Raw(b'{"k": 1}')
    assert Template([{"$each": "/k"}, {"$each": "/text"}]).missing(lacking) == Pointer("/text")
    defaulting = Template({"texts": {"$each": "/text", "$default": ""}})
    assert defaulting.missing(lacking) is None
    assert defaulting.fill(lacking, Raw(b'{"text": "a"}')) == b'{"texts":["","a"]}'
    assert not Template({"texts": {"$input": "/text"}}).has_each
