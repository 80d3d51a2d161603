"""What operators put on the shop window: collections of models, and the names of hardware. Read by all.

One value a collection, and the last one who writes it wins. Sees to no visibility: a collection may name any model.
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
# where no operator has said what there is, a client still finds something to give
HARDWARE: Final = {"cpu": "CPU", "gpu": "GPU"}

Name = Annotated[str, Meta(pattern=MODEL_NAME)]


class Collection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models under a headline, in the order in which they are shown."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    description: Annotated[str, Meta(max_length=2_000)] = ""
    full_description: Annotated[str, Meta(max_length=20_000)] = ""
    models: Annotated[tuple[Name, ...], Meta(max_length=100)] = ()


class Collections:
    """All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis: Any = redis  # redis-py says str or bytes; ours answers in bytes

    async def slugs(self) -> list[str]:
        """Every collection, sorted. Some may be gone."""
        return sorted(text(slug) for slug in await ask(lambda: self._redis.smembers(keys.collections())))

    async def get(self, slug: str) -> Collection | None:
        """None where there is none."""
        [found] = await self.many([slug])
        return found

    async def many(self, slugs: Sequence[str]) -> list[Collection | None]:
        """Each of these in this order, by one write to the socket."""
        written = await pipelined(self._redis, lambda pipe: [pipe.get(keys.collection(slug)) for slug in slugs])
        return [None if one is None else msgspec.json.decode(one, type=Collection) for one in written]

    async def put(self, slug: str, collection: Collection) -> None:
        """Write a collection, whether there is one or not. Raises SettingsError for a slug that is none."""
        _refuse(slug, "a slug")

        async def write() -> None:
            await self._redis.sadd(keys.collections(), slug)
            await self._redis.set(keys.collection(slug), msgspec.json.encode(collection))
            await self._redis.sadd(keys.collections(), slug)  # a removal may have come between

        await ask(write)

    async def remove(self, slug: str) -> None:
        """Its models stay."""

        async def write() -> None:
            await self._redis.delete(keys.collection(slug))
            await self._redis.srem(keys.collections(), slug)
            if await self._redis.exists(keys.collection(slug)):  # written again between the two
                await self._redis.sadd(keys.collections(), slug)

        await ask(write)

    async def hardware(self) -> dict[str, str]:
        """SKU -> name, sorted."""
        written = texts(await ask(lambda: self._redis.hgetall(keys.hardware())))
        return dict(sorted((written or HARDWARE).items()))

    async def put_hardware(self, sku: str, name: str) -> None:
        """Raises SettingsError for a SKU that is none."""
        _refuse(sku, "a SKU")
        await ask(lambda: self._redis.hset(keys.hardware(), sku, name))

    async def remove_hardware(self, sku: str) -> None:
        await ask(lambda: self._redis.hdel(keys.hardware(), sku))


def _refuse(given: str, what: str) -> None:
    if not re.fullmatch(SLUG, given):
        raise SettingsError(f"{given!r} is not {what}: use a-z, 0-9, '.', '_' and '-', at most 64.")


# Predictions that operators show with a model: what was put in and what came out, as it was when they chose it.
#
# A copy, since what it was made from is removed some day. Never shows who made it beyond that: no webhook, and no
# address of its event stream, which is a permission.

MOST: Final = 100
MOST_BYTES: Final = 256 * 1024  # each is part of every answer that shows its model


class Examples:
    """All methods raise BackendUnavailable while Redis cannot answer, and SettingsError for what cannot be shown."""

    def __init__(self, redis: Redis, scripts: Scripts) -> None:
        self._redis: Any = redis  # redis-py says str or bytes; ours answers in bytes
        self._scripts = scripts

    async def show(self, model: str, prediction_id: PredictionId, *, is_default: bool) -> None:
        """Show this prediction with its model; the default one stands for the model in every list. Safe to repeat."""
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
        """Show it no more; False where it was not shown."""
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
