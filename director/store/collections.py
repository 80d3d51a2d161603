"""Store what operators publish about models: collections, example predictions, and the names of hardware.

A collection is one value, and the last write wins. Visibility is not checked: a collection may name any model.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text, texts
from director.broker.scripts import Scripts
from director.core.errors import SettingsError
from director.core.ids import MODEL_NAME, PredictionId
from director.core.schema import Stored
from director.core.states import Status
from director.core.view import view

SLUG: Final = r"^[a-z0-9][a-z0-9._-]{0,63}$"
# Until an operator names the hardware, clients need something to choose.
HARDWARE: Final = {"cpu": "CPU", "gpu": "GPU"}

Name = Annotated[str, Meta(pattern=MODEL_NAME)]


class Collection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models under a headline, in the order in which they are shown."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    description: Annotated[str, Meta(max_length=2_000)] = ""
    full_description: Annotated[str, Meta(max_length=20_000)] = ""
    models: Annotated[tuple[Name, ...], Meta(max_length=100)] = ()


class Collections:
    """Collections in Redis. All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis: Any = redis  # redis-py says str or bytes; ours answers in bytes

    async def slugs(self) -> list[str]:
        """Return all slugs, sorted. The collections of some may be gone."""
        return sorted(text(slug) for slug in await ask(lambda: self._redis.smembers(keys.collections())))

    async def get(self, slug: str) -> Collection | None:
        [found] = await self.many([slug])
        return found

    async def many(self, slugs: Sequence[str]) -> list[Collection | None]:
        """Return each collection in this order, None if it is missing, in one write to the socket."""
        written = await pipelined(self._redis, lambda pipe: [pipe.get(keys.collection(slug)) for slug in slugs])
        return [None if one is None else msgspec.json.decode(one, type=Collection) for one in written]

    async def put(self, slug: str, collection: Collection) -> None:
        """Create or replace a collection. Raises SettingsError for an invalid slug."""
        _refuse(slug, "a slug")

        async def write() -> None:
            await self._redis.sadd(keys.collections(), slug)
            await self._redis.set(keys.collection(slug), msgspec.json.encode(collection))
            await self._redis.sadd(keys.collections(), slug)  # a removal may have come between

        await ask(write)

    async def remove(self, slug: str) -> None:
        """Remove a collection. Its models stay."""

        async def write() -> None:
            await self._redis.delete(keys.collection(slug))
            await self._redis.srem(keys.collections(), slug)
            if await self._redis.exists(keys.collection(slug)):  # written again between the two
                await self._redis.sadd(keys.collections(), slug)

        await ask(write)

    async def hardware(self) -> dict[str, str]:
        """Return SKU → name, sorted."""
        written = texts(await ask(lambda: self._redis.hgetall(keys.hardware())))
        return dict(sorted((written or HARDWARE).items()))

    async def put_hardware(self, sku: str, name: str) -> None:
        """Raises SettingsError for an invalid SKU."""
        _refuse(sku, "a SKU")
        await ask(lambda: self._redis.hset(keys.hardware(), sku, name))

    async def remove_hardware(self, sku: str) -> None:
        await ask(lambda: self._redis.hdel(keys.hardware(), sku))


def _refuse(given: str, what: str) -> None:
    if not re.fullmatch(SLUG, given):
        raise SettingsError(f"{given!r} is not {what}: use a-z, 0-9, '.', '_' and '-', at most 64.")


MOST: Final = 100
MOST_BYTES: Final = 256 * 1024  # every answer that shows the model carries one


class Examples:
    """Predictions that operators show with a model: copies of input and output, since the record is deleted some day.

    A copy has no webhook and no address of an event stream, because that address is a permission. All methods raise
    BackendUnavailable while Redis cannot answer, and SettingsError for a prediction that cannot be shown.
    """

    def __init__(self, redis: Redis, scripts: Scripts) -> None:
        self._redis: Any = redis  # redis-py says str or bytes; ours answers in bytes
        self._scripts = scripts

    async def show(self, model: str, prediction_id: PredictionId, *, is_default: bool) -> None:
        """Show this prediction with its model. The default one stands for the model in every list. Safe to repeat."""
        stored = await self._scripts.get(prediction_id, outlook=False)
        if stored is None or stored.record.model != model:
            raise SettingsError(f"{model} has no such prediction any more.")
        example = _copy(stored)
        key = keys.examples(model)
        if await ask(lambda: self._redis.hlen(key)) >= MOST:
            raise SettingsError(f"A model has at most {MOST} examples: take one away first.")
        await ask(lambda: self._redis.hset(key, prediction_id, bytes(example)))
        if is_default and await self._scripts.amend(model, "change", said={"default_example": prediction_id}) != "done":
            await ask(lambda: self._redis.delete(key))
            raise SettingsError(f"there is no model {model}.")

    async def hide(self, model: str, prediction_id: PredictionId) -> bool:
        """Remove this prediction from its model's examples. Return False if it was not one."""
        return bool(await ask(lambda: self._redis.hdel(keys.examples(model), prediction_id)))


def _copy(stored: Stored) -> Raw:
    if stored.record.status is not Status.SUCCEEDED or stored.input is None:
        raise SettingsError("Only a prediction that succeeded, and whose data is still there, is an example.")
    shown = view(stored)
    shown = replace(shown, webhook=UNSET, webhook_events_filter=UNSET, urls=replace(shown.urls, stream=""))
    example = msgspec.json.encode(shown)
    if len(example) > MOST_BYTES:
        raise SettingsError(f"An example is at most {MOST_BYTES:,} bytes, and this one {len(example):,}.")
    return Raw(example)
