"""Note which keepers and API processes there are, and read it. Directors are known by their heartbeats.

A process is one member of a sorted set, scored with the server's time of its last sign. Plain commands that every
user of Redis has suffice.
"""

import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from director import __version__
from director.broker import keys
from director.broker.redis_client import ask, pipelined, server_ms
from director.core.clock import Clock

TICK_S: Final = 10.0
ALIVE_S: Final = 30.0
KEPT_S: Final = 3_600
MOST: Final = 1_000

Role = Literal["api", "keeper"]


class Process(Struct, frozen=True, kw_only=True):
    """A keeper or an API process. `since_ms` is by the server's clock, and `ahead_s` how far its own is ahead of it.
    `files`: why its store of files does not work. Processes of older releases do not say.
    """

    name: str
    role: Role
    version: str
    since_ms: int
    ahead_s: int
    files: str = ""


class Processes:
    def __init__(self, redis: Redis) -> None:
        self._redis: Any = redis  # ours answers in bytes

    async def alive(self, now_ms: int) -> list[Process]:
        """Return the processes that recently gave a sign, by role and name. `now_ms` is by the server's clock."""
        since_ms = now_ms - ALIVE_S * 1000
        members = await ask(lambda: self._redis.zrangebyscore(keys.processes(), since_ms, "+inf", 0, MOST))
        found = [msgspec.json.decode(member, type=Process) for member in members]
        newest = {one.name: one for one in found}  # one whose clock was just set has two members
        return sorted(newest.values(), key=lambda one: (one.role, one.name))

    async def newest_signs(self, role: Role) -> dict[str, float]:
        """Return the time of the last sign of each process of the role within the last hour, by name."""
        signs = await ask(lambda: self._redis.zrevrange(keys.processes(), 0, MOST - 1, withscores=True))
        found = [(msgspec.json.decode(member, type=Process), at_ms) for member, at_ms in reversed(signs)]
        return {one.name: at_ms for one, at_ms in found if one.role == role}


class Presence:
    """The sign of this process."""

    def __init__(
        self, redis: Redis, clock: Clock, role: Role, *, store_check: Callable[[], Awaitable[str]] | None = None
    ) -> None:
        self._redis = redis
        self._clock = clock
        self._role: Role = role
        self._store_check = store_check
        self.name: Final = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._since_ms: int | None = None

    async def run_once(self) -> Process:
        before_ms = self._clock.now_ms()
        at_ms = await server_ms(self._redis)
        ahead_ms = (before_ms + self._clock.now_ms()) / 2 - at_ms
        self._since_ms = self._since_ms or at_ms
        sign = Process(
            name=self.name,
            role=self._role,
            version=__version__,
            since_ms=self._since_ms,
            ahead_s=round(ahead_ms / 1000),
            files=await self._store_check() if self._store_check is not None else "",
        )

        def note(pipe: Any) -> None:
            pipe.zadd(keys.processes(), {msgspec.json.encode(sign): at_ms})
            pipe.zremrangebyscore(keys.processes(), "-inf", at_ms - KEPT_S * 1000)
            # signs from before the clock went back: they would be the newest until it has caught up
            pipe.zremrangebyscore(keys.processes(), at_ms + ALIVE_S * 1000, "+inf")
            pipe.pexpire(keys.processes(), KEPT_S * 1000)

        await pipelined(self._redis, note)
        return sign
