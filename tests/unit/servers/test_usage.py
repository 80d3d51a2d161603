import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from director.core.json_pointer import Pointer
from director.core.runner_config import BatchConfig
from director.servers.runners.http import MOST, split, split_usage

WEIGHTS = st.lists(st.floats(0, 1e6), min_size=1, max_size=64)


@given(st.integers(0, MOST), WEIGHTS)
def test_whole_numbers_stay_whole_and_add_up(total: int, weights: list[float]) -> None:
    parts = split(total, weights)
    assert sum(parts) == total
    assert all(isinstance(part, int) and part >= 0 for part in parts)


@given(st.integers(0, 10**9), WEIGHTS)
def test_each_part_is_within_one_unit_of_its_share(total: int, weights: list[float]) -> None:
    everything = sum(weights)
    for part, weight in zip(split(total, weights), weights, strict=True):
        share = total * weight / everything if everything > 0 else total / len(weights)
        assert abs(part - share) <= 1.001


def test_fractions_are_split_in_proportion() -> None:
    assert split(1.5, [1, 2]) == [0.5, 1.0]


ITEMS = [Raw(b'{"t":1}'), Raw(b'{"t":3}')]


@pytest.mark.parametrize(
    ("share", "items", "parts"),
    [
        ("/t", ITEMS, [2, 6]),
        (None, ITEMS, [4, 4]),
        ("/t", [ITEMS[0], Raw(b"{}")], [4, 4]),
        ("/t", [ITEMS[0], Raw(b'{"t":-1}')], [4, 4]),
    ],
)
def test_shares_are_used_if_every_item_has_one(share: str | None, items: list[Raw], parts: list[int]) -> None:
    batch = BatchConfig(usage={"n": Pointer("/n")}, share=None if share is None else Pointer(share))
    used = split_usage(Raw(b'{"n":8}'), {}, items, batch, [1.0, 1.0])
    assert [msgspec.json.decode(each["n"]) for each in used] == parts


@pytest.mark.parametrize("told", [b"null", b'"8"', b"-8", b"1e400", b"true", b"[]", b"4647224792230222"])
def test_invalid_usage_is_dropped(told: bytes) -> None:
    batch = BatchConfig(usage={"n": Pointer("/n")}, usage_headers={"m": "x-m"})
    headers = {"x-m": told.decode()}
    assert split_usage(Raw(b'{"n":%s}' % told), headers, ITEMS, batch, [1.0, 1.0]) == [{}, {}]


def test_costs_are_the_weights_without_shares() -> None:
    batch = BatchConfig(usage_headers={"m": "x-m"})
    used = split_usage(Raw(b"[]"), {"x-m": "10"}, ITEMS, batch, [1.0, 4.0])
    assert used == [{"m": Raw(b"2")}, {"m": Raw(b"8")}]
