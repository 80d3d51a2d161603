"""Wait until a queue may have work: its bell rings, or a few seconds have passed.

A lost ring costs one pause and never a prediction. Waits on a connection of its own.
"""

import random
from typing import Final

from redis import exceptions
from redis.asyncio import Redis

from director.core import keys
from director.core.clock import Clock
from director.core.ids import QueueName

__all__ = ("LEAST_S", "LONGEST_S", "Bell")

LEAST_S: Final = 2.0
LONGEST_S: Final = 5.0


class Bell:
    """The bell of one queue, for one waiter. `redis` is a blocking client made for `LONGEST_S`."""

    def __init__(self, redis: Redis, queue: QueueName, clock: Clock) -> None:
        self._redis = redis
        self._key = keys.bell(queue)
        self._clock = clock

    async def wait(self) -> bool:
        """True when it rang. The wait is jittered, so that a fleet does not poll in step."""
        block_s = random.uniform(LEAST_S, LONGEST_S)  # noqa: S311 - spreads load, guards nothing
        try:
            return await self._redis.blpop([self._key], timeout=block_s) is not None
        except exceptions.RedisError:
            await self._clock.sleep(1.0)
            return False
