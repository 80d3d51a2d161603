"""Test what the API reads of a body of OpenAI's API."""

import json

import pytest

from api.openai.calls import read_call
from api.web.errors import Problem
from director.core.runner_config import MOST_MEMBERS


def body(count: int, name: str = "") -> bytes:
    members = [f'"{name or number}":[{{"a":1,"b":2}}]' for number in range(count - 1)]
    return ('{"model":"a/b",' + ",".join(members) + "}").encode()


@pytest.mark.parametrize("name", ["", "same"])
def test_body_with_too_many_members_is_refused(name: str) -> None:
    assert read_call(body(MOST_MEMBERS, name)).model == "a/b"
    with pytest.raises(Problem, match=f"{MOST_MEMBERS + 1} members") as refused:
        read_call(body(MOST_MEMBERS + 1, name))
    assert refused.value.document.status == 400


def test_members_of_messages_do_not_count() -> None:
    messages = [{"role": "user", "content": ": : :"}] * 2 * MOST_MEMBERS
    assert read_call(json.dumps({"model": "a/b", "messages": messages}).encode()).model == "a/b"


@pytest.mark.parametrize("half", ["\\ud800", "\\udc00", "a\\ud83d b"])
def test_half_of_a_surrogate_pair_passes(half: str) -> None:
    rest = f'"messages":[{{"content":"{half}"}}],"{half}":1.5'
    call = read_call(b'{"model":"a/b","stream":true,"service_tier":null,%b}' % rest.encode())
    assert (call.model, call.stream, call.service_tier) == ("a/b", True, None)


@pytest.mark.parametrize(
    "members",
    [
        '"model":"\\ud800"',
        '"model":"a/b","prompt_cache_key":"\\ud800"',
        '"model":5,"x":"\\ud800"',
        '"model":"a/b","stream":1,"x":"\\ud800"',
        '"model":"a/b","x":"\\ud800","y":NaN',
        '"model":"a/b","x":"\\ud800","y":01',
        '"model":"a/b","x":"\\ud80"',
        '"x":"\\ud800"',
    ],
)
def test_leniency_ends_at_half_a_surrogate_pair(members: str) -> None:
    with pytest.raises(Problem) as refused:
        read_call(b"{%b}" % members.encode())
    assert refused.value.document.status in (400, 422)  # the second one is 400 to its caller
