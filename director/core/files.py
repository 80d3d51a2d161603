"""Where files are kept, those of outputs and those that callers give: a small interface, and a folder behind it.

A file of an output belongs to one prediction and is named after it and after its bytes, so that putting it twice is
putting it once. A caller's file belongs to an account, and goes to its place piece by piece, however large it is.
Never decides how long a file lives: who sweeps does, by whether Redis still knows what it belongs to.
"""

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, TypeVar

from anyio import to_thread
from msgspec import Struct
from msgspec.structs import replace
from redis.asyncio import Redis

from director.core.clock import Clock
from director.core.errors import SettingsError
from director.core.ids import FileId, PredictionId, is_file_id, is_prediction_id
from director.core.links import Links

__all__ = (
    "PLAIN_TYPE",
    "READ_BYTES",
    "CallerFileName",
    "FileName",
    "FileStore",
    "LocalFiles",
    "OpenFile",
    "StoredName",
    "ending_of",
    "file_name",
    "name_of",
    "store_in",
)

if TYPE_CHECKING:
    from director.core.s3_files import S3Files

T = TypeVar("T")

READ_BYTES: Final = 256 * 1024
LONGEST_TYPE: Final = 256
NAME: Final = re.compile(r"([0-9a-z]{26})-([0-9a-f]{32})\.([a-z0-9]{1,8})")
GROUP: Final = re.compile(r"[0-9a-z]{2}")
CALLER_NAME: Final = re.compile(r"([a-z0-9][a-z0-9_-]{0,63})/([0-9a-z]{26})\.([a-z0-9]{1,8}|part~)")
PARTIAL: Final = "part~"  # the ending while it comes; no caller's own
CALLERS: Final = "uploads"  # the part of a store that has callers' files: no end of an id is so long
PLAIN_TYPE: Final = "application/octet-stream"

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


class OpenFile(Struct, frozen=True, eq=False):
    """A file that can be read. `read` has the bytes from one place up to another, and holds nothing of the file before
    it is asked for the first of them, nor after its end, nor when it is closed early.
    """

    content_type: str
    size: int
    read: Callable[[int, int], AsyncGenerator[bytes, None]]


class FileStore(Protocol):
    """What a store has to do. Any error that it raises is taken for a passing one, and it is asked again."""

    sweep_s: float
    """How often it is looked through for what is to be deleted."""

    async def probe(self) -> str:
        """What is wrong with it, in words for whoever runs it, without a secret; '' when nothing is."""
        ...

    async def put(self, name: FileName, data: bytes, *, content_type: str) -> None:
        """Keep a file, for good once this returns. Safe to repeat."""
        ...

    async def take(self, name: StoredName, blocks: AsyncIterator[bytes], *, content_type: str) -> None:
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

    async def remove(self, prediction_id: PredictionId) -> None:
        """Delete all files of this prediction, and of no other."""
        ...


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


def store_in(
    folder: str, redis: Redis, clock: Clock, *, url: str = "", writes: bool = False
) -> "LocalFiles | S3Files | None":
    """The store that the settings name, a bucket rather than a folder; None where they name none.

    Raises SettingsError where there is no such store, or one that it `writes` and cannot.
    """
    if url:
        try:
            from director.core.s3_files import S3Files, bucket_of
        except ImportError as exc:
            raise SettingsError("DIRECTOR_FILES_URL needs a package: pip install 'director[s3]'.") from exc
        return S3Files(bucket_of(url), Links(redis, clock), clock)
    if not folder:
        return None
    store = LocalFiles(Path(folder), Links(redis, clock))
    if writes:
        store.prepare()
    return store


class LocalFiles:
    """A folder: `<end of the id>/<id>/<digest>.<ending>`; `uploads/<account>/<end of the id>/<id>.<ending>` for what
    callers give. Each file begins with a line that is its media type.

    All processes that read or write it have to see the same folder. `links` signs the addresses at which the API
    serves it.
    """

    sweep_s = 60.0

    def __init__(self, folder: Path, links: Links) -> None:
        self._folder = folder
        self._links = links

    def prepare(self) -> None:
        """Make the folder, for this user alone. Raises SettingsError where nothing can be written there."""
        probe = self._folder / f".{secrets.token_hex(8)}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as exc:
            raise SettingsError(f"DIRECTOR_FILES_DIR: {self._folder} cannot be written ({exc.strerror}).") from exc

    async def probe(self) -> str:
        is_good = await _in_thread(os.access, _nearest(self._folder), os.R_OK | os.W_OK | os.X_OK)
        return "" if is_good else f"DIRECTOR_FILES_DIR: {self._folder} cannot be written"

    async def put(self, name: FileName, data: bytes, *, content_type: str) -> None:
        """Written beside its place, brought to the disk, then moved there: nobody ever sees half of it."""
        await _in_thread(self._put, name, data, content_type)

    async def take(self, name: StoredName, blocks: AsyncIterator[bytes], *, content_type: str) -> None:
        path = self._path(name)
        await _in_thread(_make_folder, path.parent)
        new = _beside(path) if isinstance(name, FileName) else self._path(replace(name, ending=PARTIAL))
        # nothing of it is left behind running: what it writes to is closed and gone when this returns
        file = await to_thread.run_sync(new.open, "xb")
        try:
            await to_thread.run_sync(file.write, _head(content_type))
            async for block in blocks:
                await to_thread.run_sync(file.write, block)
            await to_thread.run_sync(_bring_to_disk, file)
            await to_thread.run_sync(new.replace, path)
        finally:
            file.close()
            new.unlink(missing_ok=True)
        await _in_thread(self._sync_up, path)

    async def url(self, name: FileName, *, base: str, expires_s: int) -> str:
        return await self._links.signed(str(name), base=base, expires_s=expires_s)

    async def fetch_url(self, name: CallerFileName, *, shown: str, base: str, expires_s: int) -> str:
        return await self._links.download(name.account, name.id, name=shown, base=base, expires_s=expires_s)

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
        await _in_thread(self._path(name).unlink, True)  # also where it is gone

    async def holders(self, most: int) -> AsyncIterator[list[PredictionId]]:
        for group in filter(GROUP.fullmatch, await _in_thread(_names, self._folder)):  # a disk has a lost+found beside
            holders = [PredictionId(name) for name in await _in_thread(_names, self._folder / group)]
            for start in range(0, len(holders), most):
                yield [each for each in holders[start : start + most] if is_prediction_id(each)]

    async def remove(self, prediction_id: PredictionId) -> None:
        await _in_thread(self._remove, prediction_id)

    def _home(self, prediction_id: PredictionId) -> Path:
        # the end of an id is random, so that no folder gets long
        return self._folder / prediction_id[-2:] / prediction_id

    def _path(self, name: StoredName) -> Path:
        if isinstance(name, CallerFileName):
            return self._folder / CALLERS / name.account / name.id[-2:] / f"{name.id}.{name.ending}"
        return self._home(name.prediction_id) / f"{name.digest}.{name.ending}"

    def _put(self, name: FileName, data: bytes, content_type: str) -> None:
        path = self._path(name)
        if not path.exists():
            _make_folder(path.parent)
            new = _beside(path)
            try:
                with new.open("xb") as file:
                    file.write(_head(content_type) + data)
                    _bring_to_disk(file)
                new.replace(path)
            finally:
                new.unlink(missing_ok=True)
        self._sync_up(path)

    def _sync_up(self, path: Path) -> None:
        for folder in path.parents:  # an entry lasts once its folder is written
            _sync(folder)
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
    """What is in a file from `begin` on, of that from `start` to `stop`."""
    with await _in_thread(_at, path, begin + start) as file:
        left = stop - start
        while left > 0 and (chunk := await _in_thread(file.read, min(left, READ_BYTES))):
            left -= len(chunk)
            yield chunk


def _beside(path: Path) -> Path:
    return path.with_name(f".{secrets.token_hex(8)}")


def _nearest(folder: Path) -> Path:
    """The folder, or the one that it would be made in."""
    return next(each for each in (folder, *folder.parents) if each.is_dir() or each.exists())


def _head(content_type: str) -> bytes:
    return content_type.encode("ascii") + b"\n"


def _make_folder(folder: Path) -> None:
    if not folder.parent.exists():  # `parents=True` would make those for everybody to read
        _make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def _bring_to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _at(path: Path, begin: int) -> BinaryIO:
    file = path.open("rb")
    file.seek(begin)
    return file


async def _in_thread(call: Callable[..., T], *args: Any) -> T:
    # a disk that hangs must not hang who waits for it: the thread is left behind
    return await to_thread.run_sync(call, *args, abandon_on_cancel=True)


def _names(folder: Path) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(entry.name for entry in folder.iterdir())
    return []


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
