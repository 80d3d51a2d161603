"""Run the commands of the tutorial and the how-tos as a reader pastes them, in order, in a scratch folder."""

import json
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from director.local.launcher.processes import free_port
from tests.integration.local.test_up import director, environment, started, until
from tests.site.commands import PageError, Terminals, blocks_of

pytestmark = [pytest.mark.cog, pytest.mark.faults]

ROOT = Path(__file__).parents[3]
TUTORIAL = ROOT / "docs/tutorial.md"
FIRST = ROOT / "docs/how-to/index.md"  # sets the variables that the others use
HOW_TOS = sorted({*(ROOT / "docs/how-to").glob("*.md"), *(ROOT / "docs/migrate").glob("*.md")} - {FIRST})
HOW_TOS += [ROOT / "docs/troubleshooting.md", ROOT / "docs/nights-work.md"]


def terminals(folder: Path, **instead: str) -> Terminals:
    paths = f"{Path(sys.executable).parent}:{environment()['PATH']}"
    ports = {shown: str(free_port()) for shown in ("8080", "9000", "9001", "9002")}
    left_out = {name: value for name, value in environment().items() if not name.startswith("REPLICATE_")}
    # all directors of this machine would have one folder, and a second reader of a page would be refused its devices
    own = {"PATH": paths, "NO_COLOR": "1", "DIRECTOR_DEVICES_DIR": str(folder / "devices")}
    return Terminals(folder, left_out | own, ports | instead)


@pytest.fixture
def scratch(tmp_path: Path) -> Generator[Path, None, None]:
    """Start a service for one page: `director doctor` of one page finds the failed runs of another."""
    with started(tmp_path / ".director"):
        yield tmp_path


@pytest.mark.parametrize(("page", "least"), [(TUTORIAL, 12), (ROOT / "README.md", 3)], ids=["tutorial", "README"])
def test_page_that_begins_with_nothing_does_what_it_says(tmp_path: Path, page: Path, least: int) -> None:
    reader = terminals(tmp_path)
    try:
        assert reader.run(page.read_text(encoding="utf-8")) >= least
    finally:
        reader.close()
        director("down", home=tmp_path / ".director")


@pytest.mark.parametrize("page", HOW_TOS, ids=lambda page: page.stem)
def test_commands_of_a_how_to_work(page: Path, scratch: Path) -> None:
    state = json.loads((scratch / ".director/up.json").read_bytes())
    reader = terminals(scratch, **{"8080": state["url"].rpartition(":")[2], "dr_…": state["token"]})
    try:
        reader.run(FIRST.read_text(encoding="utf-8"))
        reader.run(page.read_text(encoding="utf-8"))
    finally:
        reader.close()


@pytest.mark.parametrize(
    "page",
    [
        "<!-- exit: 1 -->\n```sh\nfalse\n```\n",
        "```rust\nfn main() {}\n```\n",
        "text\n\n    false\n",
        "```sh\ntrue\n```\n\n<!-- exits: 1 -->\n",
        "```sh\necho one\n```\n\n```text\ntwo\n```\n",
        "<!-- run as: true -->\n```sh\nfalse\n```\n",
        "<!-- background until: ready -->\n```sh\necho red\n```\n",
    ],
)
def test_runner_refuses_what_does_not_run(page: str, tmp_path: Path) -> None:
    reader = terminals(tmp_path)
    try:
        with pytest.raises(PageError):
            reader.run(page)
    finally:
        reader.close()


def test_block_that_is_left_out_has_its_reason() -> None:
    [block] = blocks_of("<!-- page not run: needs Docker -->\n\ntext\n\n    docker ps\n")
    assert (block.language, block.text, block.hows) == ("", "docker ps\n", {"page not run": "needs Docker"})


def test_reader_does_not_take_what_an_earlier_page_showed_for_its_own(tmp_path: Path) -> None:
    earlier, later = terminals(tmp_path), terminals(tmp_path)
    try:
        earlier.run("<!-- background until: ready -->\n```sh\necho ready\n```\n")
        with pytest.raises(PageError):
            later.run("<!-- background until: ready -->\n```sh\necho red\n```\n")
    finally:
        earlier.close()
        later.close()


def test_what_a_page_begins_with_an_ampersand_ends_with_it(tmp_path: Path) -> None:
    reader = terminals(tmp_path)
    reader.run("<!-- background until: up -->\n```sh\nsleep 600 &\necho $! > pid; echo up; wait\n```\n")
    reader.close()
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text())
