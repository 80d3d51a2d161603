import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from director.core.devices import HOSTED
from director.core.pool_file import read_pool
from director.core.settings import DirectorSettings
from director.core.states import TERMINAL, TRANSITIONS
from director.core.view import REASONS
from director.operate.kinds import KINDS
from tests.site.commands import blocks_of
from tests.unit.test_house import MAY_IMPORT

ROOT = Path(__file__).parents[2]
FOLDERS = ("api", "director", "k8s", "lua", "tests")
READMES = [page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("README.md"))]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *READMES,
]
COMMAND_PAGES = [
    ROOT / "docs/tutorial.md",
    ROOT / "docs/troubleshooting.md",
    *sorted((ROOT / "docs/how-to").glob("*.md")),
    *sorted((ROOT / "docs/migrate").glob("*.md")),
]
REFERENCES = {ROOT / "docs/compatibility.md", ROOT / "docs/glossary.md"}
TO_READ = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "reference" not in page.parts]
MOST_WORDS = 1500
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
USERS = {"predict.py", "run.py"}  # a file of the reader's own
WRITTEN = re.compile(r"^<!-- file: (\S+) -->$", re.MULTILINE)  # by the reader, as the page shows
PYTHON_FILE = re.compile(r"`([\w/-]+\.py)`")
PLACEHOLDER = re.compile(r"\{\w+\}")
TREE_LINE = re.compile(r"^[│ ] {4}(\w+) +([\d,]+)   ", re.MULTILINE)
SWALLOWED = re.compile(r"^\n {2,}[^\s`].*\n(?:\d+\.|[-*]) .*", re.MULTILINE)  # needs an empty line before it
ARROW = re.compile(r"^ +(\S+) --> (\S+)$", re.MULTILINE)


def test_state_diagram_shows_exactly_the_table_of_transitions() -> None:
    drawn = set(ARROW.findall((ROOT / "docs/explanation/lifecycle.md").read_text(encoding="utf-8")))
    table = {(str(before), str(after)) for before, following in TRANSITIONS.items() for after in following}
    assert drawn == table | {("[*]", "starting")} | {(str(status), "[*]") for status in TERMINAL}


def test_troubleshooting_has_every_reason_to_wait() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    assert [reason for reason in REASONS if f"`{reason}`" not in page] == []


def test_page_of_findings_says_for_each_what_to_do() -> None:
    page = (ROOT / "docs/reference/findings.md").read_text(encoding="utf-8")
    titles = [PLACEHOLDER.sub("", kind.title).strip() for kind in KINDS.values()]
    assert [title for title in titles if f"{title}." not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_step_of_a_list_runs_into_the_paragraph_before_it(page: Path) -> None:
    assert SWALLOWED.findall(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", COMMAND_PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_how_to_is_run_or_left_out_with_a_reason(page: Path) -> None:
    """Run nothing: `tests/integration/local/test_pages.py` does. Here a wrong comment or language raises PageError."""
    assert all(block.text for block in blocks_of(page.read_text(encoding="utf-8")))


def test_an_indented_block_ends_where_its_lines_end() -> None:
    page = "- one:\n\n    echo 1\n\n    echo 2\n\nThen:\n\n```sh\necho 3\n```\n"
    assert [block.text for block in blocks_of(page)] == ["echo 1\n\necho 2\n", "echo 3\n"]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_there(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


@pytest.mark.parametrize("page", sorted(set(TO_READ) - REFERENCES), ids=name_of)
def test_page_to_read_has_at_most_1500_words(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").split()) <= MOST_WORDS, "split it, or move details to docs/reference"


@pytest.mark.parametrize("page", READMES, ids=name_of)
def test_readme_of_a_package_has_at_most_60_lines(page: Path) -> None:
    assert page.read_text(encoding="utf-8").count("\n") <= 60, "move what is more to docs/reference/internals"


def test_tree_in_the_readme_shows_every_package_with_its_lines() -> None:
    text = (ROOT / "director/README.md").read_text(encoding="utf-8")
    shown = {name: int(lines.replace(",", "")) for name, lines in TREE_LINE.findall(text)}
    packages = {path.parent.name: path.parent for path in (ROOT / "director").glob("*/__init__.py")}
    assert set(shown) == set(packages)
    for name, lines in shown.items():
        found = sum(path.read_bytes().count(b"\n") for path in packages[name].rglob("*.py"))
        assert abs(found - lines) <= max(found // 10, 100), f"{name} has {found:,} lines"
    engine = sum(list(shown.values())[:9])
    assert {round(engine, -3)} == {int(lines.replace(",", "")) for lines in re.findall(r"([\d,]+) lines", text)}


def test_table_of_packages_on_the_page_has_the_rows_of_the_test_of_imports() -> None:
    page = (ROOT / "docs/reference/internals/packages.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page.partition("## Packages")[2], re.MULTILINE)
    named = set(re.findall(r"`([\w.]+)`", "".join(rows)))
    not_in_test = {"lua", "director.examples"}
    assert named - not_in_test == set(MAY_IMPORT) - {"director", "director.lab"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not is_there(page, link)] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_python_file_named_on_a_page_exists(page: Path) -> None:
    """A name counts from the page's folder, from a package that is shipped, or from the repository's root."""
    roots = (page.parent, ROOT, ROOT / "director", ROOT / "api")
    text = page.read_text(encoding="utf-8")
    named = set(PYTHON_FILE.findall(text)) - USERS - set(WRITTEN.findall(text))
    assert [name for name in sorted(named) if not any((root / name).is_file() for root in roots)] == []


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="what builds the site is not installed: make docs")
def test_documentation_is_built_without_the_tools_of_the_tests() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {extra: {re.split(r"[^\w.-]", one)[0].lower() for one in extras[extra]} for extra in ("test", "docs")}
    only_of_tests = named["test"] - named["docs"]
    modules = [
        module for module, whose in packages_distributions().items() if {w.lower() for w in whose} & only_of_tests
    ]
    assert "pytest" in modules
    lines = ["import sys", f"sys.modules.update(dict.fromkeys({modules!r}))", "import tests.site.hooks"]
    built = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr


def test_page_of_the_pool_file_shows_files_that_a_director_takes(tmp_path: Path) -> None:
    page = (ROOT / "docs/reference/pool-file.md").read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        file = tmp_path / "pool.toml"
        file.write_text(example.replace("2f0c…", "2f0c" * 16), encoding="utf-8")
        assert read_pool(file, DirectorSettings()).tables


def test_page_of_the_pool_file_has_each_field_of_a_hosted_model() -> None:
    page = (ROOT / "docs/reference/pool-file.md").read_text(encoding="utf-8")
    assert [field for field in sorted(HOSTED) if f"`{field}`" not in page.partition("A `[[model]]` with")[2]] == []
