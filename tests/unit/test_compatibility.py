"""Test that docs/compatibility.md has a row for all that is tried, and no fault of ours."""

import pytest

from tests.support.compatibility import NONE, PAGE, TABLES, YES, Table, shown_rows


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_page_shows_every_row_and_explains_each_no(table: Table) -> None:
    rows = shown_rows(table, PAGE.read_text())
    assert list(rows) == list(table.rows)
    for row, cells in rows.items():
        for name, cell in zip(table.columns, cells, strict=False):
            why = table.theirs.get((row, name))
            assert cell in ((f"no: {why}",) if why else (YES, NONE)), (row, name)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_fault_without_a_reason_fails(table: Table) -> None:
    row, name = table.rows[-1], next(iter(table.columns))
    with pytest.raises(AssertionError, match="cannot"):
        table.cells(row, {name: "TypeError: it broke"})


def test_reason_that_is_over_fails() -> None:
    table = Table(name="t", columns={"run": "run"}, rows=("a",), theirs={("a", "run"): "it cannot"})
    assert table.cells("a", {"run": "TypeError"}) == ["no: it cannot"]
    with pytest.raises(AssertionError, match="remove its reason"):
        table.cells("a", {"run": YES})
