"""A line of the output is one JSON object, whatever the model answered."""

import json

import pytest

from api.batches.lines import Outcome, encode_outcome
from director.core.ids import new_file_id


@pytest.mark.parametrize("depth", [10, 5_000, 100_000])
def test_answer_of_any_depth_is_one_line(depth: int) -> None:
    body = b'{"a":\n' + b"[" * depth + b"]" * depth + b"}"
    outcome = Outcome(status=200, body=body, is_good=True)
    line = encode_outcome(new_file_id(1_700_000_000_000), 0, "c", outcome)
    assert line.count(b"\n") == 1
    shown = json.loads(line)["response"]["body"]
    assert shown == (json.loads(body) if depth == 10 else body.decode())
