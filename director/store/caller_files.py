"""Keep what Redis knows of callers' files: name, size, checksums and expiry.

An account's files are stored under its own name, so another account's file is not found. The bytes are in a file store.
They are stored before anything is written here, and a stored file that is not recorded here is swept away.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text
from director.core.data_bytes import FILE_BYTES, NOTHING, Counted, until_ms
from director.core.ids import FileId, is_file_id, lowest_id_at
from director.files.store import CallerFileName

# Longer than any upload takes: a stored file that is not recorded after this time never will be
GRACE_S: Final = 3600.0
# Off a list, with each file that comes
MOST_TRIMMED: Final = 16


class CallerFile(Struct, frozen=True, kw_only=True):
    id: FileId
    account: str
    name: str
    ending: str
    content_type: str
    size: int
    sha256: str
    md5: str
    metadata: Raw
    created: int
    expires: int
    counted: int = 0  # bytes of this record in its account's data; release 0.3.0 counts none
    purpose: str = ""  # of OpenAI's API

    @property
    def counts(self) -> Counted:
        """Return what counts of the record until it expires."""
        return Counted(self.counted, until_ms(self.created, self.expires - self.created)) if self.counted else NOTHING

    def with_count(self) -> "CallerFile":
        return replace(self, counted=FILE_BYTES + len(msgspec.json.encode(self)))

    @property
    def stored_as(self) -> CallerFileName:
        return CallerFileName(self.account, self.id, self.ending)


class CallerFiles:
    """Callers' files and their lists in Redis. All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def add(self, file: CallerFile, *, is_known: bool = False) -> None:
        """Record a file, and list it. `is_known`: `keep` recorded it, and it stays gone if it was deleted since."""
        key, listing, life_ms = keys.file(file.account, file.id), keys.files(file.account), file.expires - file.created
        oldest = lowest_id_at(max(0, file.created - life_ms))

        def write(pipe: Any) -> None:
            pipe.set(key, msgspec.json.encode(file), px=life_ms, xx=is_known)
            pipe.zadd(listing, {file.id: 0})
            pipe.pexpire(listing, life_ms, nx=True)
            pipe.pexpire(listing, life_ms, gt=True)  # older files may live longer: the setting was another one then

        await pipelined(self._redis, write, transaction=True)
        # take some expired files off the list: more than one came
        old = await self.ids(file.account, high=f"({oldest}", count=MOST_TRIMMED, newest_first=False)
        alive = await self.find(file.account, old)
        if gone := [file_id for file_id in old if file_id not in alive]:
            await ask(lambda: self._redis.zrem(listing, *gone))

    async def keep(self, file: CallerFile, *, life_ms: int) -> None:
        """Record a file without its place on the list: it can be read by its id, and its bytes are not swept away."""
        key = keys.file(file.account, file.id)
        await ask(lambda: self._redis.set(key, msgspec.json.encode(file), px=life_ms))

    async def read_counted(self, account: str) -> list[FileId]:
        """Return all files that count in the account's quota, also those that are on no list: parts of batches."""
        found: list[Any] = await ask(lambda: self._redis.zrange(keys.stored_until(account), 0, -1))
        return [FileId(name) for name in (text(each) for each in found) if is_file_id(name)]

    async def prolong(self, file: CallerFile, *, until_ms: int) -> None:
        """Keep a file at least until then. Its record still says when it was to expire."""
        names = keys.file(file.account, file.id), keys.files(file.account)
        await pipelined(self._redis, lambda pipe: [pipe.pexpireat(name, until_ms, gt=True) for name in names])

    async def forget(self, account: str, file_id: FileId) -> None:
        """Forget a file that `keep` recorded. The caller of this deletes its bytes, or they are swept away."""
        await ask(lambda: self._redis.delete(keys.file(account, file_id)))

    async def get(self, account: str, file_id: FileId) -> CallerFile | None:
        return (await self.find(account, [file_id])).get(file_id)

    async def find(self, account: str, ids: Sequence[FileId]) -> Mapping[FileId, CallerFile]:
        if not ids:
            return {}
        found = await ask(lambda: self._redis.mget([keys.file(account, file_id) for file_id in ids]))
        files = [msgspec.json.decode(each, type=CallerFile) for each in found if each is not None]
        return {file.id: file for file in files}

    async def ids(
        self, account: str, *, low: str = "-", high: str = "+", count: int, newest_first: bool = True
    ) -> list[FileId]:
        """Return at most `count` ids between two bounds, as in `Predictions.ids`. Some files may have expired."""
        key = keys.files(account)
        if newest_first:
            found = await ask(lambda: self._redis.zrevrangebylex(key, high, low, start=0, num=count))
        else:
            found = await ask(lambda: self._redis.zrangebylex(key, low, high, start=0, num=count))
        return [FileId(text(name)) for name in found]

    async def remove(self, file: CallerFile) -> None:
        """Forget a file. The caller of this takes it off the list (`delist`), and deletes its bytes, or they are swept
        away.
        """
        await self.forget(file.account, file.id)

    async def unknown(self, names: Sequence[CallerFileName]) -> list[CallerFileName]:
        found = await pipelined(
            self._redis, lambda pipe: [pipe.exists(keys.file(name.account, name.id)) for name in names]
        )
        return [name for name, is_known in zip(names, found, strict=True) if not is_known]
