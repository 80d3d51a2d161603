"""Show a prediction to a person: output on stdout as it grows, everything else on stderr."""

import time
from datetime import datetime
from typing import Any, Final, Self, TextIO

import msgspec

from director.cli.client import PredictionAnswer
from director.cli.output import harmless
from director.cli.tables import one_line, ticker
from director.core.errors import DirectorError
from director.core.schema import Eta, Place
from director.core.states import Status
from director.core.words import since, span

# a piece that is a file has a line of its own; other pieces form one text
SOON_S: Final = 1.0  # whatever waits for less needs no reason
OWN_LINE: Final = ("data:", "http://", "https://")


def waiting_words(place: Place) -> str:
    """Return why a prediction waits, and for how long."""
    return f"{why_words(place)} It has {place_words(place.position, place.ahead, place.eta_s)}."


def why_words(place: Place) -> str:
    if place.since is None:
        return place.detail
    return f"{place.detail.rstrip('.')} {since(place.since, int(time.time() * 1000))} ago."


def place_words(position: int, ahead: int, eta: Eta | None) -> str:
    when = "" if eta is None else f", about {span(eta.p50)} until it starts (9 of 10: {span(eta.p90)})"
    return f"place {position} in its account's line, {ahead} before it in total{when}"


def as_text(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def _took(seen: PredictionAnswer, watched_s: float) -> float:
    """Return how long it took from its creation to its end. This command may have come when it had ended."""
    if not (seen.created_at and seen.completed_at):
        return watched_s
    created, completed = map(datetime.fromisoformat, (seen.created_at, seen.completed_at))
    return max(0.0, (completed - created).total_seconds())


class Pieces:
    """The output of a model on a stream: its texts as one, and each file or other value on a line of its own."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.is_mid_line = False

    def put(self, piece: Any, *, is_whole: bool = False) -> None:
        text = piece if isinstance(piece, str) else as_text(piece)
        own_line = is_whole or not isinstance(piece, str) or piece.startswith(OWN_LINE)
        if own_line:
            self.end()
        self._out.write(harmless(text, self._out))
        self._out.flush()
        self.is_mid_line = not text.endswith("\n") if text else self.is_mid_line
        if own_line:
            self.end()

    def end(self) -> None:
        if self.is_mid_line:
            self._out.write("\n")
            self._out.flush()
            self.is_mid_line = False


class Printer:
    """Show looks at one prediction. Only a terminal gets output before the end, unless it `streams`. A run that is lost
    begins again, and a file or a program would have the output of both.
    """

    def __init__(self, out: TextIO, err: TextIO, *, shows_output: bool = True, streams: bool = False) -> None:
        self._pieces = Pieces(out)
        self._is_terminal = out.isatty()
        self._is_live = self._is_terminal or streams
        self._err = err
        self._shows_output = shows_output
        self._began = time.monotonic()
        self._shown: list[Any] = []
        self._logs = 0
        self._status: Status | None = None
        self._reason = ""
        self._ticker = ticker(err)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ticker.stop()

    def show(self, seen: PredictionAnswer) -> None:
        self._show_logs(seen.logs or "")
        if self._shows_output:
            self._show_output(seen)
        if seen.is_terminal:
            self._pieces.end()
        self._show_status(seen)

    def _show_output(self, seen: PredictionAnswer) -> None:
        if not self._is_live and not seen.is_terminal:
            return
        if not isinstance(seen.output, list):
            if seen.output is not None and seen.is_terminal:
                self._ticker.stop()
                self._pieces.put(seen.output, is_whole=True)
            return
        if not seen.is_terminal and self._shown[: len(seen.output)] == seen.output:
            return  # nothing is new, or another attempt repeats what was shown
        if seen.output[: len(self._shown)] != self._shown:
            self._pieces.end()
            if not self._is_terminal:
                raise DirectorError("the run failed and began again, and its output is not what was printed.")
            self.tell("the run failed and began again: its output starts again")
            self._shown = []
        for piece in seen.output[len(self._shown) :]:
            self._ticker.stop()
            self._pieces.put(piece)
        self._shown = seen.output

    def _show_logs(self, logs: str) -> None:
        if len(logs) < self._logs:
            self._logs = 0
        if new := logs[self._logs :]:
            self._ticker.stop()
            self._err.write(harmless(new, self._err))
            self._err.flush()
        self._logs = len(logs)

    def _show_status(self, seen: PredictionAnswer) -> None:
        changed, self._status = seen.status != self._status, seen.status
        seconds = time.monotonic() - self._began
        if seen.is_terminal:
            took = _took(seen, seconds)
            self.tell(f"{seen.status} after {took:.1f} s{f': {seen.error}' if seen.error else ''}")
        elif not self._err.isatty():
            if changed:
                self.tell(f"{seen.status} ({seen.id})")
            if seen.queue and seen.queue.reason != self._reason and seconds >= SOON_S:
                self._reason = seen.queue.reason
                self.tell(f"waits: {waiting_words(seen.queue)}")
        elif not self._pieces.is_mid_line:  # on a terminal, stdout and stderr share the line
            self._ticker.start()
            why = f": {waiting_words(seen.queue)}" if seen.queue and seconds >= SOON_S else ""
            self._ticker.update(one_line(f"» {seen.status} {seconds:.0f} s{why}"), refresh=True)

    def tell(self, text: str) -> None:
        self._ticker.stop()
        print(harmless(f"» {text}", self._err), file=self._err, flush=True)
