from director.keeper.courier import LONGEST_LINE, PLACES, PLACES_PER_ACCOUNT, PLACES_PER_ENDPOINT, Shares


def test_account_with_many_silent_hosts_leaves_places_to_others() -> None:
    shares = Shares()
    asked = [f"a h{number // PLACES_PER_ENDPOINT}.example" for number in range(1_000)]
    joined = [name for name in asked if shares.join(name)]
    assert len(joined) == PLACES_PER_ACCOUNT + LONGEST_LINE
    assert shares.room == PLACES - PLACES_PER_ACCOUNT
    assert shares.join("b h0.example")
    for name in [*joined, "b h0.example"]:
        shares.leave(name)
    assert shares.are_empty
    assert shares.room == PLACES
    assert shares.join("a h0.example")
