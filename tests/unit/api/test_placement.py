from collections import Counter
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from api.sites.table import Candidate, Placement, QueueReport, in_order

LOOKS = st.builds(
    QueueReport,
    waiting=st.integers(0, 1000),
    running=st.integers(0, 100),
    slots=st.integers(0, 100),
    service_ms=st.floats(0, 1e6),
    starts=st.booleans(),
)
CANDIDATES = st.lists(
    st.builds(
        Candidate,
        name=st.sampled_from("abcdef"),
        weight=st.floats(0.01, 1000),
        report=LOOKS,
        since=st.integers(0, 100),
    ),
    unique_by=lambda each: each.name,
)


def candidate(name: str, *, weight: float = 1, since: int = 0, **seen: Any) -> Candidate:
    idle = {"waiting": 0, "running": 0, "slots": 1, "service_ms": 100, "starts": True}
    return Candidate(name=name, weight=weight, report=QueueReport(**idle | seen), since=since)


@settings(max_examples=30)
@given(candidates=CANDIDATES, placement=st.sampled_from(["random", "least-wait"]), seed=st.integers())
def test_each_site_is_tried_once_and_stuck_ones_last(
    candidates: list[Candidate], placement: Placement, seed: int
) -> None:
    order = in_order(candidates, placement, Random(seed).random)
    assert sorted(order) == sorted(each.name for each in candidates)
    stuck = {each.name: not each.report.starts or not each.report.slots for each in candidates}
    assert [stuck[name] for name in order] == sorted(stuck[name] for name in order)


@settings(max_examples=30)
@given(candidates=CANDIDATES, seed=st.integers())
def test_least_wait_orders_by_wait(candidates: list[Candidate], seed: int) -> None:
    waits = {each.name: each.wait_ms for each in candidates}
    order = [waits[name] for name in in_order(candidates, "least-wait", Random(seed).random)]
    assert order == sorted(order)


def test_the_table_of_waits() -> None:
    rows = [
        ("a free slot is no wait", candidate("a", running=3, slots=4), 0),
        ("one that is the first in line waits for one run of all slots", candidate("a", running=4, slots=4), 25),
        ("what waits comes first", candidate("a", waiting=7, running=4, slots=4), 200),
        ("what was placed since counts", candidate("a", running=3, slots=4, since=8), 200),
        ("longer runs are a longer wait", candidate("a", waiting=7, running=4, slots=4, service_ms=1000), 2000),
        ("the run time is unknown", candidate("a", waiting=1, running=1, service_ms=0), 2000),
        ("no slot", candidate("a", slots=0), float("inf")),
        ("paused", candidate("a", starts=False), float("inf")),
    ]
    assert {why: each.wait_ms for why, each, _ in rows} == {why: wait for why, _, wait in rows}


def test_lots_fall_by_weight_and_the_longer_queue_is_no_matter() -> None:
    candidates = [candidate("heavy", weight=3, waiting=1000), candidate("light")]
    draw = Random(7).random
    first = Counter(in_order(candidates, "random", draw)[0] for _ in range(4000))
    assert 0.72 < first["heavy"] / 4000 < 0.78
