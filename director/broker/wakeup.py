"""Wait for the wakeups of queues, with a claim behind the wakeup where that saves a round trip."""

import random
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
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


@dataclass(eq=False)
class Wakeup:
    """The wakeups of one model's queues, for one waiter. A lost wakeup costs one pause and never a prediction.
    `redis` is a blocking client made for `LONGEST_S`. A call can wait behind the wakeup: saves a round trip.
    `may_carry` is false where the model may be put to rest meanwhile.
    """

    redis: Redis
    queues: InitVar[Sequence[QueueName]]
    clock: Clock
    may_carry: bool = True
    _kept: AbstractConnection | None = None

    def __post_init__(self, queues: Sequence[QueueName]) -> None:
        self._keys = [keys.bell(queue) for queue in queues]

    @property
    def carries(self) -> bool:
        return self.may_carry and len(self._keys) == 1 and not isinstance(self.redis, Cluster)

    async def wait(self) -> bool:
        await self.close()
        try:
            return await self.redis.blpop(self._keys, timeout=pause_s()) is not None
        except exceptions.RedisError:
            await self.clock.sleep(1.0)
            return False

    async def close(self) -> None:
        """Give the kept connection back: the pool has one for each waiter, and another wakeup may follow this one."""
        if self._kept is not None:
            connection, self._kept = self._kept, None
            await self.redis.connection_pool.release(connection)

    async def carry(self, call: bytes) -> Any:
        """Return the answer to `call`, which Redis runs when a wakeup came or the wait is over.
        Raises RedisError. After that, or after a cancellation, it is unknown whether the call ran or will still run.
        """
        pool = self.redis.connection_pool
        connection, self._kept = self._kept, None
        if connection is None:
            connection = cast(AbstractConnection, await pool.get_connection())  # type: ignore[no-untyped-call]
        try:
            words: tuple[Any, ...] = ("BLPOP", *self._keys, pause_s())
            wait = hiredis.pack_command(words)
            await connection.send_packed_command([wait, call], check_health=False)
            await connection.read_response()
            answer = await connection.read_response()
        except BaseException:  # also if canceled: a connection with an unread answer cannot be used again
            await connection.disconnect(nowait=True)
            await pool.release(connection)
            raise
        self._kept = connection
        return answer


def pause_s() -> float:
    return random.uniform(LEAST_S, LONGEST_S)  # noqa: S311 - spreads load, guards nothing
