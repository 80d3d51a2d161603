"""A process is dead after a minute of silence that the keeper saw without a gap."""

from director.keeper.canceler import DEAD_S, LONGEST_GAP_S, Signs
from director.store.processes import TICK_S


def look(signs: Signs, *, since_s: float = 0.0, until_s: float, sign: float = 1.0) -> list[str]:
    """Look each tick at one process whose newest sign stays the same. Returns what the last look found."""
    found: list[str] = []
    at_s = since_s
    while at_s <= until_s:
        found = signs.note({"p": sign}, at_s=at_s)
        at_s += TICK_S
    return found


def test_process_is_dead_after_a_minute_without_a_sign() -> None:
    signs = Signs()
    assert look(signs, until_s=DEAD_S - TICK_S) == []
    assert look(signs, since_s=DEAD_S, until_s=DEAD_S) == ["p"]


def test_sign_begins_the_minute_again_also_with_an_earlier_time() -> None:
    signs = Signs()
    look(signs, until_s=DEAD_S - TICK_S)
    assert look(signs, since_s=DEAD_S, until_s=2 * DEAD_S - TICK_S, sign=0.5) == []
    assert signs.note({"p": 0.5}, at_s=2 * DEAD_S) == ["p"]


def test_keeper_that_stood_still_or_lost_redis_begins_again() -> None:
    for forget in (True, False):
        signs = Signs()
        look(signs, until_s=DEAD_S - TICK_S)
        if forget:
            signs.forget()
        gap_s = TICK_S if forget else LONGEST_GAP_S + 1
        assert signs.note({"p": 1.0}, at_s=DEAD_S - TICK_S + gap_s) == []


def test_processes_that_are_listed_no_more_are_forgotten() -> None:
    signs = Signs()
    look(signs, until_s=DEAD_S - TICK_S)
    assert signs.note({}, at_s=DEAD_S) == []
    assert signs.note({"p": 1.0}, at_s=DEAD_S + TICK_S) == []
