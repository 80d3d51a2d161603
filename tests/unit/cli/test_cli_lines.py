import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from director.cli.arguments import EXIT_CODES, CommandParser
from director.cli.main import main, make_parser

PARSERS = {parser.prog: parser for parser in make_parser().all_of_it()}
COMMANDS = {prog: parser for prog, parser in PARSERS.items() if prog != "director"}
EXAMPLES = {prog: tuple(parser.examples) for prog, parser in COMMANDS.items()}
LEAVES = {prog: parser for prog, parser in COMMANDS.items() if parser.get_default("run") is not None}
# processes that log, a command that prints a script, and commands that write a report elsewhere
WITHOUT_JSON = {
    *("director up", "director down", "director api", "director run", "director keeper", "director audit"),
    *("director serve", "director schema", "director completion", "director version", "director chaos campaign"),
}


@pytest.mark.parametrize("prog", COMMANDS)
def test_help_of_every_command_has_description_and_example(prog: str) -> None:
    text = COMMANDS[prog].format_help()
    assert COMMANDS[prog].description
    assert "examples:\n" in text
    assert f"  {EXAMPLES[prog][0]}" in text


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_every_example_parses(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photo.png").touch()
    (tmp_path / "cat.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    _, *words = shlex.split(re.split(r" [<>] ", line)[0])
    assert callable(make_parser().parse_args(words).run)


def test_every_example_uses_its_own_command() -> None:
    assert [prog for prog, lines in EXAMPLES.items() if not all(line.startswith(prog) for line in lines)] == []


@pytest.mark.parametrize("prog", [prog for prog in LEAVES if prog not in WITHOUT_JSON])
def test_every_command_has_a_json_option(prog: str) -> None:
    assert [action for action in LEAVES[prog].arguments if "--json" in action.option_strings]


def test_exit_codes_match_their_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    def code(*line: str) -> int:
        try:
            return main(line)
        except SystemExit as ended:
            return int(str(ended.code))

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DIRECTOR_REDIS_URL", raising=False)
    found = {code("down"), code("queues"), code("nonsense")}
    monkeypatch.setattr("director.local.up.down", interrupted)
    assert found | {code("down")} == set(EXIT_CODES)


def is_a_command(words: Sequence[str]) -> bool:
    """Return whether the command line knows these words."""
    parser = make_parser()
    for word in words:
        if word.startswith("-") or not parser.commands:
            break
        if word not in parser.commands:
            return False
        parser = parser.commands[word]
    return True


def test_an_unknown_command_is_found() -> None:
    assert is_a_command(("queues", "resize", "acme"))
    assert not is_a_command(("queues", "mend"))
    assert not is_a_command(("heal",))


def completed(line: str, folder: Path, script: str) -> list[str]:
    """Return what a real bash offers at the end of this line."""
    (folder / "director.bash").write_text(script)
    words = line.split(" ")
    quoted = " ".join(map(shlex.quote, words))
    asked = (
        f"source ./director.bash; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; COMP_LINE={shlex.quote(line)}; "
        f"COMP_POINT=${{#COMP_LINE}}; "
        "f=$(complete -p director | sed 's/.*-F \\([^ ]*\\).*/\\1/'); $f director; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", asked], capture_output=True, text=True, cwd=folder, env={"PATH": os.environ["PATH"]}
    )
    return sorted(word.strip() for word in done.stdout.splitlines() if word.strip())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("director que", {"queues"}),
        ("director queues re", {"resize", "resume"}),
        ("director queues show --js", {"--json"}),
        ("director queues bound acme/painter ", {"absorb", "bounded", "reject"}),
        ("director account suspend team-a --policy ", {"hold", "end"}),
        ("director completion ", {"bash", "zsh", "fish"}),
        ("director run --config poo", {"pool.toml"}),
    ],
)
def test_bash_completes_commands_options_and_files(
    line: str, offered: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pool.toml").touch()
    assert main(["completion", "bash"]) == 0
    words = completed(line, tmp_path, capsys.readouterr().out)
    assert offered <= set(words)
    assert all(word.startswith(line.rpartition(" ")[2]) for word in words)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_scripts_name_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    said = capsys.readouterr().out
    assert not [name for name in make_parser().commands if name not in said]


def test_alias_is_not_listed_as_a_command() -> None:
    parser: CommandParser = make_parser()
    assert ("model" in parser.commands, "models" in parser.commands) == (True, False)
