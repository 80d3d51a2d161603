"""Sum the bytes that accounts hold in Redis, and publish what each may have while memory is short.

Any number of keepers may do so at once: each publishes what it finds. Without a keeper no account is refused for this.
"""

import heapq
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

import msgspec
from msgspec import Struct

from director.broker import keys
from director.broker.redis_client import ask, infos, pipelined, texts
from director.core.clock import Clock
from director.core.data_bytes import BUSY, Fullness, count_bytes, fair_share, room_for_data
from director.core.errors import BackendFull
from director.keeper.sweeps import each_account
from director.operate.findings import Holder

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
    _redis: Any  # redis-py says str or bytes; ours answers in bytes
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
        held = await self._held()
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
                await ask(lambda: self._redis.set(keys.data_share(), share, px=kept_ms))
            if memory.part > BUSY:
                await ask(lambda: self._redis.set(keys.data_first(), msgspec.json.encode(holder), px=kept_ms))
        except BackendFull:  # it refuses even another value, so the last ones stay: now they matter most
            last = (keys.data_share(), keys.data_first())
            await pipelined(self._redis, lambda pipe: [pipe.pexpire(key, kept_ms) for key in last])
        self._next_s = self._clock.monotonic() + pause_s
        first = heapq.nlargest(NAMED, held.items(), key=itemgetter(1))
        self.last = Held(len(held), total, max(held.values(), default=0), share, tuple(first))
        return self.last

    async def _held(self) -> Mapping[str, int]:
        now_ms, held = self._clock.now_ms(), dict[str, int]()
        async for name, fields in each_account(self._redis, lambda pipe, name: pipe.hgetall(keys.data(name))):
            if size := count_bytes(texts(fields).items(), now_ms=now_ms):
                held[name] = size
        return held
