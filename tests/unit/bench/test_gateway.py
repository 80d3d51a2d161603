from math import inf

import pytest

from director.lab.bench.load import Answered
from tests.bench.benches.gateway import STALL_MS, TOKENS, is_whole, most_within
from tests.bench.sides.gateways import GATEWAYS, Side, settings
from tests.bench.sides.streams import Heard

WHOLE = [20.0] * (TOKENS - 1)


@pytest.mark.parametrize(
    ("heard", "whole"),
    [
        (Heard(gaps_ms=WHOLE), True),
        (Heard(gaps_ms=[*WHOLE[1:], STALL_MS]), True),
        (Heard(gaps_ms=[*WHOLE[1:], STALL_MS + 1]), False),
        (Heard(gaps_ms=WHOLE[1:]), False),
        (Heard(gaps_ms=WHOLE, fault="it ended early"), False),
        (Heard(fault="it was refused"), False),
    ],
)
def test_stream_with_a_stall_or_a_lost_token_is_not_whole(heard: Heard, whole: bool) -> None:
    assert is_whole(heard) == whole


def test_calls_within_a_bound_are_of_a_load_without_failures() -> None:
    slow = Answered(answered=900, p99_ms=40)
    rungs = [Answered(answered=500, p99_ms=4), slow, Answered(answered=1000, p99_ms=9, refused=1)]
    assert [most_within(rungs, bound) for bound in (1, 5, 10, 50, inf)] == [0, 500, 500, 900, 900]


def test_settings_of_each_gateway_are_named_without_addresses() -> None:
    assert [settings(peer) for peer in GATEWAYS][1].startswith("smg 1.13.0 (launch --worker-urls MODEL ")


def test_a_call_and_a_stream_go_to_the_same_path_with_the_same_token() -> None:
    side = Side(name="one", url="http://127.0.0.1:1/v1", token="secret")
    load, plan = side.ask(connections=1, seconds=1), side.plan("1 0", [0.0], connections=1, limit_s=1)
    assert plan.request().startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"authorization: Bearer secret\r\n" in plan.request()
    assert (load.url, load.headers) == (plan.url, plan.headers)
    assert (b'"stream":true' in plan.request(), '"stream"' in load.body) == (True, False)
