"""Store the files of outputs and return their addresses.

Retries a failing store a few times. Never waits without a bound, and never raises for what a store does. What a
missing file means for its prediction is decided elsewhere.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Final

from anyio import to_thread
from msgspec import Struct

from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId
from director.core.schema import Record
from director.core.settings import DirectorSettings
from director.core.states import WebhookEvent
from director.execution.uploads import DataUri
from director.files.store import FileName, OutputStore, file_name, name_of
from director.servers.runners.runner import ServerFile

log = logging.getLogger(__name__)

PAUSES_S: Final = (0.2, 1.0, 3.0)
PUT_S: Final = 30.0
SLOWEST_BYTES_S: Final = 1 << 20  # a large file may take as long as this pace needs
# The data lives as long as a webhook is owed that names the files, and so do the files: see lua/lib/settle.lua
OWED_S: Final = 4 * 86400.0


class StoredFile(Struct, frozen=True):
    """A file in the store: its address, and its size in bytes."""

    url: str
    size: int


class Storing:
    """Stores the files of all claims of a director. An address is valid until the prediction's data is deleted for
    certain: one whole run and `data_ttl_s` from now. `settings` may change.
    """

    def __init__(self, store: OutputStore, scripts: Scripts, clock: Clock, settings: DirectorSettings) -> None:
        self._store = store
        self._scripts = scripts
        self._clock = clock
        self.settings = settings
        self._under_way: dict[asyncio.Task[None], PredictionId] = {}

    async def store(
        self, record: Record, files: Sequence[DataUri | ServerFile], known: dict[FileName, StoredFile]
    ) -> tuple[str | None, ...] | None:
        """Return the addresses of these files: None for a file that cannot be decoded, None for all if the store
        failed.

        `known`: this run's stored files, to which this call adds. A file that comes again keeps its address.
        """
        urls: list[str | None] = []
        before = len(known)
        for file in files:
            keeping = await self._keeping(record.id, file)
            if keeping is None:
                urls.append(None)
                continue
            name, put, size = keeping
            if name not in known:
                url = await self._until_put(record, name, put, limit_s=PUT_S + file.size / SLOWEST_BYTES_S)
                if url is None:
                    return None
                known[name] = StoredFile(url, size)
            urls.append(known[name].url)
        if len(known) > before:
            await self._count(record, sum(file.size for file in known.values()))
        return tuple(urls)

    async def remove(self, record: Record) -> None:
        """Delete the prediction's files, once puts in progress are done. The keeper deletes what this call cannot."""
        try:
            async with asyncio.timeout(PUT_S):
                if putting := [task for task, holder in self._under_way.items() if holder == record.id]:
                    await asyncio.wait(putting)
                await self._store.remove(record.id)
                await self._count(record, 0)
        except Exception:
            log.warning("files are left to the keeper", extra={"prediction": record.id}, exc_info=True)

    async def _count(self, record: Record, size: int) -> None:
        """Count the bytes against the account's storage. A run's files are kept even beyond the account's limit."""
        until_ms = self._expires_s(record) * 1000
        try:
            await self._scripts.stow(record.account, record.id, size, until_ms=until_ms)
        except BackendUnavailable as exc:
            log.warning("files are not counted", extra={"prediction": record.id, "reason": str(exc)})

    async def _keeping(
        self, prediction_id: PredictionId, file: DataUri | ServerFile
    ) -> tuple[FileName, Callable[[], Coroutine[None, None, None]], int] | None:
        """Return the file's name, a function that puts it and its size, or None if it cannot be decoded."""
        kind = file.content_type
        if isinstance(file, ServerFile):
            name = name_of(prediction_id, file.digest, content_type=kind)
            return name, lambda: self._store.put(name, file.blocks(), content_type=kind), file.size
        decoded = await to_thread.run_sync(_named, prediction_id, file, abandon_on_cancel=True)
        if decoded is None:
            return None
        return decoded[0], lambda: self._store.put(*decoded, content_type=kind), len(decoded[1])

    async def _until_put(
        self, record: Record, name: FileName, put: Callable[[], Coroutine[None, None, None]], *, limit_s: float
    ) -> str | None:
        for pause in (*PAUSES_S, None):
            try:
                await self._within(limit_s, record.id, put())
                async with asyncio.timeout(PUT_S):
                    return await self._store.url(name, base=record.url, expires_s=self._expires_s(record))
            except Exception:  # any store may raise anything: the file counts as not stored
                log.warning("storing a file failed", extra={"prediction": record.id}, exc_info=True)
            if pause is not None:
                await self._clock.sleep(pause)
        log.error("a file could not be stored", extra={"prediction": record.id})
        return None

    async def _within(self, limit_s: float, holder: PredictionId, put: Coroutine[None, None, None]) -> None:
        """Wait at most `limit_s`, also when a hanging disk keeps the put from being canceled."""
        putting = asyncio.create_task(put)
        self._under_way[putting] = holder
        putting.add_done_callback(self._under_way.pop)
        try:
            done, _ = await asyncio.wait({putting}, timeout=limit_s)
        finally:
            putting.cancel()
        if not done:
            raise TimeoutError
        putting.result()

    def _expires_s(self, record: Record) -> int:
        kept_s = self.settings.data_ttl_s if record.data_ttl_ms is None else record.data_ttl_ms / 1000
        if record.wants(WebhookEvent.COMPLETED):
            kept_s = max(kept_s, OWED_S)
        return math.ceil(self._clock.now_ms() / 1000 + self.settings.run_limit_s + kept_s)


def _named(prediction_id: PredictionId, file: DataUri) -> tuple[FileName, bytes] | None:
    try:
        data = file.decoded()
    except ValueError:
        return None
    return file_name(prediction_id, data, content_type=file.content_type), data
