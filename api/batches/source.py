"""Read the input of a batch from the file store, by ranges: one block and one line are in memory, whatever its size."""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Final

from anyio import to_thread

from api.batches.lines import ENVELOPE_BYTES, BadLine, Call, Line, Splitter, read_call
from api.batches.patience import Missing, with_patience
from api.services.services import Services
from director.core.errors import BackendUnavailable
from director.files.store import FileStore, OpenFile
from director.store.batches import Batch

BLOCK_BYTES: Final = 256 << 10
MOST_PLACES: Final = 1_000_000  # lines of a file, with blank ones


class Source:
    """The input of one batch. A store that is away is asked again until it answers. The input is gone without its
    record, or once its bytes have been missing for GONE_S. `turn`: of the one thread that
    reads lines for all batches of a keeper. More of them would leave its loop little of the interpreter.
    """

    def __init__(
        self, services: Services, store: FileStore, batch: Batch, turn: asyncio.Semaphore | None = None
    ) -> None:
        self.turn = turn or asyncio.Semaphore(1)
        self._services = services
        self._store = store
        self._batch = batch
        self._most = services.settings.max_body_bytes
        self._missing = Missing(services.clock)
        self.places = 0  # lines that were read, with blank ones

    async def lines(self, *, number: int = 0, at: int = 0) -> AsyncGenerator[list[Line], None]:
        """Yield the lines of one block after another, from the line that begins at byte `at`. They end where the file
        is gone, also in the middle.
        """
        file: OpenFile | None = await with_patience(self._open)
        splitter = Splitter(number=number, at=at, longest=self._most + ENVELOPE_BYTES)
        while file is not None and at < file.size and splitter.place <= MOST_PLACES:
            block: bytes | None = await with_patience(partial(self._read_block, file, at))
            if block is None:
                return
            at += len(block)
            async with self.turn:
                lines = await to_thread.run_sync(splitter.feed, block)
            self.places = splitter.place
            yield lines
        yield splitter.close()

    async def exists(self) -> bool:
        return await with_patience(self._open) is not None

    def read(self, line: Line) -> Call | BadLine:
        try:
            return read_call(line.text, endpoint=self._batch.endpoint, max_body_bytes=self._most)
        except BadLine as exc:
            return exc

    async def _open(self) -> OpenFile | None:
        """Return the file, or None if it is gone. Raises BackendUnavailable."""
        file = await self._services.caller_files.get(self._batch.account, self._batch.input)
        if file is None:
            return None
        try:
            opened = await self._store.open(file.stored_as)
        except Exception as exc:  # a store is third-party code
            raise BackendUnavailable(f"the file store fails: {type(exc).__name__}") from exc
        if opened is not None and opened.size == file.size:
            self._missing.forget(file.id)
            return opened
        if self._missing.is_gone(file.id):
            return None
        raise BackendUnavailable("the input of a batch is missing in the file store")

    async def _read_block(self, file: OpenFile, at: int) -> bytes | None:
        """Return the next block, or None if the file is gone."""
        try:
            block = b"".join([chunk async for chunk in file.read(at, min(file.size, at + BLOCK_BYTES))])
        except Exception as exc:  # a store is third-party code
            if await self._open() is None:
                return None
            raise BackendUnavailable(f"the file store fails: {type(exc).__name__}") from exc
        if not block:
            raise BackendUnavailable("the file store gives less than the file has")
        return block
