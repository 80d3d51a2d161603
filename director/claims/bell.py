"""Wait until a queue may have work: its bell rings, or that of another one
that is read too, or a few seconds have passed.

A lost ring costs one pause and never a prediction. Waits on a connection of its own.
"""

import random
from collections.abc import Sequence
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
    """The bells of queues of one model, for one waiter. `redis` is a blocking client made for `LONGEST_S`."""

    def __init__(self, redis: Redis, queues: Sequence[QueueName], clock: Clock) -> None:
        self._redis = redis
        self._keys = [keys.bell(queue) for queue in queues]
        self._clock = clock

    async def wait(self) -> bool:
        """True when it rang. The wait is jittered, so that a fleet does not poll in step."""
        block_s = random.uniform(LEAST_S, LONGEST_S)  # noqa: S311 - spreads load, guards nothing
        try:
            return await self._redis.blpop(self._keys, timeout=block_s) is not None
        except exceptions.RedisError:
            await self._clock.sleep(1.0)
            return False
