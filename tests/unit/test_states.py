"""States: one table, and what follows from it."""

from hypothesis import given
from hypothesis import strategies as st

from director.broker.gatherer import source
from director.core.states import TERMINAL, TRANSITIONS, Status, may_follow

STATUSES = st.sampled_from(Status)


def test_every_status_has_its_row() -> None:
    assert set(TRANSITIONS) == set(Status)


def test_these_end_a_prediction() -> None:
    assert {Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.ABORTED} == TERMINAL


@given(before=STATUSES, after=STATUSES)
def test_nothing_follows_an_end(before: Status, after: Status) -> None:
    if before in TERMINAL:
        assert not may_follow(before=before, after=after)


@given(st.lists(STATUSES, max_size=20))
def test_a_walk_through_the_table_ends_at_most_once(walk: list[Status]) -> None:
    at, ends = Status.STARTING, 0
    for status in walk:
        if may_follow(before=at, after=status):
            at = status
            ends += status in TERMINAL
    assert ends == (at in TERMINAL)


def test_every_status_can_be_reached_and_every_prediction_can_end() -> None:
    reached = {Status.STARTING}.union(*TRANSITIONS.values())
    assert reached == set(Status)
    for status in set(Status) - TERMINAL:
        assert TRANSITIONS[status] & TERMINAL


def test_aborted_is_only_for_what_never_began() -> None:
    assert may_follow(before=Status.STARTING, after=Status.ABORTED)
    assert not may_follow(before=Status.PROCESSING, after=Status.ABORTED)


def test_scripts_know_the_same_ends() -> None:
    line = next(line for line in source("get").splitlines() if line.startswith("local TERMINAL"))
    assert {status for status in Status if f"{status} = true" in line} == TERMINAL
    assert line.count("= true") == len(TERMINAL)
