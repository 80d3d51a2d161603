import math

import pytest

from director.core.figures import jain, percentile
from tests.bench.figures import Figure, table, verdicts


def test_jain_is_one_for_equal_shares() -> None:
    assert jain([3, 3, 3]) == pytest.approx(1)
    assert jain([5, 0, 0, 0]) == pytest.approx(1 / 4)
    assert jain([0, 0]) == 0


def test_a_bound_is_the_most_or_the_least() -> None:
    assert Figure(name="wait", value=2, bound=2).ok
    assert not Figure(name="wait", value=2.1, bound=2).ok
    assert Figure(name="share", value=5, bound=5, is_least=True).ok
    assert not Figure(name="share", value=4.9, bound=5, is_least=True).ok


def test_who_was_never_served_fails() -> None:
    assert not Figure(name="wait", value=math.inf, bound=2).ok
    assert not Figure(name="wait", value=math.nan, bound=2).ok


def test_each_figure_is_a_line_with_its_bound() -> None:
    lines = verdicts(
        [
            Figure(name="wait", value=0.98, bound=2, unit=" %"),
            Figure(name="Jain", value=0.5, bound=0.98, is_least=True),
        ]
    )
    assert lines.splitlines() == [
        "PASS  wait      0.98 %  (at most 2 %)",
        "FAIL  Jain       0.5  (at least 0.98)",
    ]


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([4, 1, 3, 2], 0.5) == 2
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([7], 0.99) == 7


def test_a_table_has_a_row_for_each_name() -> None:
    assert table({"a": {"x": 1, "yy": 2.5}, "b": {"x": 10, "yy": 0.125}}).splitlines() == [
        "    x     yy",
        "a   1    2.5",
        "b  10  0.125",
    ]
