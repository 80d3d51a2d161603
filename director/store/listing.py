"""Which runs of each kind an account has, newest first: an index beside the records, never a copy of them.

It may name predictions that were refused or whose record is gone, and never misses one that was accepted: `enlist`
writes it before the enqueue. Readers skip what they do not find.
"""

from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, text
from director.core.ids import Kind, PredictionId

__all__ = ("Listing",)


class Listing:
    """The index in Redis. All methods raise BackendUnavailable while it cannot answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def ids(
        self, account: str, kind: Kind = "", *, low: str = "-", high: str = "+", count: int, newest_first: bool = True
    ) -> list[PredictionId]:
        """At most `count` ids between two bounds, from one end on.

        Bounds are Redis's: `[id` with that id, `(id` without it, `-` and `+` for none.
        """
        key = keys.listing(account, kind)
        if newest_first:
            found = await ask(lambda: self._redis.zrevrangebylex(key, high, low, start=0, num=count))
        else:
            found = await ask(lambda: self._redis.zrangebylex(key, low, high, start=0, num=count))
        return [PredictionId(text(name)) for name in found]

    async def remove(self, account: str, prediction_id: PredictionId, kind: Kind = "") -> None:
        """Take a refused prediction off its account's list."""
        await ask(lambda: self._redis.zrem(keys.listing(account, kind), prediction_id))
