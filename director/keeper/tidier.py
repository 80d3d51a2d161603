"""Delete files of predictions whose data is gone, and expired files of callers.

A file of a prediction lives as long as data in Redis names it, its prediction may still finish, or a version is made of
it. It is left alone while its prediction may still be accepted, and a caller's file while it may be arriving.
Nothing is deleted while Redis cannot answer. Files stop counting before they are deleted: once they are gone, no sweep
sees them again, and a count that was left over would stay.
"""

import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from msgspec import Struct
from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.ids import PredictionId, created_ms_of
from director.core.schema import REFERENCE_BYTES
from director.core.states import TERMINAL
from director.files.store import FileStore
from director.runtime.sweep import LIMIT
from director.store.account_data import remains
from director.store.caller_files import GRACE_S, CallerFiles
from director.store.removal import whose_weights_are_kept

log = logging.getLogger(__name__)


class Tidied(Struct, frozen=True):
    seen: int = 0
    removed: int = 0


@dataclass(slots=True, eq=False)
class Tidier:
    _redis: Redis
    _scripts: Scripts
    _store: FileStore
    _clock: Clock

    async def run_once(self) -> Tidied:
        """Delete all files that nothing names. A file that cannot be deleted now is left to the next sweep."""
        seen = removed = 0
        async for holders in self._store.holders(LIMIT):
            seen += len(holders)
            for prediction_id, account in await self._find_gone(holders):
                if account:  # without a record it stops counting when its time is over
                    await self._scripts.stow(account, prediction_id)
                removed += await self._delete(self._store.remove(prediction_id), prediction_id)
        async for names in self._store.callers(LIMIT):
            seen += len(names)
            before_ms = self._clock.now_ms() - GRACE_S * 1000
            arrived = [name for name in names if created_ms_of(name.id) < before_ms]
            for name in await CallerFiles(self._redis).unknown(arrived):
                await self._scripts.stow(name.account, name.id)  # an upload or a deletion may have been cut short
                removed += await self._delete(self._store.discard(name), name.id)
        if removed:
            log.info("files deleted", extra={"seen": seen, "removed": removed})
        return Tidied(seen, removed)

    async def _delete(self, deleting: Awaitable[None], whose: str) -> bool:
        try:
            await deleting
        except Exception:  # a store belongs to others: one file that cannot be deleted must not keep the rest
            log.warning("files cannot be deleted", extra={"of": whose}, exc_info=True)
            return False
        return True

    async def _find_gone(self, holders: Sequence[PredictionId]) -> list[tuple[PredictionId, str]]:
        gone = {
            each: left.account
            for each, left in (await remains(self._redis, holders)).items()
            if (left.has_moved or self._is_over(each, left.status))
            and not left.has_output
            and left.input_bytes != REFERENCE_BYTES
        }
        kept = await whose_weights_are_kept(self._redis, list(gone))
        return [(each, account) for each, account in gone.items() if each not in kept]

    def _is_over(self, prediction_id: PredictionId, status: str | None) -> bool:
        """Return False for a prediction that may still end, or be accepted: its input is stored before its record."""
        if status is None:
            return created_ms_of(prediction_id) < self._clock.now_ms() - GRACE_S * 1000
        return status in TERMINAL
