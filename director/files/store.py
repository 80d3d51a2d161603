"""Define how stored files are named, and what a file store can do.

A file of an output belongs to one prediction. A caller's file belongs to an account, and is stored piece by piece,
however large it is. A store never decides how long a file lives: the sweeper deletes what Redis knows no owner of.
"""

import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final, Protocol

from msgspec import Struct

from director.core.ids import FileId, PredictionId, is_file_id, is_prediction_id

READ_BYTES: Final = 256 * 1024
PLAIN_TYPE: Final = "application/octet-stream"
NAME: Final = re.compile(r"([0-9a-z]{26})-([0-9a-f]{32})\.([a-z0-9]{1,8})")
CALLER_NAME: Final = re.compile(r"([a-z0-9][a-z0-9_-]{0,63})/([0-9a-z]{26})\.([a-z0-9]{1,8}|part~)")
# Endings that differ from the second half of the media type
ENDINGS: Final = {
    "application/octet-stream": "bin",
    "audio/mpeg": "mp3",
    "image/jpeg": "jpg",
    "image/svg+xml": "svg",
    "model/gltf-binary": "glb",
    "text/markdown": "md",
    "text/plain": "txt",
    "video/quicktime": "mov",
}


class FileName(Struct, frozen=True):
    """The public name of an output's file. It has a digest of the bytes: putting it twice is putting it once."""

    prediction_id: PredictionId
    digest: str
    ending: str

    def __str__(self) -> str:
        return f"{self.prediction_id}-{self.digest}.{self.ending}"

    @classmethod
    def parse(cls, text: str) -> "FileName | None":
        """Return the name, or None for any other text: nothing else ever becomes a path."""
        found = NAME.fullmatch(text)
        return cls(PredictionId(found[1]), found[2], found[3]) if found and is_prediction_id(found[1]) else None


class CallerFileName(Struct, frozen=True):
    """The name of a caller's file in the store. It keeps the ending of the uploaded name, which models go by."""

    account: str
    id: FileId
    ending: str

    def __str__(self) -> str:
        return f"{self.account}/{self.id}.{self.ending}"

    @classmethod
    def parse(cls, text: str) -> "CallerFileName | None":
        found = CALLER_NAME.fullmatch(text)
        return cls(found[1], FileId(found[2]), found[3]) if found and is_file_id(found[2]) else None


StoredName = FileName | CallerFileName


def file_name(prediction_id: PredictionId, data: bytes, *, content_type: str) -> FileName:
    return name_of(prediction_id, hashlib.sha256(data).hexdigest(), content_type=content_type)


def name_of(prediction_id: PredictionId, digest: str, *, content_type: str) -> FileName:
    kind = content_type.partition(";")[0]
    own = kind.rpartition("/")[2].removeprefix("x-")
    ending = ENDINGS.get(kind) or (own if re.fullmatch(r"[a-z0-9]{1,8}", own) else "bin")
    return FileName(prediction_id, digest[:32], ending)


def ending_of(shown: str) -> str:
    """Return the ending to keep of the name that a caller gave a file."""
    own = shown.rpartition(".")[2].lower()
    return own if re.fullmatch(r"[a-z0-9]{1,8}", own) and "." in shown else "bin"


class OpenFile(Struct, frozen=True, eq=False):
    """A file to read. `read` yields the bytes from one position up to another, and holds it open only meanwhile."""

    content_type: str
    size: int
    read: Callable[[int, int], AsyncGenerator[bytes, None]]


class OutputStore(Protocol):
    """A store as a director uses it. The director takes any error of it for temporary, and calls again."""

    async def probe(self) -> str:
        """Return what is wrong with the store, in words for the operator and without a secret, or '' if it works."""
        ...

    async def put(self, name: FileName, data: bytes | AsyncIterator[bytes], *, content_type: str) -> None:
        """Store a file, durable and visible when this returns. If `data` raises, nothing is kept. Safe to repeat."""
        ...

    async def url(self, name: FileName, *, base: str, expires_s: int) -> str:
        """Return an address valid until `expires_s`, a unix time. `base`: the API's public address, without /v1."""
        ...

    async def fetch_url(self, name: CallerFileName, *, shown: str, base: str, expires_s: int) -> str:
        """Return the address at which a model server finds a caller's file; `shown`: its uploaded name."""
        ...

    async def remove(self, prediction_id: PredictionId) -> None:
        """Delete all files of this prediction, and of no other."""
        ...


class FileStore(OutputStore, Protocol):
    """A store as the API and the sweeper use it: it also serves files, takes callers' files and lists what it holds."""

    sweep_s: float
    """The seconds between two sweeps of the store."""

    async def put(self, name: StoredName, data: bytes | AsyncIterator[bytes], *, content_type: str) -> None: ...

    async def open(self, name: StoredName) -> OpenFile | None: ...

    def callers(self, most: int) -> AsyncIterator[list[CallerFileName]]:
        """Yield the names of all callers' files, at most `most` at a time."""
        ...

    async def discard(self, name: CallerFileName) -> None:
        """Delete a caller's file. Safe to repeat."""
        ...

    def holders(self, most: int) -> AsyncIterator[list[PredictionId]]:
        """Yield all predictions that have files, at most `most` at a time."""
        ...
