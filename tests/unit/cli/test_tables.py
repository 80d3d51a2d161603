from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from director.cli.tables import cut, fit, fold

NAMES = ("queue", "waiting", "state")
WORDS = ("queue", "state")
ROWS = [("acme/a-model-with-a-long-name:0123456789ab", "1000000", "serving"), ("a/b:0123456789ab", "7", "paused")]


def table(width: int | None) -> list[str]:
    return fit(NAMES, ROWS, width=width, words=WORDS)


def test_table_without_a_terminal_is_whole() -> None:
    assert table(None) == [
        "queue                                       waiting  state",
        "acme/a-model-with-a-long-name:0123456789ab  1000000  serving",
        "a/b:0123456789ab                                  7  paused",
    ]


def test_narrow_table_cuts_the_middle_of_names_and_no_number() -> None:
    assert table(40) == [
        "queue                    waiting state",
        "acme/a-model-wi…ong-name 1000000 serving",
        "a/b:0123456789ab               7 paused",
    ]


def test_fitting_table_is_not_cut() -> None:
    assert table(61) == table(None)


@given(st.integers(1, 100), st.lists(st.tuples(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))))
def test_table_lines_fit_the_terminal_and_cannot_control_it(width: int, rows: list[Any]) -> None:
    lines = fit(NAMES, rows, width=width, words=WORDS)
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
        ("acme/model-006:0123456789ab", 17, "acme/model-006"),
        ("acme/model-006:0123456789ab", 10, "acme/m…006"),
        ("ab", 0, ""),
    ],
)
def test_text_is_cut_in_its_middle_by_terminal_columns(text: str, width: int, left: str) -> None:
    assert cut(text, width) == left
    assert cell_len(left) <= width


def test_long_sentence_continues_below_without_loss() -> None:
    line = "ok    memory  there is room for all that waits, twice"
    assert fold([line], hang=14, width=35) == ("ok    memory  there is room for all\n              that waits, twice")
    assert fold([line], hang=14, width=None) == line


@given(st.lists(st.text(st.characters(codec="ascii", min_codepoint=32), max_size=99)), st.integers(8, 60))
def test_folded_sentences_fit_the_terminal(lines: list[str], width: int) -> None:
    assert all(len(line) <= width for line in fold(lines, hang=20, width=width).split("\n"))
