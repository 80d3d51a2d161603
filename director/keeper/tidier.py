"""Delete the files of predictions whose data is gone.

A file lives exactly as long as the output that names it: what Redis still has, or what may still be finished, keeps its
files, however old. Never deletes anything while Redis cannot be asked, and never looks at more than a portion at once.
"""

import logging
from collections.abc import Sequence
from typing import Final, NoReturn

from msgspec import Struct
from redis.asyncio import Redis

from director.core import keys
from director.core.clock import Clock
from director.core.files import FileStore
from director.core.ids import PredictionId
from director.core.redis_client import ask, text
from director.core.states import TERMINAL
from director.keeper.sweep import LIMIT, repeat

__all__ = ("Tidied", "Tidier")

log = logging.getLogger(__name__)

PERIOD_S: Final = 60.0


class Tidied(Struct, frozen=True):
    """What one sweep did: predictions whose files it looked at, and whose it deleted."""

    seen: int = 0
    removed: int = 0


class Tidier:
    """Sweeps a whole store."""

    def __init__(self, redis: Redis, store: FileStore, clock: Clock) -> None:
        self._redis = redis
        self._store = store
        self._clock = clock

    async def run(self) -> NoReturn:
        """Sweep every minute."""
        await repeat(self.run_once, role="tidier", tick_s=PERIOD_S, clock=self._clock)

    async def run_once(self) -> Tidied:
        """Delete all files that nothing names any more. What cannot be deleted now is left to the next sweep."""
        seen = removed = 0
        async for holders in self._store.holders(LIMIT):
            seen += len(holders)
            for prediction_id in await self._gone(holders):
                try:
                    await self._store.remove(prediction_id)
                except Exception:  # a store is somebody else's: one prediction's files must not keep all others'
                    log.warning("files cannot be deleted", extra={"prediction": prediction_id}, exc_info=True)
                else:
                    removed += 1
        if removed:
            log.info("files deleted", extra={"seen": seen, "removed": removed})
        return Tidied(seen, removed)

    async def _gone(self, holders: Sequence[PredictionId]) -> list[PredictionId]:
        async def read() -> list[bytes | int | None]:
            pipe = self._redis.pipeline(transaction=False)
            for prediction_id in holders:
                pipe.hget(keys.record(prediction_id), "status")
                pipe.exists(keys.output_data(prediction_id))
            return list(await pipe.execute())

        replies = iter(await ask(read) if holders else [])
        found = zip(holders, replies, replies, strict=True)
        return [each for each, status, has_output in found if not has_output and not _may_end(status)]


def _may_end(status: bytes | int | None) -> bool:
    """Is it known, and not terminal?"""
    return isinstance(status, bytes) and text(status) not in TERMINAL
