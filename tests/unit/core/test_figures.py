import math

import pytest

from director.core.figures import jain, percentile
from tests.bench.figures import Figure


def test_jain_is_one_for_equal_shares() -> None:
    assert jain([3, 3, 3]) == pytest.approx(1)
    assert jain([5, 0, 0, 0]) == pytest.approx(1 / 4)
    assert jain([0, 0]) == 0


@pytest.mark.parametrize(
    ("value", "is_least", "is_within"),
    [(2, False, True), (2.1, False, False), (2, True, True), (1.9, True, False), (math.nan, False, False)],
)
def test_a_bound_is_the_most_or_the_least(value: float, is_least: bool, is_within: bool) -> None:
    assert Figure(name="wait", value=value, bound=2, is_least=is_least).ok is is_within


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([4, 1, 3, 2], 0.5) == 2
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([7], 0.99) == 7
