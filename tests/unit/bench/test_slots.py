import pytest

from tests.support.timed_server import gaps_ms, use_of


def test_gap_is_from_an_end_to_the_next_begin_of_its_slot() -> None:
    one = [(0.0, 1.0), (1.001, 2.0), (2.003, 3.0)]
    assert gaps_ms(one, slots=1) == pytest.approx([1, 3])
    two = [(0.0, 1.0), (0.0, 1.0), (1.002, 2.0), (1.004, 2.0)]
    assert gaps_ms(two, slots=2) == pytest.approx([2, 4])
    assert use_of(one, slots=1) == pytest.approx((1 + 0.999) / 2.003)
