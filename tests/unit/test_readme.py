import re
from pathlib import Path

from director.core.settings import (
    ApiSettings,
    AuditSettings,
    CommonSettings,
    DirectorSettings,
    KeeperSettings,
    described,
)
from tests.bench.tables import put_into

ROOT = Path(__file__).parents[2]
PROCESSES = {"api": ApiSettings, "director": DirectorSettings, "keeper": KeeperSettings, "audit": AuditSettings}


def settings_table() -> str:
    """The README's table of settings, as the code has it."""
    rows: dict[str, tuple[str, str, list[str]]] = {}
    for process, cls in PROCESSES.items():
        for name, default, text in described(cls):
            row = rows.setdefault(name, (default, text, []))
            row[2].append(process)
    common = {name for name, _, _ in described(CommonSettings)}
    lines = ["| variable | default | what | read by |", "|---|---|---|---|"]
    for name, (default, text, processes) in rows.items():
        readers = "all" if name in common else ", ".join(processes)
        lines.append(f"| `{name}` | {f'`{default}`' if default else ''} | {text} | {readers} |")
    return "\n".join(lines)


def test_the_settings_table_is_what_the_code_reads() -> None:
    readme = (ROOT / "README.md").read_text()
    made = put_into(readme, "settings", settings_table())
    assert readme == made, "put the table that settings_table() makes into README.md"


def test_a_command_that_the_readme_shows_is_found_after_make_up() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    bare = [line for line in lines if re.search(r"(^ {4}|`)director [a-z]", line)]
    assert [line for line in bare if not line.startswith("| `director ")] == [], "the table names processes"


def test_every_script_has_a_row_in_the_readme_of_its_package() -> None:
    listed = set(
        re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", (ROOT / "lua/README.md").read_text(), re.M)))
    )
    assert listed == {path.stem for path in (ROOT / "lua").glob("*.lua")}
