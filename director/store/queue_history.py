"""Read how queues stood during the last hour, for graphs, rates and burn rates. The keeper writes these samples."""

from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import pipelined
from director.core.ids import QueueName
from director.core.samples import MOST, Sample, parse

AT_ONCE: Final = 50  # queues per write to the socket: an hour of one is about 25 KB


class QueueHistory:
    """The samples in Redis. All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis: Any = redis  # redis-py says str or bytes; ours answers in bytes

    async def of(self, queue: QueueName, *, most: int = MOST) -> list[Sample]:
        """Return the newest samples of one queue, oldest first. Empty if nothing has happened for an hour."""
        return (await self.many([queue], most=most))[queue]

    async def many(self, queues: Sequence[QueueName], *, most: int = MOST) -> dict[QueueName, list[Sample]]:
        """Return the newest samples of many queues, as `of` does."""
        found: dict[QueueName, list[Sample]] = {}
        for start in range(0, len(queues), AT_ONCE):
            some = queues[start : start + AT_ONCE]
            for queue, lines in zip(some, await self._lines(some, most - 1), strict=True):
                found[queue] = [parse(line) for line in reversed(lines)]
        return found

    async def _lines(self, queues: Sequence[QueueName], last: int) -> list[list[bytes]]:
        return await pipelined(self._redis, lambda pipe: [pipe.lrange(keys.samples(each), 0, last) for each in queues])
