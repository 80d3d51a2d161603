import pytest

from api.files.outputs import part_of


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=2-5", (2, 6)),
        ("bytes=2-", (2, 10)),
        ("bytes=2-99", (2, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-99", (0, 10)),
        (" bytes=0-9 ", (0, 10)),
    ],
)
def test_a_range_is_a_part(asked: str, part: tuple[int, int]) -> None:
    assert part_of(asked, 10) == part


@pytest.mark.parametrize(
    "asked", ["", "bytes", "bytes=-", "bytes=5-2", "bytes=0-1,3-4", "items=0-1", "bytes=a-b", "bytes=²-3", "bytes=--1"]
)
def test_what_is_no_single_range_asks_for_all_of_it(asked: str) -> None:
    assert part_of(asked, 10) is None


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=10-12", "bytes=-0", "bytes=999999999999999999-"])
def test_a_range_beyond_the_end_has_no_byte(asked: str) -> None:
    start, stop = part_of(asked, 10) or (0, 1)
    assert start >= stop


@pytest.mark.parametrize("asked", ["bytes=0-", "bytes=-1", "bytes=0-0"])
def test_an_empty_file_has_no_parts(asked: str) -> None:
    start, stop = part_of(asked, 0) or (0, 1)
    assert start >= stop
