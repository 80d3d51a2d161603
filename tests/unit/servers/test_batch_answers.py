import json

import msgspec
import pytest
from msgspec import Raw

from director.core.runner_config import HttpConfig, decode_runner_config
from director.servers.runners.http import MISMATCH, ends_of
from director.servers.runners.runner import Ended, Outcome


def ends(answer: object, count: int, headers: dict[str, str] | None = None, **batch: object) -> list[Ended]:
    given = {"kind": "http", "path": "/", "input": {"$each": ""}, "output": "/out", "error": "/error", "batch": batch}
    config = decode_runner_config(json.dumps(given | {"metrics": {"n": "/n"}}))
    assert isinstance(config, HttpConfig)
    assert config.batch is not None
    return ends_of(Raw(msgspec.json.encode(answer)), config, config.batch, [1.0] * count, headers or {})


def test_each_run_gets_the_end_of_its_item() -> None:
    first, second, third = ends({"all": [{"out": 1, "n": 5}, {"error": "no"}, {}]}, 3, items="/all")
    assert (first.outcome, first.output, first.metrics) == (Outcome.SUCCEEDED, Raw(b"1"), {"n": Raw(b"5")})
    assert (second.outcome, second.error) == (Outcome.FAILED, "no")
    assert (third.outcome, third.error) == (Outcome.FAILED, "The model server's answer has nothing at /out: {}")


def test_usage_is_split_and_an_item_s_own_metric_wins() -> None:
    answer = {"all": [{"out": 1, "n": 7}, {"error": "no"}], "usage": {"n": 10, "t": "odd"}}
    both = ends(
        answer,
        2,
        {"x-units": "3"},
        items="/all",
        usage={"n": "/usage/n", "t": "/usage/t"},
        usage_headers={"units": "x-units"},
    )
    assert [end.metrics for end in both] == [{"n": Raw(b"7"), "units": Raw(b"2")}, {"n": Raw(b"5"), "units": Raw(b"1")}]


def test_the_share_goes_with_the_item_whatever_its_place() -> None:
    answer = {"all": [{"i": 1, "out": 1, "t": 1}, {"i": 0, "out": 1, "t": 9}], "n": 20}
    both = ends(answer, 2, items="/all", index="/i", usage={"n": "/n"}, share="/t")
    assert [end.metrics["n"] for end in both] == [Raw(b"18"), Raw(b"2")]


@pytest.mark.parametrize(
    ("answer", "batch"),
    [
        ([{"out": 1}], {}),
        ([{"out": 1}] * 3, {}),
        ([], {}),
        ({"out": 1}, {}),
        (None, {}),
        ({"all": [{"out": 1}] * 2}, {"items": "/data"}),
        ([{"i": 0, "out": 1}, {"i": 0, "out": 2}], {"index": "/i"}),
        ([{"i": 1, "out": 1}, {"i": 2, "out": 2}], {"index": "/i"}),
        ([{"i": "0", "out": 1}, {"i": 1, "out": 2}], {"index": "/i"}),
        ([{"out": 1}, {"i": 1, "out": 2}], {"index": "/i"}),
    ],
)
def test_mismatched_items_give_no_run_an_output(answer: object, batch: dict[str, object]) -> None:
    found = ends(answer, 2, **batch)
    assert [(end.outcome, end.code, end.output) for end in found] == [(Outcome.FAILED, MISMATCH, None)] * 2
