"""Replace the addresses of callers' files in an input by addresses that a model server can fetch, for one run.

The record keeps the caller's input; only the model server gets the new one. Only the caller's own files are replaced:
an address of another account's file, or of an expired one, stays as it is and leads nowhere. The host of an address
does not matter, since file ids are unique. The address of an output is its own permission, so only its host changes,
to the one at which model servers reach the API.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Raw

from director.core.clock import Clock
from director.core.ids import FileId, is_file_id
from director.core.schema import Record
from director.core.settings import DirectorSettings
from director.files.caller_files import CallerFiles
from director.files.store import FileName, OutputStore

# In valid JSON, a quote that follows no backslash and precedes `http` begins a string
STRING: Final = re.compile(rb'(?<!\\)"(https?:[^"\\]*+(?:\\.[^"\\]*+)*+)"(?!\s*+:)')
ADDRESS: Final = re.compile(r"https?://[^?#\s]{1,2048}/files/([0-9a-z]{26})")
OUTPUTS: Final = "/v1/outputs/"
MOST_FILES: Final = 1_000  # of one input; further files stay as they are
FETCH_S: Final = 60.0  # a server fetches before it runs


class FileInputs:
    """Prepares the inputs of all claims of a director. `settings` may change."""

    def __init__(self, store: OutputStore, files: CallerFiles, clock: Clock, settings: DirectorSettings) -> None:
        self._store = store
        self._files = files
        self._clock = clock
        self._base = settings.files_base.rstrip("/")  # where model servers reach the API; '' if where callers do
        self.settings = settings

    async def for_run(self, record: Record, given: Raw) -> Raw:
        """Return the input for this run. Raises BackendUnavailable, and whatever the store raises."""
        given = moved(given, url=record.url, base=self._base)
        ids = list(dict.fromkeys(file_id for _, file_id in named(given)))[:MOST_FILES]
        if not ids:
            return given
        known = await self._files.known(record.account, ids)
        expires_s = math.ceil(self._clock.now_ms() / 1000 + self.settings.run_limit_s + FETCH_S)
        addresses = {
            file.id: await self._store.fetch_url(
                file.stored_as, shown=file.name, base=self._base or record.url, expires_s=expires_s
            )
            for file in known.values()
        }
        return filled(given, addresses)


def moved(given: Raw, *, url: str, base: str) -> Raw:
    """Return the input with addresses of outputs at `url` moved to `base`. Neither ends in /v1.

    Only outputs move: `base` is ours and may reach more, and a caller must not choose a path there.
    """
    data, theirs = bytes(given), f"{url}{OUTPUTS}".encode()
    if not base or theirs not in data:
        return given
    ours = msgspec.json.encode(f"{base}{OUTPUTS}")[:-1]

    def near(match: re.Match[bytes]) -> bytes:
        name, _, _ = match[1].removeprefix(theirs).partition(b"?")
        is_ours = match[1].startswith(theirs) and FileName.parse(name.decode(errors="replace")) is not None
        return ours + match[0][1 + len(theirs) :] if is_ours else match[0]

    return Raw(STRING.sub(near, data))


def named(given: Raw) -> Iterator[tuple[tuple[int, int], FileId]]:
    """Yield the span of each string that is the address of a caller's file, quotes included, and the file's id."""
    data = bytes(given)
    for match in STRING.finditer(data) if b"files" in data else ():
        text = _text(match[1])
        found = None if text is None else ADDRESS.fullmatch(text)
        if found is not None and is_file_id(found[1]):
            yield match.span(), FileId(found[1])


def filled(given: Raw, addresses: Mapping[FileId, str]) -> Raw:
    """Return the input with these addresses in place of the callers' own. All other bytes stay."""
    data, parts, end = bytes(given), [], 0
    for (start, stop), file_id in named(given):
        if file_id in addresses:
            parts += [data[end:start], msgspec.json.encode(addresses[file_id])]
            end = stop
    return Raw(b"".join([*parts, data[end:]]))


def _text(string: bytes) -> str | None:
    try:
        return msgspec.json.decode(b'"%b"' % string, type=str)
    except ValueError:  # half of a surrogate pair: no address has one
        return None
