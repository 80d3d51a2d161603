"""Sum the bytes that accounts hold in Redis, and publish what each may have while memory is short.

Any number of keepers may do so at once: each publishes what it finds. Without a keeper no account is refused for this.
"""

import heapq
import time
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from msgspec import Struct
from redis.asyncio import Redis

from director.broker.redis_client import infos
from director.core.clock import Clock
from director.core.data_bytes import BUSY, Fullness, fair_share, room_for_data
from director.core.errors import BackendFull
from director.store.account_data import (
    Holder,
    data_of_accounts,
    keep_share_and_holder,
    put_data_share,
    put_holder,
)

CALM_S: Final = 10.0  # between two looks while much memory is free
LONGEST_S: Final = 60.0
SHARE: Final = 0.01  # of the time, so that many accounts cost no more
KEPT: Final = 3  # a share is valid for this many looks
LEAST_KEPT_S: Final = 10.0
NAMED: Final = 5


class Held(Struct, frozen=True):
    """Bytes of all accounts: of how many, together, the most of one, and the `share` of each. `first`: the largest."""

    accounts: int
    total: int
    most: int
    share: int
    first: tuple[tuple[str, int], ...]


@dataclass(slots=True, eq=False)
class Shares:
    _redis: Redis
    _clock: Clock
    last: Held | None = None
    _next_s: float = field(default=float("-inf"))

    async def look_in_time(self) -> None:
        """Look each second while memory is more than half used, else each ten seconds; less often at many accounts."""
        memory = Fullness.of(await infos(self._redis, "memory"))
        now_s = self._clock.monotonic()
        if now_s >= self._next_s or (memory.part > BUSY and now_s >= self._next_s - CALM_S):
            await self.run_once()

    async def run_once(self) -> Held:
        began = time.perf_counter()
        held = await data_of_accounts(self._redis, now_ms=self._clock.now_ms())
        memory = Fullness.of(await infos(self._redis, "memory"))
        took_s = time.perf_counter() - began
        total = sum(held.values())
        share = fair_share(held.values(), room_for_data(memory, data=total)) if memory.limit else 0
        pause_s = min(CALM_S + took_s / SHARE, LONGEST_S)
        kept_ms = int(1000 * max(LEAST_KEPT_S, KEPT * pause_s))
        account, most = max(held.items(), key=itemgetter(1), default=("", 0))
        holder = Holder(account=account, bytes=most, total=total, accounts=len(held))
        try:
            if memory.limit:
                await put_data_share(self._redis, share, kept_ms=kept_ms)
            if memory.part > BUSY:
                await put_holder(self._redis, holder, kept_ms=kept_ms)
        except BackendFull:  # the last ones stay: now they matter most
            await keep_share_and_holder(self._redis, kept_ms=kept_ms)
        self._next_s = self._clock.monotonic() + pause_s
        first = heapq.nlargest(NAMED, held.items(), key=itemgetter(1))
        self.last = Held(len(held), total, max(held.values(), default=0), share, tuple(first))
        return self.last
