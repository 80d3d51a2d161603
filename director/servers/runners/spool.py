"""Where the files that a model server gives us wait for the store: one file of the disk for each run, without a name.

Never whole in memory, and in no folder: the system takes it back as soon as nobody holds it, also from a director that
was killed. One for all files of a run, since a process may have few open. What breaks off leaves its place to others.
"""

import hashlib
import os
import tempfile
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import Final

from anyio import to_thread

from director.servers.runners.runner import ServerFile

__all__ = ("Spool",)

PIECE_BYTES: Final = 1 << 20


class Spool:
    """One run's. Files may come at the same time: their pieces lie between each other's, each in a place for a whole
    one; what a piece does not fill is a hole, which takes no room.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the last who holds a file in it
        self._end = 0
        self._free: list[int] = []
        weakref.finalize(self, self._file.close)

    async def take(self, blocks: AsyncIterator[bytes], *, content_type: str) -> ServerFile:
        """Keep a file as it comes. Raises what `blocks` raises, and OSError where the disk has no room."""
        digest, waiting = hashlib.sha256(), bytearray()
        pieces: list[tuple[int, int]] = []

        async def keep() -> None:
            piece = bytes(waiting[:PIECE_BYTES])
            del waiting[:PIECE_BYTES]
            place = self._place()
            pieces.append((place, len(piece)))
            await to_thread.run_sync(self._write, piece, place)
            await to_thread.run_sync(digest.update, piece)

        try:
            async for block in blocks:
                waiting += block
                while len(waiting) >= PIECE_BYTES:
                    await keep()
            if waiting:
                await keep()
        except BaseException:
            self._free += [place for place, _ in pieces]
            raise
        return ServerFile(
            content_type=content_type,
            size=sum(size for _, size in pieces),
            digest=digest.hexdigest(),
            blocks=partial(self._blocks, tuple(pieces)),
        )

    async def _blocks(self, pieces: tuple[tuple[int, int], ...]) -> AsyncGenerator[bytes, None]:
        for place, size in pieces:
            yield await to_thread.run_sync(self._read, place, size)

    def _place(self) -> int:
        if self._free:
            return self._free.pop()
        place, self._end = self._end, self._end + PIECE_BYTES
        return place

    def _write(self, data: bytes, place: int) -> None:
        left = memoryview(data)
        while left:
            written = os.pwrite(self._file.fileno(), left, place)
            left, place = left[written:], place + written

    def _read(self, place: int, size: int) -> bytes:
        data = b""
        while len(data) < size and (more := os.pread(self._file.fileno(), size - len(data), place + len(data))):
            data += more
        return data
