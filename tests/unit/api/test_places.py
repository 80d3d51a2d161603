"""Test that what one account holds of something bounded keeps no other account from its share."""

import pytest

from api.places import Places


def places(**held: int) -> Places[str]:
    made: Places[str] = Places()
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
    assert places(**held).first_to_leave(account) == gives_way


def test_large_parts_give_way_to_small_ones() -> None:
    held = places(bob=3)
    held.enter("alice", "large", 20)
    assert held.first_to_leave("bob") == "large"
    assert held.first_to_leave("bob", 17) is None


def test_what_left_counts_no_longer() -> None:
    held = places(alice=3)
    for _ in range(2):
        held.leave("alice 0")
    assert (len(held), "alice 0" in held, held.first_to_leave("bob")) == (2, False, "alice 1")
    for holder in held.holders:
        held.leave(holder)
    assert (len(held), held.first_to_leave("bob")) == (0, None)
