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
        *((asked, None) for asked in ("", "bytes", "bytes=-", "bytes=5-2", "bytes=0-1,3-4", "items=0-1")),
        *((asked, None) for asked in ("bytes=a-b", "bytes=²-3", "bytes=--1")),
    ],
)
def test_only_a_single_range_is_a_part(asked: str, part: tuple[int, int] | None) -> None:
    assert part_of(asked, 10) == part


@pytest.mark.parametrize(
    ("asked", "size"), [("bytes=10-", 10), ("bytes=-0", 10), ("bytes=9" + "9" * 17 + "-", 10), ("bytes=-1", 0)]
)
def test_a_range_beyond_the_end_has_no_byte(asked: str, size: int) -> None:
    start, stop = part_of(asked, size) or (0, 1)
    assert start >= stop
