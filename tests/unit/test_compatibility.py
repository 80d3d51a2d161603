"""Test that docs/compatibility.md has a row for all that is tried, and no fault of ours."""

import pytest

from tests.support.compatibility import HAS_NO, NONE, PAGE, TABLES, YES, Table, shown_rows


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_page_shows_every_row_and_explains_each_no(table: Table) -> None:
    rows = shown_rows(table, PAGE.read_text())
    assert list(rows) == list(table.rows)
    for row, (works, _) in rows.items():
        heads = works.partition(f". {HAS_NO}")[2].split("; ")
        assert works == table.said(row, [name for name, head in table.columns.items() if head in heads])


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_fault_without_a_reason_fails(table: Table) -> None:
    row, name = table.rows[-1], next(iter(table.columns))
    with pytest.raises(AssertionError, match="cannot"):
        table.works(row, {name: "TypeError: it broke"})


def test_reason_that_is_over_fails() -> None:
    table = Table(name="t", columns={"run": "run"}, rows=("a",), theirs={("a", "run"): "it cannot"})
    assert table.works("a", {"run": "TypeError"}) == "all but run: it cannot"
    with pytest.raises(AssertionError, match="remove its reason"):
        table.works("a", {"run": YES})


def test_row_says_what_works_and_what_it_does_not_have() -> None:
    table = Table(name="t", columns={"run": "run", "stream": "stream", "files": "files in and out"}, rows=("a",))
    assert table.works("a", {"run": YES, "stream": YES, "files": YES}) == "all"
    assert table.works("a", {"run": YES, "stream": NONE}) == "all. It has no: stream; files in and out"
