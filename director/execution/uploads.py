"""Hold back what a run put out until its files are stored, so that nobody ever sees an output before its files.

Pure. What needs no file goes through at once unless something before it waits, so order is kept. Never more than one
answer to an upload is believed, and none that was not asked for.
"""

import base64
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from director.servers.runners.runner import BLOCK_BYTES, Ended, Produced, Received, ServerFile

# Find the files that an output carries as data URIs or names, and put their addresses in their place.
#
# Pure. An output is JSON that was read before, and stays the bytes that it is but for what is replaced. A string that
# only looks like a data URI is left alone, and so are the names of an object's members.

# In valid JSON a quote that no backslash precedes and `data:` follows is the beginning of a string
STRING: Final = re.compile(
    rb'(?<!\\)"(data:[^"\\]*+(?:\\.[^"\\]*+)*+|director-file:[0-9a-f]{32})"(?!\s*+:)'
)  # the names are those of director.servers.runners.inbox
NO_FILES: Final[Mapping[str, ServerFile]] = {}
HEAD: Final = re.compile(
    r"data:(?P<type>[a-z0-9][a-z0-9.+_-]{0,63}/[a-z0-9][a-z0-9.+_-]{0,63})?"
    r"(?:;charset=(?P<charset>[a-z0-9-]{1,32})|;[a-z0-9-]{1,32}=[^;,]{0,128}){0,4}(?P<base64>;base64)?,",
    re.IGNORECASE,
)
LONGEST_HEAD: Final = 1024
TEXT: Final = "text/plain"


class DataUri(Struct, frozen=True):
    """A file in a string. `body` is its data as it is written there."""

    content_type: str
    is_base64: bool
    body: bytes

    @property
    def size(self) -> int:
        """What it takes as it is written."""
        return len(self.body)

    def decoded(self) -> bytes:
        """What is in it. ValueError where it is not what its head says."""
        data = unquote_to_bytes(self.body)
        if not self.is_base64:
            return data
        return base64.b64decode(data + b"=" * (-len(data) % 4), validate=True)


class Found(Struct, frozen=True):
    """The files of one output, in order, and where in it their strings stand, quotes included."""

    files: tuple[DataUri | ServerFile, ...]
    places: tuple[tuple[int, int], ...]


def find(output: Raw, *, inline: int, received: Mapping[str, ServerFile] = NO_FILES) -> Found | None:
    """The files in it, but for text of up to `inline` bytes; None where there are none.

    `received`: those that came beside it, by the names that it has in their place.
    """
    data = bytes(output)
    files: list[DataUri | ServerFile] = []
    places = []
    for match in STRING.finditer(data) if received or b'"data:' in data else ():
        string = match[1]
        file = _read(string, inline) if string.startswith(b"data:") else received.get(string.decode())
        if file is not None:
            files.append(file)
            places.append(match.span())
    return Found(tuple(files), tuple(places)) if files else None


def filled(output: Raw, found: Found, urls: Sequence[str | None]) -> Raw:
    """The output with these addresses instead of its files; None leaves what is there."""
    data, parts, end = bytes(output), [], 0
    for (start, stop), url in zip(found.places, urls, strict=True):
        if url is not None:
            parts += [data[end:start], msgspec.json.encode(url)]
            end = stop
    return Raw(b"".join([*parts, data[end:]]))


def _read(string: bytes, inline: int) -> DataUri | None:
    if b"\\" in string:
        try:
            string = msgspec.json.decode(b'"%b"' % string, type=str).encode()
        except ValueError:  # half of a surrogate pair: nothing that a file would have
            return None
    head = HEAD.match(string[:LONGEST_HEAD].decode("ascii", errors="replace"))
    if head is None or not (head["type"] or head["base64"]):
        return None
    kind = (head["type"] or TEXT).lower()
    charset = f"; charset={head['charset'].lower()}" if head["charset"] and kind.startswith("text/") else ""
    uri = DataUri(kind + charset, bool(head["base64"]), string[head.end() :])
    return None if kind.startswith("text/") and uri.size <= inline else uri


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
