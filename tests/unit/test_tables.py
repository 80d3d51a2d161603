"""Tables of the command line: whole where nobody looks, and never wider than the terminal where somebody does."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from director.cli.output import cut, fitted, folded

NAMES = ("queue", "waiting", "state")
WORDS = ("queue", "state")
ROWS = [("acme/a-model-with-a-long-name:0123456789ab", "1000000", "serving"), ("a/b:0123456789ab", "7", "paused")]


def table(width: int | None) -> list[str]:
    return fitted(NAMES, ROWS, width=width, words=WORDS)


def test_where_nobody_looks_all_of_it_is_there() -> None:
    assert table(None) == [
        "queue                                       waiting  state",
        "acme/a-model-with-a-long-name:0123456789ab  1000000  serving",
        "a/b:0123456789ab                                  7  paused",
    ]


def test_what_is_too_wide_loses_the_middle_of_its_longest_words_and_no_digit() -> None:
    assert table(40) == [
        "queue                    waiting state",
        "acme/a-model-wi…456789ab 1000000 serving",
        "a/b:0123456789ab               7 paused",
    ]


def test_where_it_fits_nothing_is_cut() -> None:
    assert table(61) == table(None)


@given(st.integers(1, 100), st.lists(st.tuples(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))))
def test_no_line_is_wider_than_the_terminal_and_none_steers_it(width: int, rows: list[Any]) -> None:
    lines = fitted(NAMES, rows, width=width, words=WORDS)
    assert len(lines) == len(rows) + 1
    assert all(cell_len(line) <= width and line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("text", "width", "left"),
    [
        ("short", 5, "short"),
        ("a shorter one", 7, "a sh…ne"),
        ("abc", 1, "…"),
        ("モデルの名前", 7, "モデ…前"),
        ("acme/model-006:0123456789ab", 19, "acme/model-006:012…"),
        ("acme/model-006:0123456789ab~training", 27, "acme/model-006:01…~training"),
        ("acme/model-006:0123456789ab", 17, "acme/model…6789ab"),
        ("ab", 0, ""),
    ],
)
def test_a_text_is_cut_in_its_middle_by_the_columns_that_it_takes(text: str, width: int, left: str) -> None:
    assert cut(text, width) == left
    assert cell_len(left) <= width


def test_a_sentence_goes_on_below_itself_and_nothing_of_it_is_lost() -> None:
    line = "ok    memory  there is room for all that waits, twice"
    assert folded([line], hang=14, width=35) == ("ok    memory  there is room for all\n              that waits, twice")
    assert folded([line], hang=14, width=None) == line


@given(st.lists(st.text(st.characters(codec="ascii", min_codepoint=32), max_size=99)), st.integers(8, 60))
def test_no_sentence_is_wider_than_the_terminal(lines: list[str], width: int) -> None:
    assert all(len(line) <= width for line in folded(lines, hang=20, width=width).split("\n"))
