"""Text that cannot control a terminal or a spreadsheet, and a stdout whose reader may be gone (`director … | head`)."""

import os
import sys
from typing import Any, Final, TextIO
from unicodedata import category

from director.core.errors import FULL

UNPRINTABLE: Final = "\N{REPLACEMENT CHARACTER}"
SPACE: Final = "Zs"  # spaces of any width; isprintable() accepts only U+0020
KEPT: Final = "\n\t"
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")  # a spreadsheet runs a cell that begins so


def printable(line: str) -> str:
    """Return a line without characters that control a terminal. Models and callers wrote part of it."""
    return "".join(one if one.isprintable() else " " if category(one) == SPACE else UNPRINTABLE for one in line)


def harmless(text: str, to: TextIO) -> str:
    """Return a text of a model or a caller: as `printable` for a terminal, unchanged for anything else."""
    if not to.isatty():
        return text
    lines = text.replace("\r\n", "\n").replace("\r", "\n")  # a progress bar draws itself again on a new line
    return "".join(one if one in KEPT else printable(one) for one in lines)


def as_cell(value: Any) -> Any:
    """Return a value for a CSV. No text of a model or a caller becomes a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else "" if value is None else value


def say(line: str) -> None:
    """Print a line at once. A closed pipe or a full disk does not end a command that still has work to do. A part wrote
    some of it, such as the last line of a model server.
    """
    try:
        print(harmless(line, sys.stdout), flush=True)
    except BrokenPipeError:
        leave_stdout()
    except OSError as exc:
        if exc.errno not in FULL:
            raise


def leave_stdout() -> None:
    """Send stdout to /dev/null, because Python would report at exit that it could not flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
