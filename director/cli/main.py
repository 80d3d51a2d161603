"""The entry of `director`: it parses the line, runs one command, and turns a fault into one line and an exit code.

An expected fault shows no traceback. The exit codes are in arguments.py.
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
    """Run one command and return its exit code."""
    try:
        return _run(argv)
    except DirectorError as exc:
        return _failed(str(exc))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `director … | head`: the reader has closed the pipe
        leave_stdout()
        return FAILED
    except OSError as exc:  # for example a full disk behind stdout
        leave_stdout()
        return _failed(str(exc))


def _run(argv: Sequence[str] | None) -> int:
    try:
        given = made_parser().parse_args(argv)
        return int(given.run(given))
    finally:
        sys.stdout.flush()  # Python would flush at exit, and report a failure with its own words and code


def _failed(text: str) -> int:
    print(f"director: {printable(text)}", file=sys.stderr)
    return FAILED


class _Version(argparse.Action):
    """Print the version, which is looked up only here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from director import __version__

        print(__version__)
        parser.exit()


def made_parser() -> CommandParser:
    """Return the parser of all commands."""
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
