"""Wait until a queue may have work: its wakeup list gets an element, or a few seconds pass.

A lost wakeup costs one pause and never a prediction. Each waiter has a connection of its own. A call can wait on the
Redis server behind the wakeup: Redis runs it the moment the wakeup comes, one round trip before this process knows.
"""

import random
from collections.abc import Sequence
from typing import Any, Final, cast

import hiredis
from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from director.broker import keys
from director.broker.cluster import Cluster
from director.core.clock import Clock
from director.core.ids import QueueName

LEAST_S: Final = 2.0
LONGEST_S: Final = 5.0


class Wakeup:
    """The wakeups of one model's queues, for one waiter. `redis` is a blocking client made for `LONGEST_S`."""

    def __init__(self, redis: Redis, queues: Sequence[QueueName], clock: Clock) -> None:
        self._redis = redis
        self._keys = [keys.bell(queue) for queue in queues]
        self._clock = clock
        self._kept: AbstractConnection | None = None

    @property
    def carries(self) -> bool:
        """Whether a call can wait behind the wakeup. Not in a Cluster, where the node of the keys is unknown."""
        return len(self._keys) == 1 and not isinstance(self._redis, Cluster)

    async def wait(self) -> bool:
        """Return True if a wakeup came, False after 2 to 5 s. The jitter keeps a fleet from polling in step."""
        if self._kept is not None:  # the pool has one connection for each waiter
            connection, self._kept = self._kept, None
            await self._redis.connection_pool.release(connection)
        try:
            return await self._redis.blpop(self._keys, timeout=_block_s()) is not None
        except exceptions.RedisError:
            await self._clock.sleep(1.0)
            return False

    async def carry(self, call: bytes) -> Any:
        """Return the answer to `call`, which Redis runs when a wakeup came or the wait is over.

        Raises RedisError. After that, or after a cancellation, it is unknown whether the call ran or will still run.
        """
        pool = self._redis.connection_pool
        connection, self._kept = self._kept, None
        if connection is None:
            connection = cast(AbstractConnection, await pool.get_connection())  # type: ignore[no-untyped-call]
        try:
            words: tuple[Any, ...] = ("BLPOP", *self._keys, _block_s())
            wait = hiredis.pack_command(words)
            await connection.send_packed_command([wait, call], check_health=False)
            await connection.read_response()
            answer = await connection.read_response()
        except BaseException:
            await connection.disconnect(nowait=True)
            await pool.release(connection)
            raise
        self._kept = connection
        return answer


def _block_s() -> float:
    return random.uniform(LEAST_S, LONGEST_S)  # noqa: S311 - spreads load, guards nothing
