"""Note which calls each API process holds, so that a keeper can cancel those of a process that died.

A process holds the calls of OpenAI's API that it cancels when their callers hang up. They are members of a set with the
name of the process. Plain commands that the users of both have suffice.
"""

import asyncio
from collections.abc import Collection
from typing import Any, Final

from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text
from director.core.ids import PredictionId

TICK_S: Final = 0.25  # between two writes. The first call after a quiet time is written at once
AGAIN_S: Final = 600.0  # all are written again, in case Redis lost them
KEPT_MS: Final = 3_600_000
AT_ONCE: Final = 1_000  # members of one command
Call = tuple[PredictionId, str]
"""A prediction and its account."""


class HeldCalls:
    """The calls that this process holds. A call takes no command of its own: what changed is written together."""

    def __init__(self, redis: Redis, process: str) -> None:
        self._redis = redis
        self._key = keys.calls(process)
        self._held: dict[PredictionId, str] = {}
        self._changes: dict[str, bool] = {}  # by member: whether it is held
        self._has_changes = asyncio.Event()

    def hold(self, prediction_id: PredictionId, account: str) -> None:
        self._held[prediction_id] = account
        self._change(prediction_id, account, is_held=True)

    def drop(self, prediction_id: PredictionId) -> bool:
        """Note that the call has ended, or is canceled. Returns whether it was held."""
        if (account := self._held.pop(prediction_id, None)) is None:
            return False
        self._change(prediction_id, account, is_held=False)
        return True

    def _change(self, prediction_id: PredictionId, account: str, *, is_held: bool) -> None:
        self._changes[_member(prediction_id, account)] = is_held
        self._has_changes.set()

    async def run_once(self) -> int:
        """Wait for changes, and write them. Returns how many."""
        try:
            async with asyncio.timeout(AGAIN_S):
                await self._has_changes.wait()
        except TimeoutError:
            self._changes = {_member(*call): True for call in self._held.items()}
        self._has_changes.clear()
        changes, self._changes = self._changes, {}
        try:
            await self._write(changes)
        except BaseException:
            self._changes = changes | self._changes
            self._has_changes.set()
            raise
        return len(changes)

    async def _write(self, changes: dict[str, bool]) -> None:
        new = [member for member, is_held in changes.items() if is_held]
        gone = [member for member, is_held in changes.items() if not is_held]

        def fill(pipe: Any) -> None:
            for start in range(0, len(gone), AT_ONCE):
                pipe.srem(self._key, *gone[start : start + AT_ONCE])
            for start in range(0, len(new), AT_ONCE):
                pipe.sadd(self._key, *new[start : start + AT_ONCE])
            pipe.pexpire(self._key, KEPT_MS)

        await pipelined(self._redis, fill)


async def read_held(redis: Redis, process: str, *, most: int) -> list[Call]:
    """Return some of the calls that the process held."""
    untyped: Any = redis  # ours answers in bytes
    members = await ask(lambda: untyped.srandmember(keys.calls(process), most))
    calls = (text(member).partition(" ") for member in members)
    return [(PredictionId(prediction_id), account) for prediction_id, _, account in calls]


async def forget_held(redis: Redis, process: str, calls: Collection[Call]) -> None:
    if calls:
        await ask(lambda: redis.srem(keys.calls(process), *(_member(*call) for call in calls)))


def _member(prediction_id: PredictionId, account: str) -> str:
    return f"{prediction_id} {account}"
