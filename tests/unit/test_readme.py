import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_command_that_the_readme_shows_is_found_after_make_up() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert [line for line in lines if re.search(r"(^ {4}|^|`)director [a-z]", line)] == []


def test_readme_is_two_screens_and_begins_with_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= 150
    assert re.findall(r"^make \w+$", text, re.MULTILINE) == ["make up", "make test"]
    assert text.index("make up") < text.index("make test") < text.index("director serve")


def test_description_of_the_package_has_no_link_that_needs_the_repository() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["readme"]["content-type"] == "text/markdown"
    links = re.findall(r"\]\(([^)]*)\)", project["readme"]["text"])
    assert [link for link in links if "://" not in link] == []


def test_every_script_has_a_row_on_the_page_of_the_scripts() -> None:
    page = (ROOT / "docs/reference/internals/scripts.md").read_text()
    listed = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE))))
    assert listed == {path.stem for path in (ROOT / "lua").glob("*.lua")}
