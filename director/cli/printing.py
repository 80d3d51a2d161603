"""Show a prediction to a person: its output on stdout as it grows, everything else on stderr."""

import time
from typing import Any, Final, Self, TextIO

import msgspec

from director.cli.client import Seen
from director.cli.output import harmless, one_line, ticker
from director.core.states import Status

OWN_LINE: Final = ("data:", "http://", "https://")  # pieces that are files stand alone; all other text is one text


class Printer:
    """What was shown so far of one prediction. Only what is new is printed."""

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
        """Show what is new; at the end, all that was not shown yet."""
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
        if len(pieces) < self._pieces:  # another attempt began: its output is a new one
            self._end_line()
            self.tell("the run failed and began again: its output starts anew")
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
        elif not self._is_mid_line:  # on a terminal both streams share the line
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
    """JSON for people."""
    return msgspec.json.format(msgspec.json.encode(value)).decode()
