"""What a store of files has to do.

A file of an output belongs to one prediction; a caller's file belongs to an account, and goes to its place piece by
piece, however large it is. Never decides how long a file lives: who sweeps does, by whether Redis still knows what it
belongs to.
"""

import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final, Protocol

from msgspec import Struct

from director.core.ids import FileId, PredictionId, is_file_id, is_prediction_id

# How files of a store are named: those of outputs after whose they are and their bytes, callers' ones after their id.
#
# Pure. A name of an output is that of its bytes, so that putting it twice is putting it once.

NAME: Final = re.compile(r"([0-9a-z]{26})-([0-9a-f]{32})\.([a-z0-9]{1,8})")
CALLER_NAME: Final = re.compile(r"([a-z0-9][a-z0-9_-]{0,63})/([0-9a-z]{26})\.([a-z0-9]{1,8}|part~)")
# Endings that are not the media type's own second half
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
    """The public name of a file: whose it is, and which. Its ending is for people."""

    prediction_id: PredictionId
    digest: str
    ending: str

    def __str__(self) -> str:
        return f"{self.prediction_id}-{self.digest}.{self.ending}"

    @classmethod
    def parse(cls, text: str) -> "FileName | None":
        """None for what is no name of ours: nothing else ever becomes a path."""
        found = NAME.fullmatch(text)
        if found is None or not is_prediction_id(found[1]):
            return None
        return cls(PredictionId(found[1]), found[2], found[3])


class CallerFileName(Struct, frozen=True):
    """The name of a caller's file in the store. Its ending is that of the name it came with: models go by it."""

    account: str
    id: FileId
    ending: str

    def __str__(self) -> str:
        return f"{self.account}/{self.id}.{self.ending}"

    @classmethod
    def parse(cls, text: str) -> "CallerFileName | None":
        """None for what is no name of ours."""
        found = CALLER_NAME.fullmatch(text)
        if found is None or not is_file_id(found[2]):
            return None
        return cls(found[1], FileId(found[2]), found[3])


StoredName = FileName | CallerFileName


def file_name(prediction_id: PredictionId, data: bytes, *, content_type: str) -> FileName:
    """The name that these bytes have among the prediction's files."""
    return name_of(prediction_id, hashlib.sha256(data).hexdigest(), content_type=content_type)


def name_of(prediction_id: PredictionId, digest: str, *, content_type: str) -> FileName:
    """The same, of what is known to have this SHA-256."""
    kind = content_type.partition(";")[0]
    own = kind.rpartition("/")[2].removeprefix("x-")
    ending = ENDINGS.get(kind) or (own if re.fullmatch(r"[a-z0-9]{1,8}", own) else "bin")
    return FileName(prediction_id, digest[:32], ending)


def ending_of(shown: str) -> str:
    """The ending to keep of the name that a caller gave a file."""
    own = shown.rpartition(".")[2].lower()
    return own if re.fullmatch(r"[a-z0-9]{1,8}", own) and "." in shown else "bin"


READ_BYTES: Final = 256 * 1024
PLAIN_TYPE: Final = "application/octet-stream"


class OpenFile(Struct, frozen=True, eq=False):
    """A file that can be read. `read` has the bytes from one place up to another, and holds nothing of the file before
    it is asked for the first of them, nor after its end, nor when it is closed early.
    """

    content_type: str
    size: int
    read: Callable[[int, int], AsyncGenerator[bytes, None]]


class OutputStore(Protocol):
    """What a director has to be able to do with one. Any error that it raises is taken for a passing one, and it is
    asked again.
    """

    async def probe(self) -> str:
        """What is wrong with it, in words for whoever runs it, without a secret; '' when nothing is."""
        ...

    async def put(self, name: FileName, data: bytes, *, content_type: str) -> None:
        """Keep a file, for good once this returns. Safe to repeat."""
        ...

    async def take(self, name: FileName, blocks: AsyncIterator[bytes], *, content_type: str) -> None:
        """Keep a file as it comes, for good once this returns. Nobody sees it before, and where `blocks` raises nothing
        of it is kept.
        """
        ...

    async def url(self, name: FileName, *, base: str, expires_s: int) -> str:
        """Where it can be had until then, a unix time. `base`: the public address of the API, without /v1."""
        ...

    async def fetch_url(self, name: CallerFileName, *, shown: str, base: str, expires_s: int) -> str:
        """Where a model server fetches a caller's file until then; `shown`: the name it came with."""
        ...

    async def remove(self, prediction_id: PredictionId) -> None:
        """Delete all files of this prediction, and of no other."""
        ...


class FileStore(OutputStore, Protocol):
    """What a store has to do for whoever hands files out, takes those of callers, or clears up."""

    sweep_s: float
    """How often it is looked through for what is to be deleted."""

    async def take(self, name: StoredName, blocks: AsyncIterator[bytes], *, content_type: str) -> None:
        """As of an output, for a caller's file too."""
        ...

    async def open(self, name: StoredName) -> OpenFile | None:
        """Read it; None where it is gone."""
        ...

    def callers(self, most: int) -> AsyncIterator[list[CallerFileName]]:
        """Which files of callers are kept, so many at a time."""
        ...

    async def discard(self, name: CallerFileName) -> None:
        """Delete a caller's file. Safe to repeat."""
        ...

    def holders(self, most: int) -> AsyncIterator[list[PredictionId]]:
        """Whose files are kept, so many predictions at a time."""
        ...
