from hypothesis import given
from hypothesis import strategies as st

from director.execution.tracker import CAPACITY_S, RULES, ErrorClass, backoff_s


@given(attempt=st.integers(1, 60), dice=st.floats(0, 1), cap=st.floats(0, 600))
def test_a_backoff_stays_between_nothing_and_its_cap(attempt: int, dice: float, cap: float) -> None:
    assert 0 <= backoff_s(ErrorClass.INFRASTRUCTURE, attempt, base_s=1, cap_s=cap, dice=dice) <= cap


def test_maximum_backoff_doubles_with_each_attempt_up_to_the_cap() -> None:
    most = [backoff_s(ErrorClass.INFRASTRUCTURE, n, base_s=1, cap_s=10, dice=1.0) for n in range(1, 7)]
    assert most == [1, 2, 4, 8, 10, 10]


def test_requested_delay_is_the_minimum_within_the_cap() -> None:
    assert backoff_s(ErrorClass.INFRASTRUCTURE, 1, base_s=1, cap_s=60, dice=0.5, asked_s=7) == 7
    assert backoff_s(ErrorClass.INFRASTRUCTURE, 1, base_s=1, cap_s=60, dice=0.5, asked_s=9_999) == 60


def test_a_server_without_room_is_asked_again_soon_however_often_it_was() -> None:
    assert backoff_s(ErrorClass.CAPACITY, 9, base_s=1, cap_s=60, dice=1.0) == CAPACITY_S
    assert backoff_s(ErrorClass.CAPACITY, 9, base_s=1, cap_s=60, dice=1.0, asked_s=3) == 3


def test_what_would_fail_again_is_not_run_again() -> None:
    assert {error for error, rule in RULES.items() if not rule.again} == {ErrorClass.MODEL, ErrorClass.INPUT}
    assert [error for error, rule in RULES.items() if not rule.spent] == [ErrorClass.CAPACITY]
