"""Test the steps of the history: buckets of durations, quantiles, merging and lines."""

import random
from itertools import pairwise

import pytest

from director.core.trends import (
    MOST_BUCKETS,
    RANGES,
    STEPS,
    Level,
    Point,
    bucket,
    level_line,
    levels_of,
    line_of,
    merge,
    parse,
    parse_level,
    quantile_s,
    steps_of,
    thin,
)


def counted(values_ms: list[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for value in values_ms:
        found[bucket(value)] = found.get(bucket(value), 0) + 1
    return found


@pytest.mark.parametrize("part", [0.5, 0.95])
@pytest.mark.parametrize("shape", [(5.0, 1.0), (9.0, 2.0), (12.0, 0.3)])
def test_a_quantile_is_within_an_eighth_of_the_truth(part: float, shape: tuple[float, float]) -> None:
    made = random.Random(7)
    values = sorted(int(made.lognormvariate(*shape)) + 10 for _ in range(2_000))
    truth_s = values[int(part * len(values))] / 1000
    found_s = quantile_s(counted(values), part)
    assert found_s is not None
    assert abs(found_s / truth_s - 1) < 0.13


def test_no_durations_have_no_quantile() -> None:
    assert quantile_s({}, 0.5) is None
    assert quantile_s(counted([0, 0, 1]), 0.95) == 0.0


def test_a_line_brings_its_point_back() -> None:
    full = Point(at_s=60, succeeded=3, failed=2, canceled=1, waits={0: 1, 31: 4}, runs={40: 2})
    empty = Point(at_s=70, canceled=1)
    assert [parse(line_of(one).encode()) for one in (full, empty)] == [full, empty]
    assert [parse(line_of(one).encode()) for one in (empty, full)] == [empty, full]


def test_a_wide_spread_keeps_its_sum_and_about_its_quantiles() -> None:
    spread = {number: 1 + number % 3 for number in range(85)}
    kept = thin(spread, MOST_BUCKETS)
    assert len(kept) <= MOST_BUCKETS
    assert sum(kept.values()) == sum(spread.values())
    truth_s, found_s = quantile_s(spread, 0.5), quantile_s(kept, 0.5)
    assert truth_s is not None
    assert found_s is not None
    assert 0.3 < found_s / truth_s < 3


def test_merged_steps_have_the_sums() -> None:
    points = [Point(at_s=at_s, succeeded=1, failed=2, waits={5: 1}, runs={7: at_s}) for at_s in (50, 60, 110)]
    first, second = steps_of(points, STEPS[1])
    assert (first.at_s, first.succeeded, first.runs) == (0, 1, {7: 50})
    assert (second.at_s, second.succeeded, second.failed, second.waits, second.runs) == (60, 2, 4, {5: 2}, {7: 170})
    assert merge(points, at_s=0) == merge([first, second], at_s=0)


def test_each_step_fills_the_next_before_its_lines_go() -> None:
    for finer, coarser in pairwise(STEPS):
        assert coarser.seconds % finer.seconds == 0
        assert finer.covers_s >= 2 * coarser.seconds, "a keeper that was away for one step still finds all lines"
    assert [step.covers_s for step in RANGES.values()] == [900, 3600, 86_400, 7 * 86_400]


def test_levels_are_merged_by_their_most_and_their_sum() -> None:
    fine = [Level(at_s=60, waiting=4, busy_s=20, slots=2), Level(at_s=70, waiting=9, busy_s=10, slots=4)]
    merged = [Level(at_s=60, waiting=9, busy_s=30, slots=4), Level(at_s=120, waiting=1)]
    assert levels_of([*fine, Level(at_s=130, waiting=1)], STEPS[1]) == merged
    assert parse_level(level_line(fine[0]).encode()) == fine[0]
    assert parse_level(b"60 4 20 2 of a later release") == fine[0]
