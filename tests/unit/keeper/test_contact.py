import pytest

from director.keeper.reaper import Contact

LEASE_S = 15.0


def listened(*answers: tuple[float, str]) -> Contact:
    contact = Contact(lease_s=LEASE_S)
    for at_s, run_id in answers:
        contact.note_answer(run_id, at_s=at_s, server_s=at_s)
    return contact


def each_second(start: int, end: int, run_id: str = "a") -> list[tuple[float, str]]:
    return [(float(second), run_id) for second in range(start, end + 1)]


def test_one_whole_lease_of_answers_proves_it_and_less_does_not() -> None:
    assert not listened(*each_second(100, 114)).is_proven
    assert listened(*each_second(100, 115)).is_proven


def test_another_run_of_the_server_resets_the_contact() -> None:
    assert not listened(*each_second(0, 100, "a"), *each_second(101, 115, "b")).is_proven
    assert listened(*each_second(0, 100, "a"), *each_second(101, 116, "b")).is_proven


def test_failed_call_resets_the_contact() -> None:
    contact = listened(*each_second(0, 100))
    contact.break_off()
    assert not contact.is_proven
    for at_s, run_id in each_second(101, 115):
        contact.note_answer(run_id, at_s=at_s, server_s=at_s)
    assert not contact.is_proven
    contact.note_answer("a", at_s=116.0, server_s=116.0)
    assert contact.is_proven


def test_silence_of_half_a_lease_resets_the_contact() -> None:
    assert not listened(*each_second(0, 100), (107.6, "a")).is_proven
    assert listened(*each_second(0, 100), (107.4, "a")).is_proven


def test_what_other_keepers_have_proven_holds_for_one_that_has_just_started() -> None:
    contact = Contact(lease_s=LEASE_S)
    contact.note_answer("a", at_s=100, server_s=9100, others_s=14)
    assert not contact.is_proven
    contact.note_answer("a", at_s=101, server_s=9101, others_s=15)
    assert contact.is_proven


def test_after_a_failed_call_what_others_heard_meanwhile_counts() -> None:
    contact = listened(*each_second(0, 100))
    contact.break_off()
    contact.note_answer("a", at_s=103, server_s=103, others_s=2)
    assert not contact.is_proven
    contact.break_off()
    contact.note_answer("a", at_s=110, server_s=110, others_s=100)
    assert contact.is_proven


@pytest.mark.parametrize("step_s", [60.0, -600.0])
def test_step_of_the_server_clock_resets_the_contact(step_s: float) -> None:
    contact = listened(*each_second(0, 100))
    for at_s in range(101, 116):
        contact.note_answer("a", at_s=at_s, server_s=at_s + step_s, others_s=100)
        assert not contact.is_proven
    contact.note_answer("a", at_s=116, server_s=116 + step_s)
    assert contact.is_proven


def test_a_clock_that_is_put_right_a_little_breaks_nothing() -> None:
    contact = listened(*each_second(0, 100))
    for at_s, server_s in ((101, 106), (102, 102), (103, 110)):
        contact.note_answer("a", at_s=at_s, server_s=server_s)
        assert contact.is_proven
