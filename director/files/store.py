"""What a store of files has to do.

A file of an output belongs to one prediction; a caller's file belongs to an account, and goes to its place piece by
piece, however large it is. Never decides how long a file lives: who sweeps does, by whether Redis still knows what it
belongs to.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final, Protocol

from msgspec import Struct

from director.core.ids import PredictionId
from director.files.names import CallerFileName, FileName, StoredName

__all__ = ("PLAIN_TYPE", "READ_BYTES", "FileStore", "OpenFile", "OutputStore")

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
