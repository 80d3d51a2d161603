import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_command_that_the_readme_shows_is_found_after_make_up() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    bare = [line for line in lines if re.search(r"(^ {4}|`)director [a-z]", line)]
    assert [line for line in bare if not line.startswith("| `director ")] == [], "the table names processes"


def test_every_script_has_a_row_in_the_readme_of_its_package() -> None:
    listed = set(
        re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", (ROOT / "lua/README.md").read_text(), re.M)))
    )
    assert listed == {path.stem for path in (ROOT / "lua").glob("*.lua")}
