"""The frame of all commands: reads the line, runs one command, and turns what went wrong into one line and a code.

Exit codes are those of `lines.py`. Never shows a traceback for a fault that can be expected, and imports a command's
rooms only when it is called.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from director.cli import accounts, bench, dead, models, predictions, queues, serve, status, tail, trials
from director.cli.arguments import EXIT_CODES, CommandParser
from director.cli.output import leave_stdout, printable
from director.core.errors import DirectorError

FAILED: Final = 1
INTERRUPTED: Final = 130
GROUPS: Final = (serve, predictions, queues, status, tail, dead, accounts, models, trials, bench)
SHELLS: Final = ("bash", "zsh", "fish")
FILES: Final = frozenset({"FILE", "FILE|URL", "PROGRAM"})
FOLDERS: Final = frozenset({"DIR"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        return _run(argv)
    except DirectorError as exc:
        return _failed(str(exc))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `director … | head`: whoever read has had enough
        leave_stdout()
        return FAILED
    except OSError as exc:  # the disk that stdout goes to is full
        leave_stdout()
        return _failed(str(exc))


def _run(argv: Sequence[str] | None) -> int:
    try:
        given = made_parser().parse_args(argv)
        return int(given.run(given))
    finally:
        sys.stdout.flush()  # at exit Python would tell of what cannot be written in words and a code of its own


def _failed(text: str) -> int:
    print(f"director: {printable(text)}", file=sys.stderr)
    return FAILED


class _Version(argparse.Action):
    """Prints the version; it is looked up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from director import __version__

        print(__version__)
        parser.exit()


def made_parser() -> CommandParser:
    """All commands."""
    parser = CommandParser(
        prog="director",
        description="A self-hosted, Replicate-compatible prediction queue. Start with `director up`.",
        epilog="exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()),
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=CommandParser)
    for group in GROUPS:
        group.add(commands)
    completion = commands.add_parser(
        "completion",
        help="print a script with which a shell completes these commands",
        description="Print a script with which a shell completes commands and options. The examples show its place.",
        examples=(
            "director completion bash > ~/.local/share/bash-completion/completions/director",
            "director completion zsh > ~/.zfunc/_director",
            "director completion fish > ~/.config/fish/completions/director.fish",
        ),
    )
    completion.add_argument("shell", choices=SHELLS, help="the shell")
    completion.set_defaults(run=_completion)
    return parser


def _completion(given: argparse.Namespace) -> int:
    import shtab

    parser = made_parser()
    for each in parser.all_of_it():
        _complete_paths(each, file=shtab.FILE, folder=shtab.DIRECTORY)
    sys.stdout.write(shtab.complete(parser, shell=given.shell))
    return 0


def _complete_paths(parser: CommandParser, *, file: object, folder: object) -> None:
    for action in parser.arguments:
        if action.metavar in FILES:
            action.complete = file  # type: ignore[attr-defined]  # as shtab wants it
        elif action.metavar in FOLDERS:
            action.complete = folder  # type: ignore[attr-defined]
