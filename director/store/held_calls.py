"""Note which calls each API process holds, so that a keeper can cancel those of a process that died.

A process holds the calls of OpenAI's API that it cancels when their callers hang up. They are members of a set with the
name of the process. Plain commands that the users of both have suffice.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final

import anyio
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text
from director.core.ids import PredictionId

TICK_S: Final = 0.25  # between two writes. The first call after a quiet time is written at once
AGAIN_S: Final = 600.0  # all are written again, in case Redis lost them
KEPT_MS: Final = 3_600_000
AT_ONCE: Final = 1_000  # members of one command
HeldCall = tuple[PredictionId, str]
"""A prediction and its account."""


class HeldCalls:
    """The calls that this process holds. A call takes no command of its own: what changed is written together."""

    def __init__(self, redis: Redis, process: str) -> None:
        self._redis = redis
        self._key = keys.calls(process)
        self._held: dict[PredictionId, str] = {}  # their members of the set
        self._noted: set[str] = set()  # the members that Redis has, as far as this process knows
        self._again_at = 0.0
        self._has_changes = asyncio.Event()

    def hold(self, prediction_id: PredictionId, account: str) -> None:
        self._held[prediction_id] = _member(prediction_id, account)
        self._has_changes.set()

    def drop(self, prediction_id: PredictionId) -> bool:
        """Note that the call has ended, or is canceled. Returns whether it was held."""
        if self._held.pop(prediction_id, None) is None:
            return False
        self._has_changes.set()
        return True

    async def run_once(self) -> int:
        """Wait for changes, and write them. Returns how many.

        Where Redis is full, it takes back those that ended and refuses new ones: what is kept here for the next round
        is only what is held.
        """
        self._again_at = self._again_at or anyio.current_time() + AGAIN_S
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._again_at):
                await self._has_changes.wait()
        self._has_changes.clear()
        try:
            return await self._write()
        except BaseException:
            self._has_changes.set()
            raise

    async def _write(self) -> int:
        held, now_s = set(self._held.values()), anyio.current_time()
        if gone := self._noted - held:
            await pipelined(self._redis, lambda pipe: self._put(pipe.srem, gone))
            self._noted -= gone
        is_again = now_s >= self._again_at
        new = held if is_again else held - self._noted

        def fill(pipe: Any) -> None:
            self._put(pipe.sadd, new)
            pipe.pexpire(self._key, KEPT_MS)

        await pipelined(self._redis, fill)
        self._noted |= new
        self._again_at = 0.0 if is_again else self._again_at
        return len(gone) + len(new)

    def _put(self, command: Callable[..., object], members: Collection[str]) -> None:
        listed = list(members)
        for start in range(0, len(listed), AT_ONCE):
            command(self._key, *listed[start : start + AT_ONCE])


async def read_held(redis: Redis, process: str, *, most: int) -> list[HeldCall]:
    """Return some of the calls that the process held."""
    untyped: Any = redis  # ours answers in bytes
    members = await ask(lambda: untyped.srandmember(keys.calls(process), most))
    calls = (text(member).partition(" ") for member in members)
    return [(PredictionId(prediction_id), account) for prediction_id, _, account in calls]


async def forget_held(redis: Redis, process: str, calls: Collection[HeldCall]) -> None:
    if calls:
        await ask(lambda: redis.srem(keys.calls(process), *(_member(*call) for call in calls)))


def _member(prediction_id: PredictionId, account: str) -> str:
    return f"{prediction_id} {account}"
