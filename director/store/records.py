"""Read some fields of many records or of many queues, each in one round trip. A missing field is None."""

from collections.abc import Sequence

from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import pipelined, text
from director.core.ids import PredictionId, QueueName

Fields = list[bytes | None]


async def record_fields(redis: Redis, ids: Sequence[PredictionId], names: Sequence[str]) -> list[Fields]:
    """Return these fields of each record, in order. A whole record may be large."""
    return await pipelined(redis, lambda pipe: [pipe.hmget(keys.record(each), names) for each in ids])


async def queue_fields(redis: Redis, queues: Sequence[QueueName], names: Sequence[str]) -> list[Fields]:
    """Return these fields of what is kept about each queue, in order."""
    return await pipelined(redis, lambda pipe: [pipe.hmget(keys.meta(queue), names) for queue in queues])


async def hours_of(redis: Redis, queues: Sequence[QueueName]) -> list[dict[str, tuple[int, str]]]:
    """Return the open hours of accounts in each queue, and of the queue itself as '': their revision and text."""
    found = await pipelined(redis, lambda pipe: [pipe.hgetall(keys.hours(queue)) for queue in queues])
    return [
        {
            text(account): (int(revision), hours)
            for account, kept in of.items()
            for revision, hours in [_hours(kept)]
            if hours
        }
        for of in found
    ]


def _hours(kept: bytes) -> tuple[str, str]:
    revision, _, hours = text(kept).partition("|")[0].partition(" ")
    return revision, hours


async def statuses(redis: Redis, ids: Sequence[PredictionId]) -> list[str | None]:
    """Return the status of each prediction, None for one without a record."""
    found = await pipelined(redis, lambda pipe: [pipe.hget(keys.record(each), "status") for each in ids])
    return [None if status is None else text(status) for status in found]
