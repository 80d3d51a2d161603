"""Test how halves of surrogate pairs in the JSON of a model server are read."""

import random

import pytest

from director.servers.runners.answers import ESCAPE, read_json

HALF = "\ufffd"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (rb"\ud83d", HALF),
        (rb"\ude00\ud83d\ude00", HALF + "😀"),
        (rb"\ud83d\ud83d\ude00", HALF + "😀"),
        (rb"\\ud83d", "\\ud83d"),
        (rb"\\\ud83d", "\\" + HALF),
        (rb"\"\ud83d\n", '"' + HALF + "\n"),
        (rb"\u4e2d\ud83d", "中" + HALF),
    ],
)
def test_half_of_a_pair_is_replaced_and_all_else_stays(text: bytes, read: str) -> None:
    assert read_json(b'"' + text + b'"', str) == read


def test_any_mix_of_escapes_can_be_read() -> None:
    chosen = random.Random(4)
    parts = [rb"\\", rb"\ud83d", rb"\ude00", b"a", rb"\n", rb"\"", rb"\u4e2d", b"ud83d"]
    for _ in range(2_000):
        assert "\ud83d" not in read_json(b'"' + b"".join(chosen.choices(parts, k=9)) + b'"', str)


def test_escapes_of_other_letters_cost_no_call() -> None:
    assert ESCAPE.search(rb"\u4e2d\n\"\/" * 1_000) is None
    assert len(ESCAPE.findall(rb"\ud83d\ude00" * 1_000)) == 1
