"""Find the files that an output carries as data URIs or names, and put their addresses in their place.

Pure. An output is JSON that was read before, and stays the bytes that it is but for what is replaced. A string that
only looks like a data URI is left alone, and so are the names of an object's members.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Raw, Struct

from director.servers.runners.runner import ServerFile

__all__ = ("NO_FILES", "DataUri", "Found", "filled", "find")

# In valid JSON a quote that no backslash precedes and `data:` follows is the beginning of a string
STRING: Final = re.compile(
    rb'(?<!\\)"(data:[^"\\]*+(?:\\.[^"\\]*+)*+|director-file:[0-9a-f]{32})"(?!\s*+:)'
)  # the names are those of director.servers.runners.arrivals
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
