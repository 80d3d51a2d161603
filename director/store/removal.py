"""Take versions out of the catalogue: those that nobody needs, and nothing that was accepted with them.

A removal that was cut short is done again by the next one. Sees to no visibility and to no deployment: its caller
does.

A director may register the version meanwhile. Its queue's `meta` then stands again, and is looked for after the
registries were written. What comes later than that look, the director finds missing by a look of its own.
"""

from functools import partial
from typing import Final

from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask
from director.broker.scripts import Scripts, Unregistered
from director.core.ids import QueueName, queue_name
from director.store.catalog import Catalog

__all__ = ("Removal",)

TRIES: Final = 10


class Removal:
    """All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis, scripts: Scripts, catalog: Catalog) -> None:
        self._redis = redis
        self._scripts = scripts
        self._catalog = catalog

    async def remove(self, model: str, version: str) -> Unregistered:
        """Forget a version whose queues are empty and served by nobody; else why it stays. Safe to repeat.

        Nothing is lost: what was accepted meanwhile keeps the queue and so the version; what comes later is refused.
        """
        base = queue_name(model, version)
        # a version has a queue for each kind; that of predictions, which stands for it, goes last
        names = {*await self._catalog.queues(), base}  # a removal that was cut short may have left it in no registry
        queues = sorted((queue for queue in names if queue.partition("~")[0] == base), reverse=True)
        await self._scripts.withdraw(model, "going", version=version, runs=sum(await self._catalog.runs(queues)))
        for only_asks in (True, False):  # what keeps one of them keeps all, and the version can still be trained
            for queue in queues:
                answer = await self._scripts.unregister(queue, only_asks=only_asks)
                if answer != "done":
                    return answer
        await self._forget(model, version, queues)
        if await self._is_kept(model, version, queues):
            return "served"
        await self._settle_latest(model)
        await self._scripts.withdraw(model, "gone", version=version)
        # the last write: what was cut short before it is found and done again
        await ask(lambda: self._redis.delete(keys.version(model, version)))
        return "done"

    async def _forget(self, model: str, version: str, queues: list[QueueName]) -> None:
        async def forget() -> None:
            # the queues last: a director that misses its queue there writes both
            if await self._redis.hget(keys.versions(), version) == model.encode():
                await self._redis.hdel(keys.versions(), version)
            await self._redis.srem(keys.queues(), *queues)

        await ask(forget)

    async def _is_kept(self, model: str, version: str, queues: list[QueueName]) -> bool:
        """List the version again where a director registered it meanwhile; False where it did not."""
        stand = [queue for queue in queues if await ask(partial(self._redis.exists, keys.meta(queue)))]
        if not stand:
            return False

        async def list_again() -> None:
            await self._redis.sadd(keys.queues(), *stand)
            await self._redis.hset(keys.versions(), version, model)

        await ask(list_again)
        await self._scripts.withdraw(model, "gone", version=version, latest=version)  # its former runs stay counted
        await self._settle_latest(model)
        return True

    async def _settle_latest(self, name: str) -> None:
        """The newest that is left is the latest. Looks again after each write, as all do who remove one meanwhile: the
        last of them leaves no version that is gone.
        """
        for _ in range(TRIES):
            model = await self._catalog.model(name)
            left = await self._catalog.version_ids(name)
            if model is None or model.latest in left or not (model.latest or left):
                return
            newest = await self._catalog.version(name, left[0]) if left else None
            latest_ms = newest.created_ms if newest else model.created_ms
            await self._catalog.models.enlist(name, created_ms=model.created_ms, latest_ms=latest_ms)
            latest = newest.id if newest else ""
            await self._scripts.withdraw(name, "gone", version=model.latest, latest=latest)
