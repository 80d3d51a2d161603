"""What a training makes: a version of its destination, with the weights that came out.

The version is named after the training, so that making it twice makes one, and whichever attempt made it first, its
weights stay. They live as long as the version. Never makes a destination: one that is gone stays gone.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, text
from director.core.errors import UnknownModel
from director.core.ids import PredictionId, version_id
from director.core.policy import Policy
from director.core.schema import Record
from director.files.names import FileName
from director.files.store import OutputStore
from director.store.catalog import Catalog
from director.store.removal import Removal

__all__ = ("Trained", "TrainedVersions", "whose_weights_are_kept")

FOR_EVER_S: Final = 253_402_300_799  # the last second of the year 9999: the file itself is what ends
MOST_ADDRESS: Final = 2_000


class Trained(Struct, frozen=True):
    """The output of a training, as callers know it. `version`: owner/name:id."""

    version: str
    weights: str | None


class TrainedVersions:
    """All methods raise BackendUnavailable while Redis cannot answer. `store`: of the files of outputs, if any is."""

    def __init__(self, redis: Redis, catalog: Catalog, removal: Removal, *, store: OutputStore | None) -> None:
        self._redis: Any = redis  # its types say str or bytes, and ours answers in bytes
        self._catalog = catalog
        self._removal = removal
        self._store = store

    async def make(self, training: Record, weights: str | None) -> Trained | None:
        """The version that this training makes, runnable as the trained one is; None where its destination is gone.

        Nobody serves it yet: what is asked of it waits for a director.
        """
        source = await self._catalog.version(training.model, training.version)
        if source is None or await self._catalog.model(training.destination) is None:
            return None
        name = version_id(training.destination, training.id.encode(), b"")
        kept = await self._kept(training, weights or "", version=name)
        # before it is registered: whoever finds the version finds them
        key = keys.version(training.destination, name)
        await ask(lambda: self._redis.hsetnx(key, "weights", kept))
        try:
            await self._catalog.register(
                training.destination,
                name,
                schema=source.schema,
                server=source.server,
                policy=Policy(),
                makes_model=False,
            )
        except UnknownModel:  # gone while we were at it
            await self._removal.remove(training.destination, name)
            return None
        stands = text(await ask(lambda: self._redis.hget(key, "weights")) or b"")
        return Trained(f"{training.destination}:{name}", stands or weights)

    async def _kept(self, training: Record, weights: str, *, version: str) -> str:
        """An address that is good as long as the version, where the weights are one of this training's own files.

        '' for what is no address, such as the weights themselves: a version is kept in memory, and for ever.
        """
        if not weights.startswith(("https://", "http://", "s3://", "gs://")) or len(weights) > MOST_ADDRESS:
            return ""
        name = FileName.parse(urlsplit(weights).path.rpartition("/")[2])
        if self._store is None or name is None or name.prediction_id != training.id:
            return weights
        owner = keys.version(training.destination, version)
        await ask(lambda: self._redis.set(keys.weights(training.id), owner))
        return await self._store.url(name, base=training.url, expires_s=FOR_EVER_S)


async def whose_weights_are_kept(redis: Redis, trainings: Sequence[PredictionId]) -> set[PredictionId]:
    """Those of these whose files are the weights of a version that there is. Forgets those of one that is gone."""
    client: Any = redis

    async def versions() -> list[bytes | None]:
        pipe = client.pipeline(transaction=False)
        for training in trainings:
            pipe.get(keys.weights(training))
        return list(await pipe.execute())

    known = zip(trainings, await ask(versions) if trainings else [], strict=True)
    made = {training: text(version) for training, version in known if version is not None}

    async def are_there() -> list[int]:
        pipe = client.pipeline(transaction=False)
        for version in made.values():
            pipe.exists(version)
        return list(await pipe.execute())

    there = dict(zip(made, await ask(are_there) if made else [], strict=True))
    for training in [training for training, is_there in there.items() if not is_there]:
        await ask(partial(client.delete, keys.weights(training)))
    return {training for training, is_there in there.items() if is_there}
