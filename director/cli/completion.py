"""`director completion`: a script that lets a shell complete command lines of `director`, made from its parser."""

import argparse
import sys
from typing import Final

from director.cli.arguments import CommandParser, Commands

SHELLS: Final = ("bash", "zsh", "fish")
FILES: Final = frozenset({"FILE", "FILE|URL", "PROGRAM"})
FOLDERS: Final = frozenset({"DIR"})


def add(commands: Commands) -> None:
    """Add the command of this file."""
    completion = commands.add_parser(
        "completion",
        help="print a script with which a shell completes these commands",
        description="Print a script with which a shell completes commands and options. Where it goes: see below.",
    )
    completion.add_argument("shell", choices=SHELLS, help="for which shell")
    completion.set_defaults(run=_completion)


def _completion(given: argparse.Namespace) -> int:
    import shtab

    from director.cli.main import made_parser

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
