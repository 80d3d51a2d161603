import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_each_figure_of_the_results_is_in_the_measurements() -> None:
    """The short page is written by hand. Where a new campaign or bench is kept, this says which figure to change."""
    measured = (DOCS / "reference/internals/measurements.md").read_text(encoding="utf-8")
    figures = re.findall(r"\*\*([\d,.]+)(?: m?s)?\*\*", (DOCS / "results.md").read_text(encoding="utf-8"))
    assert len(figures) > 15
    assert [one for one in figures if not re.search(rf"(?<![\d.,]){re.escape(one)}(?![\d.,]\d)", measured)] == []


def test_first_figures_of_the_start_page_are_those_of_the_results() -> None:
    results = (DOCS / "results.md").read_text(encoding="utf-8")
    for page in (DOCS / "index.md", DOCS.parent / "README.md"):
        text = page.read_text(encoding="utf-8")
        found = re.search(r"([\d,]+) accepted predictions met ([\d,]+) faults", text)
        assert found, page
        assert all(f"**{one}**" in results for one in found.groups())


def test_example_of_the_page_of_scale_has_the_figures_of_its_table() -> None:
    page = (DOCS / "explanation/capacity.md").read_text(encoding="utf-8")
    example, _, rest = page.partition("## Where each limit is")
    [whole] = re.findall(
        r"^\| one node of 16 GB \| ([\d,]+) for .*; ([\d,]+) by Redis's time \| ([\d,]+) that wait", rest, re.MULTILINE
    )
    [daily] = re.findall(r"^\| the same, records for a day \| ([\d,]+) for ever", rest, re.MULTILINE)
    kept, rate, waiting = (int(figure.replace(",", "")) for figure in whole)
    for figure in (
        f"some {round(rate, -2):,} predictions",
        f"at {kept} a second",
        f"it is {daily}.",
        f"{waiting / 1e6:.1f} million",
    ):
        assert figure in example
