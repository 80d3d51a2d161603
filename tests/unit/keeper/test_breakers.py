import pytest

from director.keeper.courier import AFTER, FREE_S, INTERVAL_S, LATEST_S, MOST_HOSTS, MOST_OVERDUE, Breakers
from tests.support.clock import FakeClock

HOST = "receiver.example"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def breakers(clock: FakeClock) -> Breakers:
    return Breakers(clock)


def fail(breakers: Breakers, times: int = AFTER) -> None:
    for _ in range(times):
        breakers.note_failure(HOST)


def test_few_failures_do_not_open_the_breaker(breakers: Breakers) -> None:
    fail(breakers, AFTER - 1)
    assert all(breakers.may_try(HOST) for _ in range(10))


def test_absent_host_gets_one_attempt_per_interval(breakers: Breakers, clock: FakeClock) -> None:
    fail(breakers)
    assert not breakers.may_try(HOST)
    for _ in range(3):
        clock.pass_time(INTERVAL_S)
        assert [breakers.may_try(HOST) for _ in range(3)] == [True, False, False]
        fail(breakers, 1)


def test_failures_already_under_way_do_not_move_the_interval(breakers: Breakers, clock: FakeClock) -> None:
    fail(breakers)
    clock.pass_time(INTERVAL_S - 1)
    fail(breakers, 8)
    clock.pass_time(1)
    assert breakers.may_try(HOST)


def test_answer_closes_the_breaker_and_resets_the_count(breakers: Breakers) -> None:
    fail(breakers)
    assert breakers.note_answer(HOST)
    assert breakers.may_try(HOST)
    assert breakers.put_off_s(HOST, "one") < 1
    fail(breakers, AFTER - 1)
    assert breakers.may_try(HOST)
    assert breakers.note_answer(HOST)
    assert not breakers.note_answer(HOST), "one that did not fail did not come back"


def test_each_delayed_webhook_gets_its_own_interval(breakers: Breakers, clock: FakeClock) -> None:
    fail(breakers)
    waits = [breakers.put_off_s(HOST, f"{n}") for n in range(4)]
    assert waits == pytest.approx([INTERVAL_S, 2 * INTERVAL_S, 3 * INTERVAL_S, 4 * INTERVAL_S], abs=0.1)
    for wait_s in waits:
        clock.pass_time(wait_s - clock.monotonic())
        assert breakers.may_try(HOST), "and when it comes, it may try"
        fail(breakers, 1)


def test_webhook_brought_forward_keeps_its_interval(breakers: Breakers, clock: FakeClock) -> None:
    fail(breakers)
    first, *_ = waits = [breakers.put_off_s(HOST, f"{n}") for n in range(100)]
    clock.pass_time(10)
    again = [breakers.put_off_s(HOST, f"{n}") for n in range(100)]
    assert again[:10] == pytest.approx([wait_s - 10 for wait_s in waits[:10]])
    clock.pass_time(first - 10)
    assert breakers.may_try(HOST)


def test_early_webhook_still_gets_the_next_interval(breakers: Breakers, clock: FakeClock) -> None:
    fail(breakers)
    for number in range(100):
        breakers.put_off_s(HOST, f"{number}")
    clock.pass_time(INTERVAL_S + 0.9)
    assert breakers.may_try(HOST)
    fail(breakers, 1)
    clock.pass_time(INTERVAL_S - 0.8)
    assert not breakers.may_try(HOST)
    assert breakers.put_off_s(HOST, "1") < 1


def test_no_webhook_is_delayed_beyond_the_limit(breakers: Breakers) -> None:
    fail(breakers)
    waits = [breakers.put_off_s(HOST, f"{n}") for n in range(1000)]
    assert max(waits) <= LATEST_S + INTERVAL_S
    beyond = waits[int(LATEST_S / INTERVAL_S) + 1 :]
    assert min(beyond) >= LATEST_S / 2
    assert len(set(beyond)) > 900, "and they do not come back as one"


def test_requested_delay_is_honoured_up_to_the_limit(breakers: Breakers, clock: FakeClock) -> None:
    fail(breakers, AFTER - 1)
    breakers.note_failure(HOST, asked_s=120)
    clock.pass_time(119)
    assert not breakers.may_try(HOST)
    clock.pass_time(1)
    assert breakers.may_try(HOST)
    breakers.note_failure(HOST, asked_s=86_400)
    clock.pass_time(LATEST_S)
    assert breakers.may_try(HOST)


def test_number_of_remembered_hosts_is_bounded(breakers: Breakers) -> None:
    for number in range(MOST_HOSTS + 10):
        breakers.note_failure(f"h{number}.example")
    assert not breakers.note_answer("h0.example")
    assert breakers.note_answer(f"h{MOST_HOSTS + 9}.example")


def test_free_intervals_of_many_endpoints_are_filled_in_turn(breakers: Breakers, clock: FakeClock) -> None:
    for number in range(3 * MOST_OVERDUE):
        for _ in range(AFTER):
            breakers.note_failure(f"h{number}.example")
        for who in ("first", "second", "third"):
            breakers.put_off_s(f"h{number}.example", who)
    assert breakers.overdue() == {}
    clock.pass_time(INTERVAL_S + FREE_S)
    rounds = [breakers.overdue() for _ in range(4)]
    assert [len(each) for each in rounds] == [MOST_OVERDUE] * 3 + [0]
    assert len({name for each in rounds for name in each}) == 3 * MOST_OVERDUE
    assert all(waiting == ["second", "third"] for each in rounds for waiting in each.values())
    clock.pass_time(INTERVAL_S)
    assert breakers.overdue().keys() == rounds[0].keys(), "those that had no turn for the longest time come first"
