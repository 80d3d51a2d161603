"""Remove unused versions from the catalogue, and add versions that trainings make.

The next removal completes one that was cut short. A director may register the version at the same time: the queue's
`meta` is looked for after the registries were written, and what is registered later the director writes again.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text
from director.broker.replies import Unregistered
from director.broker.scripts import Scripts
from director.core.errors import UnknownModel
from director.core.ids import PredictionId, QueueName, queue_name, version_id
from director.core.policy import Policy
from director.core.schema import Record
from director.files.store import FileName, OutputStore
from director.store.catalog import Catalog

TRIES: Final = 10


class Removal:
    def __init__(self, redis: Redis, scripts: Scripts, catalog: Catalog) -> None:
        self._redis = redis
        self._scripts = scripts
        self._catalog = catalog

    async def remove(self, model: str, version: str) -> Unregistered:
        """Remove a version if its queues are empty and no director serves it, else say why it stays. Safe to repeat."""
        base = queue_name(model, version)
        # A version has a queue for each kind. The queue of predictions stands for the version, so it goes last.
        names = {*await self._catalog.queues(), base}  # a removal that was cut short may have left it in no registry
        queues = sorted((queue for queue in names if queue.partition("~")[0] == base), reverse=True)
        await self._scripts.withdraw(
            model, "going", version=version, runs=sum((await self._catalog.runs(queues)).values())
        )
        # a reason to keep one queue keeps all, so that the version can still be trained
        for only_asks in (True, False):
            for queue in queues:
                answer = await self._scripts.unregister(queue, only_asks=only_asks)
                if answer != "done":
                    return answer
        await self._forget(model, version, queues)
        if await self._is_kept(model, version, queues):
            return "served"
        await self._settle_latest(model)
        await self._scripts.withdraw(model, "gone", version=version)
        # The last write, so that what was cut short before it is found and repeated.
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


FOR_EVER_S: Final = 253_402_300_799  # the last second of the year 9999: only the end of the file ends it
MOST_ADDRESS: Final = 2_000


class Trained(Struct, frozen=True):
    version: str
    weights: str | None


class TrainedVersions:
    """Makes the version that a training produces, named after the training, so making it twice makes one version."""

    def __init__(self, redis: Redis, catalog: Catalog, removal: Removal, *, store: OutputStore | None) -> None:
        self._redis: Any = redis  # ours answers in bytes
        self._catalog = catalog
        self._removal = removal
        self._store = store

    async def make(self, training: Record, weights: str | None) -> Trained | None:
        """Return the version that this training makes, or None if its destination is gone. No director serves it."""
        source = await self._catalog.version(training.model, training.version)
        if source is None or await self._catalog.model(training.destination) is None:
            return None
        name = version_id(training.destination, training.id.encode(), b"")
        kept = await self._keep(training, weights or "", version=name)
        # Before the version is registered, so that a reader of the version finds its weights. What an attempt left that
        # died before it had registered the version may be deleted.
        key = keys.version(training.destination, name)
        is_made = await ask(lambda: self._redis.hexists(key, "created"))
        await ask(lambda: (self._redis.hsetnx if is_made else self._redis.hset)(key, "weights", kept))
        try:
            await self._catalog.register(
                training.destination,
                name,
                schema=source.schema,
                server=source.server,
                policy=Policy(),
                makes_model=False,
            )
        except UnknownModel:  # removed meanwhile
            await self._removal.remove(training.destination, name)
            return None
        stands = text(await ask(lambda: self._redis.hget(key, "weights")) or b"")
        return Trained(f"{training.destination}:{name}", stands or weights)

    async def _keep(self, training: Record, weights: str, *, version: str) -> str:
        """Return the weights' address, valid as long as the version if a file of this training; '' if no address."""
        if not weights.startswith(("https://", "http://", "s3://", "gs://")) or len(weights) > MOST_ADDRESS:
            return ""
        name = FileName.parse(urlsplit(weights).path.rpartition("/")[2])
        if self._store is None or name is None or name.prediction_id != training.id:
            return weights
        owner = keys.version(training.destination, version)
        await ask(lambda: self._redis.set(keys.weights(training.id), owner))
        return await self._store.url(name, base=training.url, expires_s=FOR_EVER_S)


async def whose_weights_are_kept(redis: Redis, trainings: Sequence[PredictionId]) -> set[PredictionId]:
    """Return those ended trainings whose files are the weights of a version. The others are forgotten.

    A version without a time was never registered: the attempt that wrote its weights died, and no other one succeeded.
    """
    client: Any = redis
    versions = await pipelined(redis, lambda pipe: [pipe.get(keys.weights(training)) for training in trainings])
    known = zip(trainings, versions, strict=True)
    made = {training: text(version) for training, version in known if version is not None}
    exist = await pipelined(redis, lambda pipe: [pipe.hexists(version, "created") for version in made.values()])
    there = dict(zip(made, exist, strict=True))
    for training in [training for training, is_there in there.items() if not is_there]:
        await ask(partial(client.delete, keys.weights(training)))
    return {training for training, is_there in there.items() if is_there}
