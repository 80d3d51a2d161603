"""The frame of all commands: reads the line, runs one command, and turns what went wrong into one line and a code.

Exit codes are those of `lines.py`. Never shows a traceback for a fault that can be expected, and imports a command's
rooms only when it is called.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from director.cli import (
    accounts,
    audit_log,
    bench,
    chaos,
    completion,
    dead,
    directors,
    doctor,
    explain,
    models,
    predictions,
    queues,
    scale,
    serve,
    simulate,
    tail,
    tokens,
    top,
    up,
)
from director.cli.arguments import EXIT_CODES, CommandParser
from director.cli.output import leave_stdout, printable
from director.core.errors import DirectorError

FAILED: Final = 1
INTERRUPTED: Final = 130
GROUPS: Final = (
    up,
    predictions,
    explain,
    queues,
    scale,
    directors,
    top,
    tail,
    dead,
    doctor,
    tokens,
    accounts,
    models,
    serve,
    audit_log,
    simulate,
    bench,
    chaos,
    completion,
)


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
    return parser
