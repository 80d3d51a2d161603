"""Hold back what a run put out until its files are stored, so that nobody ever sees an output before its files.

Pure. What needs no file goes through at once unless something before it waits, so order is kept. Never more than one
answer to an upload is believed, and none that was not asked for.
"""

from collections import deque
from collections.abc import Iterator

from msgspec import Raw, Struct
from msgspec.structs import replace

from director.execution.media import DataUri, Found, filled, find
from director.servers.runners.runner import BLOCK_BYTES, Ended, Produced, Received, ServerFile

__all__ = ("Upload", "Uploaded", "Uploads")

Output = Produced | Ended


class Upload(Struct, frozen=True):
    """Store these files; the answer is an `Uploaded` with this number. Numbers count from 0 within a run."""

    number: int
    files: tuple[DataUri | ServerFile, ...]

    @property
    def size(self) -> int:
        """What they take here and in the store, about: no file is smaller there than a block of a disk."""
        return sum(max(file.size, BLOCK_BYTES) for file in self.files)


class Uploaded(Struct, frozen=True):
    """Where the files of one `Upload` are, in their order; None for what is no file after all and stays as it is.

    `urls` is None where they could not be stored.
    """

    number: int
    urls: tuple[str | None, ...] | None


class _Waiting(Struct):
    """One that waits, itself or for one before it. `number`: of its upload, until that is answered."""

    event: Output
    found: Found | None = None
    number: int | None = None


class Uploads:
    """One run's line. `inline`: see `director.media.find`; None where no files are kept and nothing ever waits."""

    def __init__(self, inline: int | None) -> None:
        self._inline = inline
        self._line: deque[_Waiting] = deque()
        self._uploads = 0
        self._gave_up = False
        self._received: dict[str, ServerFile] = {}

    def receive(self, event: Received) -> None:
        """This file came, and something that comes later names it."""
        if not self._gave_up:
            self._received[event.name] = event.file

    def take(self, event: Output) -> tuple[Upload | None, list[Output]]:
        """What to store because of this event, or what may go on now."""
        if self._gave_up:
            return None, [replace(event, output=None)] if isinstance(event, Ended) else []
        output = _output(event)
        found = None
        if self._inline is not None and output is not None:
            found = find(output, inline=self._inline, received=self._received)
        waiting = _Waiting(event, found)
        self._line.append(waiting)
        if found is None:
            return None, list(self._ready())
        waiting.number, self._uploads = self._uploads, self._uploads + 1
        return Upload(waiting.number, found.files), []

    def uploaded(self, answer: Uploaded) -> list[Output]:
        """What may go on, now that these files have addresses."""
        for waiting in self._line:
            if waiting.number == answer.number and waiting.found is not None and answer.urls is not None:
                output = _output(waiting.event)
                assert output is not None  # noqa: S101 - for the type checker: files were found in it
                waiting.event = _with(waiting.event, filled(output, waiting.found, answer.urls))
                waiting.number = None
        return list(self._ready())

    def awaits(self, number: int) -> bool:
        """Is this upload asked for and not answered?"""
        return any(waiting.number == number for waiting in self._line)

    def restart(self) -> None:
        """Nothing that waits is of any use: what comes now is another run's."""
        self._line.clear()

    def give_up(self) -> Ended | None:
        """Nothing that waits will go on, and nothing more comes but the end. The end of the run, where that waits."""
        self._gave_up = True
        self._received.clear()
        ends = [waiting.event for waiting in self._line if isinstance(waiting.event, Ended)]
        self._line.clear()
        return ends[0] if ends else None

    def _ready(self) -> Iterator[Output]:
        while self._line and self._line[0].number is None:
            yield self._line.popleft().event


def _output(event: Output) -> Raw | None:
    return event.item if isinstance(event, Produced) else event.output


def _with(event: Output, output: Raw) -> Output:
    return replace(event, item=output) if isinstance(event, Produced) else replace(event, output=output)
