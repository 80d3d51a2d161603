"""Test how many calls an account may have held, by their inputs."""

from typing import Any

import pytest

from api.services.waiters import MOST_BYTES, Wait, Waiters
from director.broker.redis_client import client
from director.core.clock import SystemClock
from director.core.errors import QueueRefused
from director.core.ids import PredictionId

CALL = PredictionId("a" * 26)


async def never(*_: object, **__: object) -> Any:
    raise AssertionError


async def test_account_leaves_as_many_bytes_to_others_as_its_calls_have() -> None:
    redis = client("redis://127.0.0.1:1")
    waiters = Waiters(redis, has_ended=never, read=never, clock=SystemClock(), most=1_000)
    first, second, other = Wait(), Wait(), Wait()
    assert waiters.reserve(CALL, first, "a", MOST_BYTES // 2)
    with pytest.raises(QueueRefused, match="too_many_calls"):
        waiters.reserve(CALL, second, "a", 1)
    assert waiters.reserve(CALL, other, "b", MOST_BYTES // 4)
    with pytest.raises(QueueRefused, match="too_many_calls"):
        waiters.reserve(CALL, second, "b", 1)
    waiters.give_back(first)
    waiters.give_back(first)
    assert waiters.reserve(CALL, second, "b", 1)
    assert waiters.waiting == 2
    for wait in (second, other):
        waiters.give_back(wait)
    assert (waiters.waiting, waiters.make_room("c", MOST_BYTES)) == (0, True)
    await redis.aclose()
