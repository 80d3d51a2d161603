"""Handle the files of runs: store those of an output, and give those of an input addresses that a server can fetch."""

import asyncio
import base64
import logging
import math
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import msgspec
from anyio import to_thread
from msgspec import Raw, Struct

from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.data_uri import DataUri
from director.core.errors import BackendUnavailable
from director.core.ids import FileId, PredictionId, is_file_id
from director.core.schema import Record
from director.core.settings import DirectorSettings
from director.core.states import WebhookEvent
from director.execution.uploads import Span, substitute, unescape
from director.files.store import FileName, FileStore, OutputStore, file_name, name_of
from director.servers.runners.runner import ServerFile
from director.store.caller_files import CallerFile, CallerFiles

log = logging.getLogger(__name__)

PAUSES_S: Final = (0.2, 1.0, 3.0)
PUT_S: Final = 30.0
SLOWEST_BYTES_S: Final = 1 << 20  # a large file may take as long as this pace needs
# The data lives as long as a webhook is owed that names the files, and so do the files: see lua/lib/ends.lua
OWED_S: Final = 4 * 86400.0
# In valid JSON, a quote that follows no backslash and precedes `http` begins a string
STRING: Final = re.compile(rb'(?<!\\)"(https?:[^"\\]*+(?:\\.[^"\\]*+)*+)"(?!\s*+:)')
ADDRESS: Final = re.compile(r"https?://[^?#\s]{1,2048}/files/([0-9a-z]{26})")
OUTPUTS: Final = "/v1/outputs/"
MOST_FILES: Final = 1_000  # of one input; further files stay as they are
FETCH_S: Final = 60.0  # a server fetches before it runs


class StoredFile(Struct, frozen=True):
    url: str
    size: int


@dataclass(eq=False)
class Storing:
    """Stores the files of all claims of a director. An address is valid for one whole run and `data_ttl_s` from now.
    Retries a failing store a few times. Never waits without a bound, and never raises for what a store does.
    """

    _store: OutputStore
    _scripts: Scripts
    _clock: Clock
    settings: DirectorSettings

    def __post_init__(self) -> None:
        self._under_way: dict[asyncio.Task[None], PredictionId] = {}

    async def store(
        self, record: Record, files: Sequence[DataUri | ServerFile], known: dict[FileName, StoredFile]
    ) -> tuple[str | None, ...] | None:
        """Return the address of each file, None for a file that cannot be decoded. None for all if the store failed.
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
            await self.count(record, sum(file.size for file in known.values()))
        return tuple(urls)

    async def remove(self, record: Record) -> None:
        """Delete the prediction's files, once puts in progress are done. The keeper deletes what this call cannot."""
        try:
            async with asyncio.timeout(PUT_S):
                if putting := [task for task, holder in self._under_way.items() if holder == record.id]:
                    await asyncio.wait(putting)
                # first: the keeper sees only what has files, and corrects no count that outlives them
                await self._scripts.stow(record.account, record.id)
                await self._store.remove(record.id)
        except Exception:  # any store may raise anything
            log.warning("files are left to the keeper", extra={"prediction": record.id}, exc_info=True)

    async def count(self, record: Record, size: int) -> None:
        """Count all bytes of the prediction's files, whatever was counted before."""
        until_ms = self._expires_s(record) * 1000
        try:
            await self._scripts.stow(record.account, record.id, size, until_ms=until_ms)
        except BackendUnavailable as exc:
            log.warning("files are not counted", extra={"prediction": record.id, "reason": str(exc)})

    async def _keeping(
        self, prediction_id: PredictionId, file: DataUri | ServerFile
    ) -> tuple[FileName, Callable[[], Coroutine[None, None, None]], int] | None:
        kind = file.content_type
        if isinstance(file, ServerFile):
            name = name_of(prediction_id, file.digest, content_type=kind)
            return name, lambda: self._store.put(name, file.blocks(), content_type=kind), file.size
        decoded = await to_thread.run_sync(_name_file, prediction_id, file, abandon_on_cancel=True)
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


def _name_file(prediction_id: PredictionId, file: DataUri) -> tuple[FileName, bytes] | None:
    try:
        data = file.decode()
    except ValueError:
        return None
    return file_name(prediction_id, data, content_type=file.content_type), data


@dataclass(eq=False)
class FileInputs:
    """Replaces the addresses of callers' files in an input by addresses that a model server can fetch, for one run.

    The record keeps the caller's input. An address of another account's file, or of an expired one, leads nowhere. The
    host does not matter, since file ids are unique. The address of an output is its own permission.
    """

    _store: OutputStore
    _files: CallerFiles
    _clock: Clock
    settings: DirectorSettings

    async def for_run(self, record: Record, given: Raw, *, takes_bytes: bool = False) -> Raw:
        """Return the input for this run. `takes_bytes`: with the files themselves, as data URIs, if the store can read
        them here. Raises BackendUnavailable, and whatever the store raises.
        """
        base = self.settings.files_base.rstrip("/")  # where model servers reach the API; '' if where callers do
        given = move_addresses(given, url=record.url, base=base)
        ids = list(dict.fromkeys(file_id for _, file_id in find_files(given)))[:MOST_FILES]
        if not ids:
            return given
        known = await self._files.find(record.account, ids)
        if takes_bytes and (read := await self._read(known.values())):
            return fill_addresses(given, read)
        expires_s = math.ceil(self._clock.now_ms() / 1000 + self.settings.run_limit_s + FETCH_S)
        addresses = {
            file.id: await self._store.fetch_url(
                file.stored_as, shown=file.name, base=base or record.url, expires_s=expires_s
            )
            for file in known.values()
        }
        return fill_addresses(given, addresses)

    async def _read(self, files: Iterable[CallerFile]) -> dict[FileId, str]:
        found: dict[FileId, str] = {}
        if not hasattr(self._store, "discard"):  # the API's store has only outputs for a director
            return found
        left = self.settings.max_files_bytes
        for file in files:
            left -= file.size
            opened = await cast(FileStore, self._store).open(file.stored_as) if left >= 0 else None
            if opened is not None:
                data = b"".join([block async for block in opened.read(0, opened.size)])
                found[file.id] = f"data:{file.content_type};base64,{base64.b64encode(data).decode()}"
        return found


def move_addresses(given: Raw, *, url: str, base: str) -> Raw:
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


def find_files(given: Raw) -> Iterator[tuple[Span, FileId]]:
    """Yield the span of each string that is the address of a caller's file, quotes included, and the file's id."""
    data = bytes(given)
    for match in STRING.finditer(data) if b"files" in data else ():
        text = unescape(match[1])
        found = None if text is None else ADDRESS.fullmatch(text)
        if found is not None and is_file_id(found[1]):
            yield match.span(), FileId(found[1])


def fill_addresses(given: Raw, addresses: Mapping[FileId, str]) -> Raw:
    return substitute(given, ((span, addresses.get(file_id)) for span, file_id in find_files(given)))
