"""The pages say what the code does: the diagram follows the table, and every link leads to a file."""

import re
from pathlib import Path

import pytest

from director.core.states import TERMINAL, TRANSITIONS

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
ARROW = re.compile(r"^ +(\S+) --> (\S+)$", re.MULTILINE)


def test_state_diagram_shows_exactly_the_table_of_transitions() -> None:
    drawn = set(ARROW.findall((ROOT / "docs/lifecycle.md").read_text(encoding="utf-8")))
    table = {(str(before), str(after)) for before, following in TRANSITIONS.items() for after in following}
    assert drawn == table | {("[*]", "starting")} | {(str(status), "[*]") for status in TERMINAL}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
