"""Hold an account to the bytes that it may keep, while a file of it comes: its room is taken before it is written.

A piece ahead, so that a large file asks a few times only, and byte by byte where there is little room left. What a
process that dies had taken is free again within an hour.
"""

from typing import Final

from api.parts import Parts
from api.refusals import storage_full
from director.core.ids import FileId
from director.files.caller_files import GRACE_S, CallerFile
from director.store.accounts import Account

__all__ = ("Room",)

AHEAD_BYTES: Final = 8 << 20


class Room:
    """That of one file. An account without a quota is counted once its file is there, and asked for nothing before."""

    def __init__(self, parts: Parts, account: Account, file_id: FileId) -> None:
        self._scripts = parts.scripts
        self._account = account.name
        self._most = account.limits.max_files_bytes
        self._id = file_id
        self._until_ms = parts.clock.now_ms() + int(GRACE_S * 1000)
        self._taken = 0

    async def reach(self, size: int) -> None:
        """The file is to have so many bytes; 413 where there is no room for them."""
        if self._most is None or size <= self._taken:
            return
        if not await self._take(size + AHEAD_BYTES) and not await self._take(size):
            raise storage_full(413, self._most)

    async def keep(self, file: CallerFile) -> None:
        """It is there, whole, until it expires."""
        self._taken = file.size
        await self._scripts.stow(self._account, self._id, file.size, until_ms=file.expires)

    async def free(self) -> None:
        """It is not there."""
        if self._taken:
            await self._scripts.stow(self._account, self._id)

    async def _take(self, size: int) -> bool:
        stowed = await self._scripts.stow(self._account, self._id, size, most=self._most, until_ms=self._until_ms)
        if stowed.fits:
            self._taken = size
        return stowed.fits
