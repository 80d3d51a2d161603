"""What a training makes: a version of its destination, with the weights that came out.

The version is named after the training, so that making it twice makes one. Never makes a destination: one that is gone
stays gone.
"""

from msgspec import Struct
from redis.asyncio import Redis

from director.core import keys
from director.core.catalog import Catalog
from director.core.ids import version_id
from director.core.policy import Policy
from director.core.redis_client import ask
from director.core.schema import Record

__all__ = ("Trained", "TrainedVersions")


class Trained(Struct, frozen=True):
    """The output of a training, as callers know it. `version`: owner/name:id."""

    version: str
    weights: str | None


class TrainedVersions:
    """All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis, catalog: Catalog) -> None:
        self._redis = redis
        self._catalog = catalog

    async def make(self, training: Record, weights: str | None) -> Trained | None:
        """The version that this training makes, runnable as the trained one is; None where its destination is gone.

        Nobody serves it yet: what is asked of it waits for a director.
        """
        source = await self._catalog.version(training.model, training.version)
        if source is None or await self._catalog.model(training.destination) is None:
            return None
        name = version_id(training.destination, training.id.encode(), b"")
        # first, so that whoever finds the version finds them; another attempt's replace those of one that was lost
        key = keys.version(training.destination, name)
        await ask(lambda: self._redis.hset(key, "weights", weights or ""))
        await self._catalog.register(
            training.destination, name, schema=source.schema, server=source.server, policy=Policy()
        )
        return Trained(f"{training.destination}:{name}", weights)
