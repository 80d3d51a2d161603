"""Find the files in a run's output, and hold the output back until they are stored. Pure.

Output without files goes through at once unless an earlier output waits, so the order is kept. Only the first answer
to an upload counts, and answers that were not asked for are ignored.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from director.core.data_uri import DataUri, is_data_uri, read_data_uri
from director.servers.runners.runner import BLOCK_BYTES, Ended, Produced, Received, ServerFile

# An output is JSON that was validated before, and only the replaced strings change. A string that only looks like a
# data URI is left alone, and so are the names of an object's members.

# In valid JSON, a quote that follows no backslash and precedes `data:` begins a string
STRING: Final = re.compile(
    rb'(?<!\\)"((?i:data):[^"\\]*+(?:\\.[^"\\]*+)*+|director-file:[0-9a-f]{32})"(?!\s*+:)'
)  # the names are those of director.servers.runners.inbox
MAY_HAVE: Final = re.compile(rb'"data:', re.IGNORECASE)
Span = tuple[int, int]
NO_FILES: Final[Mapping[str, ServerFile]] = {}


class FoundFiles(Struct, frozen=True):
    files: tuple[DataUri | ServerFile, ...]
    places: tuple[Span, ...]


def find(output: Raw, *, inline: int, received: Mapping[str, ServerFile] = NO_FILES) -> FoundFiles | None:
    """Return the files in an output, or None without any. Text of up to `inline` bytes stays in the output.
    `received`: files that the server sent beside the output, by the name that stands in the output for each.
    """
    data = bytes(output)
    files: list[DataUri | ServerFile] = []
    places = []
    for match in STRING.finditer(data) if received or MAY_HAVE.search(data) else ():
        string = match[1]
        file = _read(string, inline) if is_data_uri(string) else received.get(string.decode())
        if file is not None:
            files.append(file)
            places.append(match.span())
    return FoundFiles(tuple(files), tuple(places)) if files else None


def fill_addresses(output: Raw, found: FoundFiles, urls: Sequence[str | None]) -> Raw:
    """Return the output with these addresses in place of its files. A file whose address is None stays as it is."""
    return substitute(output, zip(found.places, urls, strict=True))


def substitute(json: Raw, strings: Iterable[tuple[Span, str | None]]) -> Raw:
    data, parts, end = bytes(json), [], 0
    for (start, stop), string in strings:
        if string is not None:
            parts += [data[end:start], msgspec.json.encode(string)]
            end = stop
    return Raw(b"".join([*parts, data[end:]]))


def unescape(string: bytes) -> str | None:
    try:
        return msgspec.json.decode(b'"%b"' % string, type=str)
    except ValueError:
        return None


def _read(string: bytes, inline: int) -> DataUri | None:
    if b"\\" in string:
        if (text := unescape(string)) is None:
            return None
        string = text.encode()
    uri = read_data_uri(string)
    if uri is None or (inline and uri.content_type.startswith("text/") and uri.size <= inline):
        return None
    return uri


Output = Produced | Ended


class Upload(Struct, frozen=True):
    """Store these files. The answer is an `Uploaded` with the same number. Numbers count from 0 within a run."""

    number: int
    files: tuple[DataUri | ServerFile, ...]

    @property
    def size(self) -> int:
        """The approximate bytes here and in the store: no file takes less than one block of a disk."""
        return sum(max(file.size, BLOCK_BYTES) for file in self.files)


class Uploaded(Struct, frozen=True):
    """`urls`: the addresses of an upload's files, in order, None for text that is no file; None if storing failed."""

    number: int
    urls: tuple[str | None, ...] | None


class _WaitingOutput(Struct):
    event: Output
    found: FoundFiles | None = None
    number: int | None = None


class Uploads:
    """The outputs of one run that wait. `inline`: see `find`; None where no files are stored and nothing ever waits."""

    def __init__(self, inline: int | None) -> None:
        self._inline = inline
        self._queue: deque[_WaitingOutput] = deque()
        self._uploads = 0
        self._gave_up = False
        self._received: dict[str, ServerFile] = {}

    def receive(self, event: Received) -> None:
        if not self._gave_up:
            self._received[event.name] = event.file

    def take(self, event: Output) -> tuple[Upload | None, list[Output]]:
        if self._gave_up:
            return None, [replace(event, output=None)] if isinstance(event, Ended) else []
        output = _output(event)
        found = None
        if self._inline is not None and output is not None:
            found = find(output, inline=self._inline, received=self._received)
        if found is None and not self._queue:
            return None, [event]
        waiting = _WaitingOutput(event, found)
        self._queue.append(waiting)
        if found is None:
            return None, list(self._ready())
        waiting.number, self._uploads = self._uploads, self._uploads + 1
        return Upload(waiting.number, found.files), []

    def note_upload(self, answer: Uploaded) -> list[Output]:
        for waiting in self._queue:
            if waiting.number == answer.number and waiting.found is not None and answer.urls is not None:
                event, output = waiting.event, _output(waiting.event)
                assert output is not None  # noqa: S101 - for the type checker: files were found in it
                new = fill_addresses(output, waiting.found, answer.urls)
                waiting.event = replace(event, **{"item" if isinstance(event, Produced) else "output": new})
                waiting.number = None
        return list(self._ready())

    def awaits(self, number: int) -> bool:
        return any(waiting.number == number for waiting in self._queue)

    def restart(self) -> None:
        self._queue.clear()

    def give_up(self) -> Ended | None:
        """Drop all waiting outputs, and later ones except the end. Returns the end of the run if it was waiting."""
        self._gave_up = True
        self._received.clear()
        ends = [waiting.event for waiting in self._queue if isinstance(waiting.event, Ended)]
        self._queue.clear()
        return ends[0] if ends else None

    def _ready(self) -> Iterator[Output]:
        while self._queue and self._queue[0].number is None:
            yield self._queue.popleft().event


def _output(event: Output) -> Raw | None:
    return event.item if isinstance(event, Produced) else event.output
