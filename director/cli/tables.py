"""Show the result of a command: JSON for programs, or text and tables for a person. Only on a terminal are lines cut
to its width, and names that are too long lose their middle.
"""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import wrap
from typing import Final, NamedTuple, TextIO

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from director.cli.arguments import CALLER
from director.cli.output import printable
from director.core.ids import VERSION_DIGITS

GAP: Final = 2
NARROW_GAP: Final = 1
UNLIMITED: Final = 1_000_000
SHORTEST: Final = 8  # columns of a cell that are never cut, unless lines are
FEWEST_DIGITS: Final = 2  # of a version
MARK: Final = "…"
QUEUE: Final = re.compile(rf"(?P<model>.+/.+:)[0-9a-f]{{{VERSION_DIGITS}}}(?P<kind>(?:~.*)?)")


class Answer(NamedTuple):
    """The result of a command. A list becomes the member `results` of the JSON, as in the API."""

    body: object
    text: str | Callable[[], str]
    code: int = 0

    def show(self, *, is_json: bool) -> int:
        if is_json:
            print_json({"results": self.body} if isinstance(self.body, list) else self.body)
        else:
            print(self.text if isinstance(self.text, str) else self.text())
        return self.code


def print_json(body: object) -> None:
    """Print one line of JSON. Encoded JSON (`Raw`) stays as it is."""
    print(json_line(body))


def json_line(body: object) -> str:
    """Return one line of JSON. For a terminal, characters that could control it are escaped, which is the same JSON."""
    line = msgspec.json.encode(body).decode()
    if line.isascii() or not sys.stdout.isatty():
        return line
    return "".join(one if one.isascii() or one.isprintable() else json.dumps(one)[1:-1] for one in line)


def tabulate(names: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[str], empty: str) -> str:
    return "\n".join(fit(names, rows, width=line_width(), words=words)) if rows else empty


def answer_page(
    results: Sequence[object],
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    following: str | None,
    *,
    words: Sequence[str],
    empty: str,
) -> Answer:
    """Return a part of a list. `following`: the cursor of the next part, if there is one."""
    more = [f"there are more: --cursor {following}"] if following else []
    return Answer(
        {"results": results, "next": following},
        lambda: "\n".join([tabulate(columns, rows, words=words, empty=empty), *more]),
    )


def line_width() -> int | None:
    if (caller := CALLER.get()) is not None:
        return caller.width
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fit(
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    width: int | None,
    words: Sequence[str] = (),
) -> list[str]:
    """Return a line for each row, below the names of the columns. Columns of `words` begin at the left and are cut if
    the terminal is too narrow, the longest first. Numbers are never cut. If that is not enough, the ends of the
    lines are.
    """
    cells = [[printable(cell) for cell in row] for row in (names, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    gap = NARROW_GAP if width is not None and sum(widths) + GAP * (len(widths) - 1) > width else GAP
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), show_header=False)
    is_word = [name in words for name in names]
    least = [min(widest, SHORTEST) if left else widest for widest, left in zip(widths, is_word, strict=True)]
    for at, left in zip(least, is_word, strict=True):
        table.add_column(justify="left" if left else "right", no_wrap=not left, min_width=at)
    for row in cells:
        table.add_row(*(Name(cell) if left else Text(cell) for cell, left in zip(row, is_word, strict=True)))
    room = UNLIMITED if width is None else max(width, sum(least) + gap * (len(least) - 1))
    console = Console(width=room, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as printed:
        console.print(table)
    lines = [line.rstrip() for line in printed.get().removesuffix("\n").split("\n")]
    return lines if width is None else [cut(line, width, is_middle=False) for line in lines]


class Name:
    """A cell that loses its middle if its column is too narrow. Rich itself cuts only the end."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, cell_len(self._text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(cut(self._text, options.max_width), no_wrap=True, overflow="crop")


def fold(lines: Iterable[str], *, hang: int, width: int | None) -> str:
    """Join sentences behind labels. A sentence that is too long continues below, `hang` columns from the left."""
    if width is None:
        return "\n".join(lines)
    room = max(width, SHORTEST)
    indent = " " * (hang if hang <= room // 2 else NARROW_GAP)
    return "\n".join(
        part for line in lines for part in wrap(line, room, subsequent_indent=indent, break_on_hyphens=False) or [""]
    )


def cut(text: str, width: int, *, is_middle: bool = True) -> str:
    """Return at most `width` columns, without the middle or end. A queue's name first loses its version: names of
    models tell queues apart.
    """
    if cell_len(text) <= width:
        return text
    if width <= len(MARK):
        return MARK[:width]
    room = width - len(MARK)
    tail = room - room * 2 // 3 if is_middle else 0
    queue = QUEUE.fullmatch(text) if is_middle else None
    if queue is not None:
        if cell_len(queue["model"]) + FEWEST_DIGITS + cell_len(queue["kind"]) > room:
            return cut(queue["model"][:-1], width)
        tail = cell_len(queue["kind"])
    at = len(text)
    while at and cell_len(text[at - 1 :]) <= tail:
        at -= 1
    return set_cell_size(text, room - tail) + MARK + text[at:]


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress as one line on stderr, if that is a terminal."""
    if CALLER.get() is not None or not sys.stderr.isatty():
        yield lambda _: None
        return
    with ticker(sys.stderr) as line:
        yield lambda text: line.update(one_line(text), refresh=True)


def ticker(to: TextIO) -> Live:
    """Return a line of a terminal that can change, between its `start` and its `stop`."""
    return Live(
        console=Console(file=to), auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
    )


def one_line(text: str) -> Text:
    """Return a text for rich, without markup and control characters, that is cut at the end of the line."""
    return Text(printable(text), no_wrap=True, overflow="ellipsis")
