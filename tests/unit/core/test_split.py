"""Check how calls are split between two versions, and when the new one is stopped."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from director.core.ids import QueueName, queue_name
from director.core.split import (
    LEAST_RUNS,
    RARE,
    EndedRun,
    Runs,
    Split,
    choose,
    count_runs,
    explain,
    find_chance,
    judge,
    read_figures,
    read_mark,
    write_mark,
)
from director.core.trends import bucket

OLD, NEW = "a1" * 32, "b2" * 32
SPLIT = Split(
    model="acme/echo", former=OLD, version=NEW, share=10, began_ms=1_700_000_000_000, since_ms=1_700_000_000_000,
    release=1, created_ms=1_600_000_000_000,
)  # fmt: skip
KEYS = [f"key {number}" for number in range(10_000)]


def share_of(split: Split) -> float:
    return sum(choose(split, key) == "new" for key in KEYS) / len(KEYS)


@pytest.mark.parametrize("share", [0, 1, 10, 50, 99])
def test_share_of_ten_thousand_calls_is_the_one_asked_for(share: int) -> None:
    assert share_of(replace(SPLIT, share=share)) == pytest.approx(share / 100, abs=0.012)


@given(key=st.text(), share=st.integers(1, 99), more=st.integers(1, 99))
def test_key_keeps_its_version_while_the_share_grows(key: str, share: int, more: int) -> None:
    split = replace(SPLIT, share=share)
    assert choose(split, key) == choose(split, key)
    if choose(split, key) == "new" and more >= share:
        assert choose(replace(split, share=more), key) == "new"


def test_another_split_draws_other_keys() -> None:
    half, later = replace(SPLIT, share=50), replace(SPLIT, share=50, began_ms=SPLIT.began_ms + 1)
    same = sum(choose(half, key) == choose(later, key) for key in KEYS)
    assert 0.45 < same / len(KEYS) < 0.55


def test_mark_says_what_was_chosen_and_why() -> None:
    mark = read_mark(write_mark(SPLIT, "new"))
    assert mark is not None
    assert (mark.side, mark.percent, mark.version) == ("new", 10, NEW[:12])
    assert explain(mark, "acme/front", "T") == "because 10 % of acme/front go to it since T, to try it"
    stays = read_mark(write_mark(SPLIT, "old"))
    assert stays is not None
    assert (stays.side, stays.percent, stays.version) == ("old", 90, OLD[:12])


@pytest.mark.parametrize(
    "text", ["", "new", "a b c d e f", "newer 1 2 3 4", "new a b c d", "new 1 2 x 4", "new 1 2 ² 4"]
)
def test_mark_of_another_form_is_not_read(text: str) -> None:
    assert read_mark(text) is None


def run(**facts: Any) -> EndedRun:
    given = {"queue": queue_name("acme/echo", NEW), "mark": write_mark(SPLIT, "new")} | facts
    return EndedRun(**{"deployment": "acme/front", "status": "succeeded", "code": "", "ran_ms": 1000} | given)


def test_only_runs_that_the_split_sent_are_counted() -> None:
    old = {"queue": queue_name("acme/echo", OLD), "mark": write_mark(SPLIT, "old")}
    others = [
        run(mark=""),
        run(deployment="acme/other"),
        run(mark=write_mark(replace(SPLIT, began_ms=1), "new")),
        run(queue=QueueName("acme/echo:000000000000")),
        run(queue=old["queue"]),  # an operator moved it
        run(status="canceled"),
        run(status="aborted"),
        run(status="failed", code="deadline_exceeded", ran_ms=None),
        run(status="failed", code="start_by_exceeded", ran_ms=None),
    ]
    ended = [run(), run(status="failed", code="worker_died", ran_ms=None), run(**old), run(**old, status="failed")]
    counts = count_runs(SPLIT, "acme/front", [*others, *ended])
    at = bucket(1000)
    assert {name: count for name, count in counts.items() if not name.endswith(":now")} == {
        "new:succeeded": 1, f"new:ms:{at}": 1, "new:failed": 1, "old:succeeded": 1, "old:failed": 1, f"old:ms:{at}": 2,
    }  # fmt: skip
    found = read_figures({**counts, "cursor": "1-0"}).all
    assert (found["new"].ended, found["new"].failed, found["old"].ended) == (2, 1, 2)
    assert found["old"].p50_s == pytest.approx(1.0, rel=0.13)


@pytest.mark.parametrize("status", ["canceled", "aborted", "failed"])
def test_run_that_hangs_until_its_deadline_has_failed(status: str) -> None:
    assert count_runs(SPLIT, "acme/front", [run(status=status, code="deadline_exceeded")])["new:failed"] == 1


def test_bad_hour_at_a_larger_share_is_not_the_new_versions() -> None:
    """920 quiet runs at 10 %, then an outage at 80 % in which half of both fail."""
    ramped = replace(SPLIT, share=80, since_ms=SPLIT.since_ms + 1)
    ended = list[EndedRun]()
    for split, old, new, fails in ((SPLIT, 820, 100, False), (ramped, 45, 180, True)):
        for side, version, count in (("old", OLD, old), ("new", NEW, new)):
            of = {"queue": queue_name("acme/echo", version), "mark": write_mark(split, side)}  # type: ignore[arg-type]
            ended += [run(**of, status="failed" if fails and one % 2 else "succeeded") for one in range(count)]
    found = read_figures(count_runs(ramped, "acme/front", ended))
    assert judge(ramped, found.all["old"], found.all["new"]), "over both shares it looks bad"
    assert not judge(ramped, found.now["old"], found.now["new"])


def test_version_that_fails_far_more_is_stopped_with_both_figures() -> None:
    why = judge(SPLIT, Runs(succeeded=446, failed=4), Runs(succeeded=38, failed=12))
    assert why == (
        "12 of 50 runs of the new version failed (24.0 %) at 10 %, and 4 of 450 of the old one (0.9 %): more than 5 "
        "percentage points above it"
    )


def test_version_that_fails_is_stopped_without_a_run_of_the_old_one() -> None:
    assert judge(SPLIT, Runs(), Runs(0, 60)) == (
        "60 of 60 runs of the new version failed (100.0 %) at 10 %, and none of the old one ended"
    )


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        (Runs(450, 0), Runs(0, LEAST_RUNS - 1), {}),  # too few
        (Runs(100_000, 0), Runs(9_600, 400), {}),  # certain, and within the margin
        (Runs(60, 0), Runs(46, 4), {}),  # above the margin, and may be chance
        (Runs(0, 0), Runs(30, 30), {}),  # nothing to compare with
        (Runs(9, 0), Runs(0, 1), {"least": 1}),  # one of ten is chance
        (Runs(0, 60), Runs(0, 60), {}),
        (Runs(100, 100), Runs(200, 0), {}),  # better
        (Runs(450, 0), Runs(0, 60), {"share": 0}),  # stopped before
        (Runs(450, 0), Runs(0, 60), {"least": 100}),
        (Runs(450, 0), Runs(500, 500), {"margin": 60}),
    ],
)
def test_version_goes_on_without_clear_evidence(old: Runs, new: Runs, changed: dict[str, int]) -> None:
    assert judge(replace(SPLIT, **changed), old, new) == ""


def test_chance_of_a_few_runs_is_exact() -> None:
    assert find_chance(Runs(9, 0), Runs(0, 1)) == pytest.approx(1 / 10)
    assert find_chance(Runs(60, 0), Runs(46, 4)) == pytest.approx(230_300 / 5_773_185)
    assert find_chance(Runs(50_000, 0), Runs(0, 50_000)) == 0


counts = st.integers(0, 5_000)


@given(old=st.tuples(counts, counts), new=st.tuples(counts, counts), margin=st.integers(0, 50))
def test_stopped_version_is_worse_by_more_than_margin_and_chance(
    old: tuple[int, int], new: tuple[int, int], margin: int
) -> None:
    split, was, tried = replace(SPLIT, margin=margin), Runs(*old), Runs(*new)
    if not judge(split, was, tried):
        return
    assert tried.ended >= split.least
    assert not was.ended or (tried.failure_rate - was.failure_rate) * 100 > margin
    assert not was.ended or find_chance(was, tried) < RARE
    assert not judge(split, tried, was), "never both ways"


def looks(old_rate: float, new_rate: float, *, seed: int, most: int = 400) -> int | None:
    """Return after how many runs of the new version a keeper that looks after each one stops it."""
    draw = random.Random(seed)
    old, new = [0, 0], [0, 0]
    for number in range(1, most + 1):
        for _ in range(9):
            old[draw.random() < old_rate] += 1
        new[draw.random() < new_rate] += 1
        if judge(SPLIT, Runs(*old), Runs(*new)):
            return number
    return None


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.1, 0.3])
def test_harmless_version_is_hardly_ever_stopped(rate: float) -> None:
    stopped = [looks(rate, rate, seed=seed) is not None for seed in range(200)]
    assert sum(stopped) <= 6, "3 of 100, however often it is looked at"


@pytest.mark.parametrize(("rate", "runs"), [(0.2, 100), (0.5, LEAST_RUNS), (1.0, LEAST_RUNS)])
def test_bad_version_is_stopped_after_few_runs(rate: float, runs: int) -> None:
    found = [looks(0.01, rate, seed=seed) for seed in range(50)]
    assert all(number is not None and number <= runs for number in found)
