"""Know whether the memory of Redis is short, and what each account may have then."""

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from redis.asyncio import Redis

from director.broker.redis_client import infos
from director.core.clock import Clock
from director.core.data_bytes import SHORT, Fullness, share_while_short
from director.core.errors import BackendUnavailable, DataRefused
from director.runtime.process import Recent
from director.store.account_data import data_share

log = logging.getLogger(__name__)
MEMORY_FRESH_S: Final = 1.0
MEMORY_STALE_S: Final = 10.0  # an API that had no creates for long, or whose looks fail, knows nothing
LONGEST_RETRY_S: Final = 60  # clients sleep for this long


class DataLimit(NamedTuple):
    """The most bytes that an account may have now, None for no limit, and the code of a refusal."""

    most: int | None
    code: str

    def refusal(self, refused: Sequence[int]) -> DataRefused:
        """Return the error for the reply of a script: bytes that the account has, and ms until there is room."""
        used, retry_after_ms = refused
        retry_after_s = max(1, min(LONGEST_RETRY_S, math.ceil(retry_after_ms / 1000)))
        return DataRefused(self.code, limit=self.most or 0, used=used, retry_after_s=retry_after_s)


NO_LIMIT: Final = DataLimit(None, "data_full")


class Memory:
    """Knows whether Redis's memory is short, and what an account may have then, without a command for each create.

    It keeps the look of the last second. A create that finds it old starts the next look and does not wait for it. What
    was accepted here meanwhile is added to it. Bytes of refused creates are not, or one account that goes on after a
    refusal would have others refused. A look that is older than MEMORY_STALE_S refuses none.
    """

    def __init__(self, redis: Redis, clock: Clock) -> None:
        self._redis = redis
        self._clock = clock
        self._memory = Fullness(0, 0)
        self._share: int | None = None
        self._accepted = 0
        self._asked_at = self._seen_at = float("-inf")
        self._look: asyncio.Task[None] | None = None
        self._recent = Recent(self._fullness, clock)

    async def is_full(self) -> bool:
        """Return whether Redis refuses new work for lack of memory, by a look of the last second."""
        return (await self._recent.get()).part >= 1

    async def _fullness(self) -> Fullness:
        return Fullness.of(await infos(self._redis, "memory"))

    def share(self, bytes_more: int) -> int | None:
        """Return the most bytes that an account may have, these included. None while memory is not short, or while no
        keeper has published a share. The bytes count here until `uncount`, or until the next look.
        """
        now = self._clock.monotonic()
        if now - self._asked_at >= MEMORY_FRESH_S and (self._look is None or self._look.done()):
            self._asked_at = now
            self._look = asyncio.get_running_loop().create_task(self._look_again())
        self._accepted += bytes_more
        if now - self._seen_at > MEMORY_STALE_S or self._share is None:
            return None
        part = self._memory._replace(used=self._memory.used + self._accepted).part
        return share_while_short(self._share, part) if part > SHORT else None

    def limit(self, most_data: int | None, bytes_more: int) -> DataLimit:
        """Return what holds for these bytes more of an account that may have `most_data`. They count as in `share`."""
        share = self.share(bytes_more)
        if share is None or (most_data is not None and most_data < share):
            return NO_LIMIT if most_data is None else DataLimit(most_data, NO_LIMIT.code)
        return DataLimit(share, "memory_short")

    def uncount(self, bytes_more: int) -> None:
        """Count no longer what was not accepted."""
        self._accepted = max(0, self._accepted - bytes_more)

    def release(self) -> None:
        if self._look is not None:
            self._look.cancel()

    async def _look_again(self) -> None:
        try:
            await self.look()
        except BackendUnavailable:
            pass  # creates find out by themselves
        except Exception:  # a create must not be refused because its memory cannot be looked at
            log.exception("looking at the memory of Redis failed")

    async def look(self) -> None:
        self._accepted = 0
        share = await data_share(self._redis)
        self._memory = await self._fullness()
        self._share = share
        self._seen_at = self._clock.monotonic()
