"""Wait until a queue may have work: its bell rings, or that of another one
that is read too, or a few seconds have passed.

A lost ring costs one pause and never a prediction. Waits on a connection of its own. A call may wait behind the bell at
the server itself, which carries it out in the moment that it rings: before anybody here has heard of it.
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


class Bell:
    """The bells of queues of one model, for one waiter. `redis` is a blocking client made for `LONGEST_S`."""

    def __init__(self, redis: Redis, queues: Sequence[QueueName], clock: Clock) -> None:
        self._redis = redis
        self._keys = [keys.bell(queue) for queue in queues]
        self._clock = clock
        self._kept: AbstractConnection | None = None

    @property
    def carries(self) -> bool:
        """May a call wait behind it? Not where one would have to look first for who has its keys."""
        return len(self._keys) == 1 and not isinstance(self._redis, Cluster)

    async def wait(self) -> bool:
        """True when it rang. The wait is jittered, so that a fleet does not poll in step."""
        if self._kept is not None:  # there is one connection for each that waits
            connection, self._kept = self._kept, None
            await self._redis.connection_pool.release(connection)
        try:
            return await self._redis.blpop(self._keys, timeout=_block_s()) is not None
        except exceptions.RedisError:
            await self._clock.sleep(1.0)
            return False

    async def carry(self, call: bytes) -> Any:
        """The answer to this call, which the server carries out when it rang, or the wait is over.

        Raises RedisError; whether it was carried out, or still will be, is then unknown. Canceled, as well.
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
