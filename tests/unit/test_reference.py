import re
from pathlib import Path
from typing import Final

import pytest

from api.app import ROUTES
from api.web.errors import Code
from api.web.reference import CHAPTERS
from director.cli.main import GROUPS
from director.core.settings import describe
from director.core.states import END_CODES, Status, WebhookEvent
from director.core.view import PAUSED, REASONS
from director.execution.tracker import DRAINED, FAULTS, STOPS, VERDICTS
from director.operate.kinds import CODES, KINDS
from director.runtime.metric_table import METRICS
from director.servers.runners.answers import SERVER_AUTH
from director.servers.runners.http import MISMATCH
from tests.site.reference import (
    MADE,
    PARTS,
    PLACES,
    PROCESSES,
    ROOT,
    command_index,
    filled,
    leaves,
    option_rows,
    statuses_of_codes,
    texts_below,
)

DOCS: Final = ROOT / "docs"
PAGES: Final = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
ASKED: Final = [found for text in PAGES.values() for found in MADE.findall(text)]
REFERENCE: Final = "\n".join(filled(text) for name, text in PAGES.items() if name.startswith("reference/"))


def test_each_part_is_on_a_page_and_each_page_asks_for_known_parts() -> None:
    assert {name for name, _ in ASKED} == set(PARTS)
    assert len(set(ASKED)) == len(ASKED)
    assert "<!-- made" not in REFERENCE


def test_each_chapter_of_the_api_is_on_one_page() -> None:
    assert sorted(chapter for name, chapter in ASKED if name == "http") == sorted(CHAPTERS)


def test_each_group_of_commands_is_on_a_page_of_its_own() -> None:
    pages = {f"reference/cli/{group.replace(' ', '-')}.md": f"<!-- made: commands ({group}) -->" for group in GROUPS}
    assert {page for page in PAGES if page.startswith("reference/cli/")} == set(pages)
    assert [page for page, part in pages.items() if part not in PAGES[page]] == []


def test_anchor_of_each_command_on_the_index_is_that_of_its_page() -> None:
    """So an address from before the commands had pages leads to the link of its command."""
    found = re.findall(r"\[`([\w -]+)`\]\((cli/[\w-]+\.md)#([\w-]+)\)\{ #([\w-]+) \.whole \}", command_index())
    assert sorted(name for name, *_ in found) == sorted(leaves())
    for name, page, there, here in found:
        assert there == here == f"director-{name.replace(' ', '-')}"
        assert f"## `director {name}`" in filled(PAGES[f"reference/{page}"])


def test_each_route_is_in_the_reference() -> None:
    assert [route.name for route in ROUTES if route.name and f"{{ #{route.name} }}" not in REFERENCE] == []


@pytest.mark.parametrize("process", PROCESSES)
def test_each_setting_is_in_the_reference_with_its_meaning(process: str) -> None:
    for name, _, text in describe(PROCESSES[process]):
        assert f"| `{name}` |" in REFERENCE
        assert text.endswith((".", "`.")), name


@pytest.mark.parametrize("name", leaves())
def test_each_command_and_option_is_in_the_reference_with_its_meaning(name: str) -> None:
    parser = leaves()[name]
    assert f"## `director {name}`" in REFERENCE
    assert parser.description
    assert parser.examples
    assert [what for what, meaning in option_rows(parser) if not meaning or "%(" in meaning] == []


def test_each_metric_is_in_the_reference() -> None:
    assert [metric.name for metric in METRICS if f"| `{metric.name}` |" not in REFERENCE] == []


def test_each_code_status_and_event_has_a_meaning() -> None:
    for words in (Code, Status, WebhookEvent):
        texts = texts_below(words)
        assert set(texts) == set(words)
        assert [word for word in words if f"| `{word}` |" not in REFERENCE or not texts[word].endswith(".")] == []
    assert [code for code, text in END_CODES.items() if f"| `{code}` |" not in REFERENCE or not text] == []


def test_each_reason_and_finding_is_in_the_reference() -> None:
    reasons = set(REASONS) - set(PAUSED.values()) - {"overloaded"}
    assert [word for word in (*reasons, *CODES) if f"| `{word}` |" not in REFERENCE] == []
    assert set(KINDS) == set(CODES)


def test_each_code_is_the_code_of_a_refusal() -> None:
    assert set(statuses_of_codes()) == set(Code)


def test_codes_of_ends_are_those_that_the_code_gives() -> None:
    """The tables of the tracker, and the words in Lua and in the executor."""
    given = {fault.code for fault in FAULTS.values()} | {code for _, code, _ in STOPS.values()} | {DRAINED.code}
    given |= {code for code, _ in VERDICTS.values()} | {SERVER_AUTH, MISMATCH}
    word = re.compile(r"""\bcode(?:, why)? ?= ?['"]([a-z_]+)['"]""")
    sources = [*(ROOT / "lua").rglob("*.lua"), *(ROOT / "director/execution").glob("*.py")]
    given |= {code for path in sources for code in word.findall(path.read_text(encoding="utf-8"))}
    assert given - {""} == set(END_CODES)


def test_drawing_has_a_place_for_each_status() -> None:
    assert set(PLACES) == set(Status)


def test_sections_of_the_site_are_in_order() -> None:
    order = ["Start", "Tutorial", "How-to", "Reference", "Explanation", "Migrate", "Troubleshooting", "Glossary"]
    found = re.findall(r"^  - ([A-Z][\w-]+):", Path(ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found == [section for section in order if section in found]
    assert set(found) <= set(order)
