"""A share of memory is fair: no account gives up bytes for one that has more. A lifetime has few buckets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from director.core.data_bytes import (
    BUCKETS,
    SHORT,
    Fullness,
    count_bytes,
    fair_share,
    lasting,
    room_for_data,
    share_while_short,
    until_ms,
)

MB = 1_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
HELD = st.lists(st.integers(0, 100 * MB), max_size=300)


@given(HELD, st.integers(1, 500 * MB))
def test_no_account_is_above_its_share_while_there_is_room(held: list[int], room: int) -> None:
    share = fair_share(held, room)
    if sum(held) <= room:
        assert all(size <= share + 1 for size in held)


@given(HELD, st.integers(1, 500 * MB))
def test_shares_use_the_room_and_no_more_where_it_is_short(held: list[int], room: int) -> None:
    share = fair_share(held, room)
    if sum(held) > room:
        used = sum(min(size, share) for size in held)
        assert room - len(held) - 1 <= used <= room


@given(HELD, st.integers(1, 500 * MB))
def test_an_account_with_less_than_an_equal_part_is_never_above_its_share(held: list[int], room: int) -> None:
    holders = [size for size in held if size]
    assert fair_share(held, room) >= room // (len(holders) or 1) - 1


@pytest.mark.parametrize(
    ("held", "share"),
    [
        ([50 * MB], 80 * MB),
        ([50 * MB, *[MB // 50] * 300], 71_400_000),
        ([7 * MB] * 10, 8 * MB),
        ([9 * MB] * 10 + [MB // 10] * 50, 7_500_000),
        ([], 80 * MB),
    ],
    ids=["one hoarder", "one beside many", "ten that will be too many", "ten beside fifty", "none"],
)
def test_shares_of_hoarders(held: list[int], share: int) -> None:
    assert fair_share(held, 80 * MB) == pytest.approx(share, rel=0.02)


@pytest.mark.parametrize("count", [1, 2, 10, 60])
def test_hoarders_one_after_the_other_leave_room_for_small_accounts(count: int) -> None:
    held = list[int]()
    for _ in range(count):
        held.append(0)
        while True:
            memory = Fullness(sum(held), 100 * MB)
            share = fair_share(held, room_for_data(memory, data=memory.used))
            if memory.part > SHORT:
                share = share_while_short(share, memory.part)
            if held[-1] + MB // 10 > share:
                break
            held[-1] += MB // 10
    assert sum(held) <= 99 * MB
    assert share_while_short(fair_share(held, 80 * MB), sum(held) / (100 * MB)) > 5_000


def test_what_is_no_data_leaves_less_room_but_never_none() -> None:
    assert room_for_data(Fullness(50, 100), data=50) == 80
    assert room_for_data(Fullness(50, 100), data=30) == 60
    assert room_for_data(Fullness(95, 100), data=5) == 10
    assert room_for_data(Fullness(10, 100), data=30) == 80


def test_a_cluster_is_as_full_as_its_fullest_master() -> None:
    masters = [{"used_memory": 90, "maxmemory": 100}, {"used_memory": 30, "maxmemory": 100}]
    assert Fullness.of(masters) == (120, 133)
    assert Fullness.of(masters).part == pytest.approx(0.9, abs=0.01)
    assert Fullness.of([{"used_memory": 90, "maxmemory": 0}]) == (90, 0)


@given(st.integers(0, 2**42), st.integers(1, 366 * 86_400_000))
def test_a_time_is_rounded_up_by_a_sixteenth_of_the_lifetime_at_most(now_ms: int, ttl_ms: int) -> None:
    over = until_ms(now_ms, ttl_ms) - (now_ms + ttl_ms)
    assert 0 <= over <= max(1, ttl_ms // BUCKETS)


def test_a_lifetime_has_few_buckets() -> None:
    for ttl_ms in (1_000, 3_600_000, 366 * 86_400_000):
        assert (
            len({until_ms(1_800_000_000_000 + ttl_ms * part // 1000, ttl_ms) for part in range(1000)})
            <= 2 * BUCKETS + 1
        )


def test_only_what_has_not_expired_counts() -> None:
    assert count_bytes([("10", "1"), ("20", "2"), ("old", "4 20"), ("15", "8")], now_ms=14) == 14


@pytest.mark.parametrize(
    ("has_key", "record_ttl_ms", "life_ms"),
    [
        (False, HOUR_MS, HOUR_MS),
        (False, 30 * DAY_MS, 30 * DAY_MS),
        (True, HOUR_MS, DAY_MS),
        (True, 30 * DAY_MS, 30 * DAY_MS),
    ],
)
def test_long_record_counts_for_as_long_as_it_lives(has_key: bool, record_ttl_ms: int, life_ms: int) -> None:
    now_ms = 1_800_000_000_000
    counts = lasting(["x" * 2_000], now_ms=now_ms, record_ttl_ms=record_ttl_ms, has_key=has_key)
    assert counts.bytes > 1_488
    assert life_ms <= counts.until_ms - now_ms <= 1.1 * life_ms


def test_key_of_a_short_record_counts_for_a_day() -> None:
    counts = lasting(["x"], now_ms=0, record_ttl_ms=30 * DAY_MS, has_key=True)
    assert DAY_MS <= counts.until_ms <= 1.1 * DAY_MS
    assert lasting(["x"], now_ms=0, record_ttl_ms=30 * DAY_MS).bytes == 0
