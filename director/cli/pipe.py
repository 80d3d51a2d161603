"""Print: JSON for machines, text that steers no terminal, and to somebody who may have had enough: `director … | head`.

Never ends a command that has more to do than to print: what has nobody to read it any more goes nowhere.
"""

import os
import sys
from typing import Final

__all__ = ("leave_stdout", "print_json", "printable", "say")

UNPRINTABLE: Final = "\N{REPLACEMENT CHARACTER}"


def print_json(body: object) -> None:
    """One line for machines. What is JSON already, as `Raw`, stays as it is."""
    import msgspec

    print(msgspec.json.encode(body).decode())


def printable(line: str) -> str:
    """A line that a terminal shows and does not obey: part of it may be the words of a model or a caller."""
    return "".join(one if one.isprintable() else UNPRINTABLE for one in line)


def say(line: str) -> None:
    """Print a line at once."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        leave_stdout()


def leave_stdout() -> None:
    """From here on stdout leads nowhere. Python would complain at exit of what it could not flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
