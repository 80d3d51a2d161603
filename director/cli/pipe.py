"""Print: JSON for machines, text that steers no terminal, and to somebody who may have had enough: `director … | head`.

Never ends a command that has more to do than to print: what has nobody to read it any more goes nowhere.
"""

import json
import os
import sys
from typing import Final, TextIO
from unicodedata import category

__all__ = ("harmless", "json_line", "leave_stdout", "print_json", "printable", "say")

UNPRINTABLE: Final = "\N{REPLACEMENT CHARACTER}"
SPACE: Final = "Zs"  # of every width; Python calls only one of them printable, and so do we
KEPT: Final = "\n\t"


def print_json(body: object) -> None:
    """One line for machines. What is JSON already, as `Raw`, stays as it is."""
    print(json_line(body))


def json_line(body: object) -> str:
    """The same as text. On a terminal what would steer it is escaped: another way to write the same JSON."""
    import msgspec

    line = msgspec.json.encode(body).decode()
    if line.isascii() or not sys.stdout.isatty():
        return line
    return "".join(one if one.isascii() or one.isprintable() else json.dumps(one)[1:-1] for one in line)


def printable(line: str) -> str:
    """A line that a terminal shows and does not obey: part of it may be the words of a model or a caller."""
    return "".join(one if one.isprintable() else " " if category(one) == SPACE else UNPRINTABLE for one in line)


def harmless(text: str, to: TextIO) -> str:
    """The words of a model or a caller, as `printable` where they go to a terminal; elsewhere they are as they are."""
    if not to.isatty():
        return text
    lines = text.replace("\r\n", "\n").replace("\r", "\n")  # a bar of progress is drawn anew on a line of its own
    return "".join(one if one in KEPT else printable(one) for one in lines)


def say(line: str) -> None:
    """Print a line at once."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        leave_stdout()


def leave_stdout() -> None:
    """From here on stdout leads nowhere. Python would complain at exit of what it could not flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
