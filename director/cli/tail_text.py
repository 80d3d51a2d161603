"""Steps and events in lines that a person or a machine reads as they come. Asks nobody."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

import msgspec

from director.audit.log import Entry
from director.cli.output import cut, harmless, json_line, printable
from director.cli.printing import OWN_LINE, as_text
from director.core.event_log import EventView
from director.core.view import iso

KIND: Final = 8
ID: Final = 26
QUEUE: Final = 32
CLOCK: Final = slice(11, 24)  # of a moment: the time of the day
WORDS: Final[Mapping[str, str]] = {
    "retried": "taken back from {director}, another attempt follows: {code}",
    "released": "given back by {director}: {code}",
    "restarted": "run once more from its start: {code}",
    "completed": "{status}",
    "webhook": "attempt {attempt} to tell {host} of {event}: {outcome}",
    "metric": "metric {name} = {value}",
}
ANEW: Final = frozenset({"retried", "restarted", "revived"})


def step(entry: Entry, *, width: int | None) -> str:
    """One line for each step."""
    by = f"by {entry.by} " if entry.by else ""
    words = (
        iso(entry.at)[CLOCK],
        f"{entry.kind:<{KIND}}",
        f"{entry.id:<{ID}}",
        cut(entry.queue or "-", QUEUE),
        entry.account or "-",
        f"{by}{entry.detail}",
    )
    line = printable("  ".join(words).rstrip())
    return line if width is None else cut(line, width, is_middle=False)


def steps_json(entries: Sequence[Entry], missed: int) -> list[str]:
    """As `director audit --to FILE` writes them."""
    gap = [{"kind": "missed", "count": missed}] if missed else []
    return [json_line(each) for each in (*gap, *entries)]


class Told:
    """One prediction: its output on `out` as one text, all else on `err`, a line each."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._is_mid_line = False

    def show(self, event: EventView) -> None:
        """The next event."""
        data = msgspec.json.decode(event.data)
        if event.type == "output":
            self._put(data)
        elif event.type == "logs":
            self._err.write(harmless(str(data), self._err))
            self._err.flush()
        else:
            self.end()
            words = WORDS[event.type].format(**data) if event.type in WORDS else event.type
            anew = "; its output starts anew" if event.type in ANEW else ""
            print(f"» {event.at[CLOCK]} {printable(words)}{anew}", file=self._err, flush=True)

    def end(self) -> None:
        """What comes next begins a line."""
        if self._is_mid_line:
            self._out.write("\n")
            self._out.flush()
        self._is_mid_line = False

    def _put(self, piece: Any) -> None:
        is_text = isinstance(piece, str) and not piece.startswith(OWN_LINE)
        if not is_text:
            self.end()
        text = harmless(piece if isinstance(piece, str) else as_text(piece), self._out)
        self._out.write(text)
        self._out.flush()
        self._is_mid_line = not text.endswith("\n") if text else self._is_mid_line
        if not is_text:
            self.end()
