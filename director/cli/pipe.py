"""Print to somebody who may have had enough: `director … | head`.

Never ends a command that has more to do than to print: what has nobody to read it any more goes nowhere.
"""

import os
import sys

__all__ = ("leave_stdout", "say")


def say(line: str) -> None:
    """Print a line at once."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        leave_stdout()


def leave_stdout() -> None:
    """From here on stdout leads nowhere. Python would complain at exit of what it could not flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
