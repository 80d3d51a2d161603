from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from director.core.policy import MAX_STREAMS, shard

# A change here would move every tenant at once, and with them the order in which their work is served.
GOLDEN = {
    "acme": ((7, 8), (23, 5, 16), (3, 0, 1, 2)),
    "bob": ((9, 2), (9, 14, 12), (1, 0, 2, 3)),
    "a": ((11, 9), (27, 18, 26), (3, 2, 0, 1)),
    "": ((5, 15), (21, 16, 31), (1, 0, 3, 2)),
    "tenant-17": ((10, 11), (10, 30, 8), (2, 1, 0, 3)),
    "müller": ((2, 15), (18, 10, 7), (2, 3, 0, 1)),
    "0": ((9, 7), (9, 10, 26), (1, 3, 2, 0)),
    "x" * 64: ((12, 0), (28, 24, 14), (0, 3, 1, 2)),
}


@pytest.mark.parametrize(("tenant", "shards"), GOLDEN.items())
def test_the_shard_of_a_tenant_never_changes(tenant: str, shards: tuple[tuple[int, ...], ...]) -> None:
    assert (
        shard(tenant, streams=16, size=2),
        shard(tenant, streams=32, size=3),
        shard(tenant, streams=4, size=4),
    ) == shards


@given(tenant=st.text(max_size=30), streams=st.integers(1, MAX_STREAMS), size=st.integers(1, MAX_STREAMS))
def test_a_shard_is_so_many_different_streams_that_exist(tenant: str, streams: int, size: int) -> None:
    numbers = shard(tenant, streams=streams, size=size)
    assert len(numbers) == len(set(numbers)) == min(size, streams)
    assert all(0 <= number < streams for number in numbers)


@given(tenant=st.text(max_size=30), size=st.integers(1, 15))
def test_a_larger_shard_keeps_the_preferences_of_a_smaller_one(tenant: str, size: int) -> None:
    assert shard(tenant, streams=16, size=size + 1)[:size] == shard(tenant, streams=16, size=size)


def test_tenants_spread_over_all_streams_evenly() -> None:
    used = Counter(number for i in range(4_000) for number in shard(f"tenant{i}", streams=16, size=2))
    assert set(used) == set(range(16))
    assert all(400 < times < 600 for times in used.values()), "500 each, give or take four deviations"


def test_two_tenants_rarely_share_all_their_streams() -> None:
    shards = [frozenset(shard(f"tenant{i}", streams=16, size=2)) for i in range(300)]
    pairs = list(combinations(shards, 2))
    shared = sum(one == other for one, other in pairs)
    assert shared / len(pairs) == pytest.approx(1 / 120, rel=0.25)
