"""Show predictions and their steps to a person: output on stdout as it grows, everything else on stderr."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self, TextIO

import msgspec

from director.audit.log import Entry
from director.cli.client import Seen
from director.cli.output import cut, harmless, json_line, one_line, printable, ticker
from director.core.states import Status
from director.core.view import EventView, iso

# a piece that is a file has a line of its own; other pieces form one text
OWN_LINE: Final = ("data:", "http://", "https://")
KIND: Final = 8
ID: Final = 26
QUEUE: Final = 32
CLOCK: Final = slice(11, 24)  # the time of the day in a moment
WORDS: Final[Mapping[str, str]] = {
    "retried": "recovered from {director}; another attempt follows: {code}",
    "released": "released by {director}: {code}",
    "restarted": "restarted: {code}",
    "completed": "{status}",
    "webhook": "attempt {attempt} to deliver {event} to {host}: {outcome}",
    "metric": "metric {name} = {value}",
}
STARTS_AGAIN: Final = frozenset({"retried", "restarted", "revived"})


class Printer:
    """Prints what is new of one prediction, each time it is shown again."""

    def __init__(self, out: TextIO, err: TextIO, *, shows_output: bool = True) -> None:
        self._out = out
        self._err = err
        self._shows_output = shows_output
        self._began = time.monotonic()
        self._pieces = 0
        self._logs = 0
        self._status: Status | None = None
        self._is_mid_line = False
        self._ticker = ticker(err)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ticker.stop()

    def show(self, seen: Seen) -> None:
        """Print what is new since the last call; of a terminal prediction, all that is left."""
        self._show_logs(seen.logs or "")
        if self._shows_output:
            self._show_output(seen)
        if seen.is_terminal:
            self._end_line()
        self._show_status(seen)

    def _show_output(self, seen: Seen) -> None:
        if isinstance(seen.output, list):
            self._show_list(seen.output)
        elif seen.output is not None and seen.is_terminal:
            self._write(seen.output if isinstance(seen.output, str) else as_text(seen.output), own_line=True)

    def _show_list(self, pieces: list[Any]) -> None:
        if len(pieces) < self._pieces:  # another attempt began, with new output
            self._end_line()
            self.tell("the run failed and began again: its output starts again")
            self._pieces = 0
        for piece in pieces[self._pieces :]:
            is_text = isinstance(piece, str)
            self._write(piece if is_text else as_text(piece), own_line=not is_text or piece.startswith(OWN_LINE))
        self._pieces = len(pieces)

    def _show_logs(self, logs: str) -> None:
        if len(logs) < self._logs:
            self._logs = 0
        if new := logs[self._logs :]:
            self._ticker.stop()
            self._err.write(harmless(new, self._err))
            self._err.flush()
        self._logs = len(logs)

    def _show_status(self, seen: Seen) -> None:
        changed, self._status = seen.status != self._status, seen.status
        seconds = time.monotonic() - self._began
        if seen.is_terminal:
            self.tell(f"{seen.status} after {seconds:.1f} s{f': {seen.error}' if seen.error else ''}")
        elif not self._err.isatty():
            if changed:
                self.tell(f"{seen.status} ({seen.id})")
        elif not self._is_mid_line:  # on a terminal, stdout and stderr share the line
            self._ticker.start()
            self._ticker.update(one_line(f"» {seen.status} {seconds:.0f} s"), refresh=True)

    def tell(self, text: str) -> None:
        """Print a line about the prediction on stderr."""
        self._ticker.stop()
        print(harmless(f"» {text}", self._err), file=self._err, flush=True)

    def _write(self, text: str, *, own_line: bool) -> None:
        self._ticker.stop()
        if own_line:
            self._end_line()
        self._out.write(harmless(text, self._out))
        self._is_mid_line = not text.endswith("\n") if text else self._is_mid_line
        if own_line:
            self._end_line()
        self._out.flush()

    def _end_line(self) -> None:
        if self._is_mid_line:
            self._out.write("\n")
            self._out.flush()
            self._is_mid_line = False


def as_text(value: Any) -> str:
    """Return indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def step(entry: Entry, *, width: int | None) -> str:
    """Return a step as one line."""
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
    """Return steps as `director audit --to FILE` writes them."""
    gap = [{"kind": "missed", "count": missed}] if missed else []
    return [json_line(each) for each in (*gap, *entries)]


class EventPrinter:
    """Prints the events of one prediction: its output as one text on `out`, all else as lines on `err`."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._is_mid_line = False

    def show(self, event: EventView) -> None:
        data = msgspec.json.decode(event.data)
        if event.type == "output":
            self._put(data)
        elif event.type == "logs":
            self._err.write(harmless(str(data), self._err))
            self._err.flush()
        else:
            self.end()
            words = WORDS[event.type].format(**data) if event.type in WORDS else event.type
            again = "; its output starts again" if event.type in STARTS_AGAIN else ""
            print(f"» {event.at[CLOCK]} {printable(words)}{again}", file=self._err, flush=True)

    def end(self) -> None:
        """End an unfinished line of output."""
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
