"""The queues that a version has beside that of its predictions: one for each other kind of run, where there are any.

Knows which there are and makes them known. A version of the catalogue exists with the queue of its predictions first.
"""

from msgspec import Raw
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask
from director.broker.scripts import Scripts
from director.core.errors import SettingsError
from director.core.ids import Kind, QueueName, queue_name
from director.core.policy import Policy
from director.store.catalog import Catalog, Version
from director.store.new_queues import list_queue

__all__ = ("Kinds",)


class Kinds:
    """All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis, scripts: Scripts, catalog: Catalog) -> None:
        self._redis = redis
        self._scripts = scripts
        self._catalog = catalog

    async def of(self, version: Version, kind: Kind) -> Version | None:
        """The version with the queue of its runs of this kind; None where no director ever ran any."""
        if not kind:
            return version
        meta = keys.meta(queue_name(version.model, version.id, kind))
        streams, size = await ask(lambda: self._redis.hmget(meta, ["streams", "size"]))
        if streams is None or size is None:
            return None
        return replace(version, kind=kind, streams=int(streams), size=int(size))

    async def register(
        self,
        model: str,
        version: str,
        kind: Kind,
        *,
        schema: Raw,
        server: str,
        policy: Policy,
        is_latest: bool = False,
    ) -> QueueName:
        """Make known that there are directors for these runs of a version; returns their queue. Safe to repeat.

        Of a version that is in the catalogue already, a director of another kind than predictions changes nothing but
        its own queue. Raises SettingsError as `Catalog.register` does.
        """
        if not kind or await self._catalog.version(model, version) is None:
            mine = Policy() if kind else policy
            predictions = await self._catalog.register(
                model, version, schema=schema, server=server, policy=mine, is_latest=is_latest
            )
            if not kind:
                return predictions
        queue = queue_name(model, version, kind)
        if not await self._scripts.register(queue, version=version, policy=policy):
            raise SettingsError(f"Version {version} of {model} shares its first 12 digits with another.")
        await list_queue(self._redis, self._scripts, queue)
        return queue
