"""Print: JSON for machines, text that steers no terminal, and to somebody who may have had enough: `director … | head`.

Never ends a command that has more to do than to print: what has nobody to read it any more goes nowhere.
"""

import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Final, TextIO
from unicodedata import category

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


# Tables that fit: on a terminal no line is longer than it is wide, and what is cut is cut in the middle.
#
# To a file or another program all of it goes, as wide as it is. Asks nobody, and lets no cell steer a terminal.

GAP: Final = 2
NARROW_GAP: Final = 1
SHORTEST: Final = 8  # what a cell is cut to before lines are
FEWEST_DIGITS: Final = 2  # of a version
MARK: Final = "…"
WIDE: Final = frozenset("WF")


def line_width(stream: TextIO | None = None) -> int | None:
    """How wide a line may be there; None where that is no terminal."""
    out = stream or sys.stdout
    return shutil.get_terminal_size().columns if out.isatty() else None


def fitted(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None,
    words: Sequence[str] = (),
) -> list[str]:
    """One line for each row, below the names of the columns. Columns of `words` begin at the left and are cut where
    it is too narrow, the longest first; all others are numbers, end at the right, and are never cut.
    """
    cells = [[printable(cell) for cell in row] for row in (names, *rows)]
    widths = [max(width_of(row[at]) for row in cells) for at in range(len(names))]
    is_word = [name in words for name in names]
    gap = GAP
    if width is not None and sum(widths) + GAP * (len(widths) - 1) > width:
        gap = NARROW_GAP
        widths = _narrowed(widths, is_word, room=width - gap * (len(widths) - 1))
    lines = [
        (" " * gap)
        .join(
            padded(cut(cell, wide), wide, is_left=left) for cell, wide, left in zip(row, widths, is_word, strict=True)
        )
        .rstrip()
        for row in cells
    ]
    return lines if width is None else [cut(line, width, is_middle=False) for line in lines]


def folded(lines: Iterable[str], *, hang: int, width: int | None) -> str:
    """Sentences behind labels: what is too long goes on below, `hang` columns from the left."""
    if width is None:
        return "\n".join(lines)
    room = max(width, SHORTEST)
    indent = " " * (hang if hang <= room // 2 else NARROW_GAP)
    return "\n".join(
        part for line in lines for part in wrap(line, room, subsequent_indent=indent, break_on_hyphens=False) or [""]
    )


def cut(text: str, width: int, *, is_middle: bool = True) -> str:
    """At most so wide: without its middle, or its end. Of the name of a queue the digits of its version go first."""
    if width_of(text) <= width:
        return text
    if width <= len(MARK):
        return MARK[:width]
    room = width - len(MARK)
    tail = _tail(text, room) if is_middle else 0
    return _first(text, room - tail) + MARK + (_first(text[::-1], tail)[::-1] if tail else "")


def padded(text: str, width: int, *, is_left: bool = True) -> str:
    """At least so wide."""
    room = " " * (width - width_of(text))
    return text + room if is_left else room + text


def width_of(text: str) -> int:
    """How many columns of a terminal it takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _tail(text: str, room: int) -> int:
    """How much of it stands behind the mark: the kind of a queue, or nothing, where its model fits; else a third."""
    model, colon, version = text.rpartition(":")
    kind = len(version) - len(version.partition("~")[0])
    return kind if colon and width_of(model) + len(colon) + FEWEST_DIGITS + kind <= room else room - room * 2 // 3


def _narrowed(widths: Sequence[int], may_be_cut: Sequence[bool], *, room: int) -> list[int]:
    """The longest ones give up a column each until all have room, or none can give more."""
    found = list(widths)
    while sum(found) > room:
        longest = max(
            (at for at, may in enumerate(may_be_cut) if may and found[at] > SHORTEST),
            key=lambda at: found[at],
            default=None,
        )
        if longest is None:
            break
        found[longest] -= 1
    return found


def _first(text: str, width: int) -> str:
    taken = 0
    for at, one in enumerate(text):
        taken += _columns(one)
        if taken > width:
            return text[:at]
    return text


def _columns(one: str) -> int:
    if unicodedata.combining(one):
        return 0
    return 2 if unicodedata.east_asian_width(one) in WIDE else 1
