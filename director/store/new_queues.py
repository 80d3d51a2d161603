"""List a queue, and hold there those who are suspended: before anything is handed out of it.

Listed first and asked then, since a suspension is written down first and asks then which queues there are: see
`suspensions`. Every director that comes to serve a queue does this, so none has to know whether another one did.
"""

from functools import partial
from typing import Any

from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, text
from director.broker.scripts import Scripts
from director.core.ids import QueueName

__all__ = ("list_queue",)


async def list_queue(redis: Redis, scripts: Scripts, queue: QueueName) -> None:
    """Safe to repeat. Writes nothing where all of it stands. The queue is registered."""
    client: Any = redis  # its types say str or bytes, and ours answers in bytes
    # the partition first: whoever finds a queue finds what was owed there, also when the queue is gone
    for registry, member in ((keys.partitions(), str(keys.queue_partition(queue))), (keys.queues(), queue)):
        if not await ask(partial(client.sismember, registry, member)):  # a full server refuses to add what is there
            await ask(partial(client.sadd, registry, member))
    for name, score in await ask(lambda: client.zrange(keys.suspensions(), 0, -1, withscores=True)):
        revision, is_suspended = divmod(int(score), 2)
        if is_suspended:
            await scripts.pause(queue, paused=True, tenant=text(name), revision=revision)
