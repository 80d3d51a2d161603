"""Test that what one account holds of something bounded keeps no other account from its share."""

import pytest

from api.services.holders import Holders


def make_holders(**held: int) -> Holders[str]:
    made: Holders[str] = Holders()
    for account, count in held.items():
        for number in range(count):
            made.enter(account, f"{account} {number}")
    return made


@pytest.mark.parametrize(
    ("held", "account", "gives_way"),
    [
        ({}, "bob", None),
        ({"alice": 4}, "bob", "alice 0"),
        ({"alice": 1}, "bob", None),
        ({"alice": 4, "bob": 2}, "bob", "alice 0"),
        ({"alice": 4, "bob": 3}, "bob", None),
        ({"alice": 4}, "alice", None),
        ({"alice": 3, "carol": 5}, "bob", "carol 0"),
    ],
)
def test_account_with_most_gives_way_until_shares_are_equal(
    held: dict[str, int], account: str, gives_way: str | None
) -> None:
    assert make_holders(**held).first_to_leave(account) == gives_way


@pytest.mark.parametrize(
    ("held", "part", "gives_way"),
    [
        ({"alice": 4}, 2, ["alice 0"]),
        ({"alice": 5, "carol": 4}, 1, ["alice 0", "alice 1", "carol 0", "alice 2", "carol 1", "alice 3", "carol 2"]),
        ({"alice": 3, "bob": 3}, 1, []),
    ],
)
def test_those_that_give_way_are_known_before_any_leaves(held: dict[str, int], part: int, gives_way: list[str]) -> None:
    taken = make_holders(**held)
    assert list(taken.give_way("bob", part)) == gives_way
    assert len(taken) == sum(held.values())


def test_oldest_of_the_largest_account_is_found_after_changes() -> None:
    held = make_holders(alice=3, bob=2)
    assert held.oldest_of_largest() == "alice 0"
    held.leave("alice 0")
    held.leave("alice 1")
    assert held.oldest_of_largest() == "bob 0"
    held.leave("unknown")
    assert (len(held), held.oldest_of_largest()) == (3, "bob 0")


def test_the_largest_is_found_without_a_look_at_each_account() -> None:
    """A full cache of tokens asks at each load."""
    looks = 0

    class Name(str):
        def __hash__(self) -> int:
            nonlocal looks
            looks += 1
            return super().__hash__()

    held: Holders[int] = Holders()
    for number in range(2_000):
        held.enter(Name(f"account {number}"), number)
    looks = 0
    assert (held.oldest_of_largest(), looks < 10) == (0, True)


def test_large_parts_give_way_to_small_ones() -> None:
    held = make_holders(bob=3)
    held.enter("alice", "large", 20)
    assert held.first_to_leave("bob") == "large"
    assert held.first_to_leave("bob", 17) is None


def test_what_left_counts_no_longer() -> None:
    held = make_holders(alice=3)
    for _ in range(2):
        held.leave("alice 0")
    assert (len(held), "alice 0" in held, held.first_to_leave("bob")) == (2, False, "alice 1")
    for holder in held.holders:
        held.leave(holder)
    assert (len(held), held.first_to_leave("bob")) == (0, None)


def test_holder_that_stays_counts_and_never_gives_way() -> None:
    held = make_holders(alice=1)
    for number in range(3):
        held.enter("alice", f"stays {number}", stays=True)
    assert (held.staying, held.count_staying("alice"), held.count_staying("bob")) == (3, 3, 0)
    assert list(held.give_way("bob")) == ["alice 0"]
    held.leave("alice 0")
    assert (len(held), list(held.give_way("bob"))) == (3, [])
    held.enter("bob", "bob 0")
    assert held.first_to_leave("carol") is None, "bob has as few"
    for number in range(3):
        held.leave(f"stays {number}")
    assert (held.staying, held.count_staying("alice"), held.holders) == (0, 0, ["bob 0"])
