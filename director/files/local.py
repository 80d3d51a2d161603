"""Store files in a folder, for one machine or for machines that share a disk.

All processes that read or write must see the same folder. A reader never sees part of a file, and a file that can be
read has reached the disk.
"""

import asyncio
import os
import re
import secrets
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from anyio import CancelScope, to_thread
from msgspec.structs import replace

from director.core.errors import FULL, SettingsError
from director.core.ids import PredictionId, is_prediction_id
from director.files.store import (
    PLAIN_TYPE,
    READ_BYTES,
    CallerFileName,
    FileName,
    LinkedStore,
    Links,
    OpenFile,
    StoredName,
)

T = TypeVar("T")

LONGEST_TYPE: Final = 256
GROUP: Final = re.compile(r"[0-9a-z]{2}")
PARTIAL: Final = "part~"  # callers' files; longer than the end of any id, so it is no group of outputs
CALLERS: Final = "uploads"  # the ending during an upload; no caller's file can have it


class LocalFiles(LinkedStore):
    """Outputs at `<end of the id>/<id>/<digest>.<ending>`, uploads at `uploads/<account>/<end of the
    id>/<id>.<ending>`.
    Each file begins with a line that holds its media type. `links` signs the addresses at which the API serves them.
    """

    sweep_s = 60.0

    def __init__(self, folder: Path, links: Links) -> None:
        self._folder = folder
        super().__init__(links)

    def prepare(self) -> None:
        """Make the folder, readable by this user alone. Raises SettingsError if it can never be written."""
        probe = self._folder / f".{secrets.token_hex(8)}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as exc:
            if exc.errno in FULL:  # until there is room, each file is refused
                return
            raise SettingsError(f"DIRECTOR_FILES_DIR: {self._folder} cannot be written ({exc.strerror}).") from exc

    async def probe(self) -> str:
        nearest = next(each for each in (self._folder, *self._folder.parents) if each.is_dir() or each.exists())
        is_good = await _in_thread(os.access, nearest, os.R_OK | os.W_OK | os.X_OK)
        return "" if is_good else f"DIRECTOR_FILES_DIR: {self._folder} cannot be written"

    async def put(self, name: StoredName, data: bytes | AsyncIterator[bytes], *, content_type: str) -> None:
        """Write the file beside its place, sync it, then rename it, so that a reader never sees part of it."""
        path = self._path(name)
        if isinstance(data, bytes):
            await _in_thread(self._put, path, _head(content_type) + data)
            return
        await _in_thread(_make_folder, path.parent)
        new = _beside(path) if isinstance(name, FileName) else self._path(replace(name, ending=PARTIAL))
        opened: list[BinaryIO] = []
        try:
            await _to_its_end(lambda: opened.append(new.open("xb")))
            [file] = opened
            await _to_its_end(file.write, _head(content_type))
            async for block in data:
                await _to_its_end(file.write, block)
            await _to_its_end(_bring_to_disk, file)
            await _to_its_end(new.replace, path)
        finally:
            for file in opened:
                with suppress(OSError):  # what a full disk has no room for is tried again
                    file.close()
            new.unlink(missing_ok=True)
        await _in_thread(self._sync_up, path)

    async def open(self, name: StoredName) -> OpenFile | None:
        return await _in_thread(self._open, name)

    async def callers(self, most: int) -> AsyncIterator[list[CallerFileName]]:
        top = self._folder / CALLERS
        for account in await _in_thread(_names, top):
            for group in await _in_thread(_names, top / account):
                found = [f"{account}/{each}" for each in await _in_thread(_names, top / account / group)]
                names = [name for name in map(CallerFileName.parse, found) if name is not None]
                for start in range(0, len(names), most):
                    yield names[start : start + most]

    async def discard(self, name: CallerFileName) -> None:
        await _in_thread(self._path(name).unlink, True)  # missing_ok

    async def holders(self, most: int) -> AsyncIterator[list[PredictionId]]:
        # the root of a disk also has a lost+found
        for group in filter(GROUP.fullmatch, await _in_thread(_names, self._folder)):
            holders = [PredictionId(name) for name in await _in_thread(_names, self._folder / group)]
            for start in range(0, len(holders), most):
                yield [each for each in holders[start : start + most] if is_prediction_id(each)]

    async def remove(self, prediction_id: PredictionId) -> None:
        await _in_thread(self._remove, prediction_id)

    def _home(self, prediction_id: PredictionId) -> Path:
        # the end of an id is random, so no folder gets long
        return self._folder / prediction_id[-2:] / prediction_id

    def _path(self, name: StoredName) -> Path:
        if isinstance(name, CallerFileName):
            return self._folder / CALLERS / name.account / name.id[-2:] / f"{name.id}.{name.ending}"
        return self._home(name.prediction_id) / f"{name.digest}.{name.ending}"

    def _put(self, path: Path, data: bytes) -> None:
        if not path.exists():
            _make_folder(path.parent)
            new = _beside(path)
            try:
                with new.open("xb") as file:
                    file.write(data)
                    _bring_to_disk(file)
                new.replace(path)
            finally:
                new.unlink(missing_ok=True)
        self._sync_up(path)

    def _sync_up(self, path: Path) -> None:
        for folder in path.parents:  # an entry is durable once its folder is synced
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if folder == self._folder:
                return

    def _open(self, name: StoredName) -> OpenFile | None:
        path = self._path(name)
        try:
            with path.open("rb") as file:
                content_type = file.readline(LONGEST_TYPE).decode("ascii", errors="replace").rstrip("\n")
                begin, end = file.tell(), os.fstat(file.fileno()).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        return OpenFile(content_type or PLAIN_TYPE, end - begin, partial(_chunks, path, begin))

    def _remove(self, prediction_id: PredictionId) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._home(prediction_id))


async def _chunks(path: Path, begin: int, start: int, stop: int) -> AsyncGenerator[bytes, None]:
    """Open the file for each chunk: a reader that takes it slowly holds no descriptor meanwhile."""
    while start < stop and (chunk := await _in_thread(_chunk, path, begin + start, min(stop - start, READ_BYTES))):
        start += len(chunk)
        yield chunk


def _chunk(path: Path, start: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(size)


def _beside(path: Path) -> Path:
    return path.with_name(f".{secrets.token_hex(8)}")


def _head(content_type: str) -> bytes:
    return content_type.encode("ascii") + b"\n"


def _make_folder(folder: Path) -> None:
    if not folder.parent.exists():  # `parents=True` would let every user read the parents
        _make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def _bring_to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


async def _in_thread(call: Callable[..., T], *args: Any) -> T:
    # a disk that hangs must not hang the caller too: cancellation leaves the thread behind
    return await to_thread.run_sync(call, *args, abandon_on_cancel=True)


async def _to_its_end(call: Callable[..., object], *args: Any) -> None:
    # cancellation waits for the thread: so its open file is known, and nothing is written later
    running = asyncio.ensure_future(to_thread.run_sync(call, *args))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        with CancelScope(shield=True):
            await asyncio.gather(running, return_exceptions=True)
        raise


def _names(folder: Path) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(entry.name for entry in folder.iterdir())
    return []
