"""What operators put on the shop window: collections of models, and the names of hardware. Read by all.

One value a collection, and the last one who writes it wins. Sees to no visibility: a collection may name any model.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, text, texts
from director.core.errors import SettingsError
from director.core.ids import MODEL_NAME

__all__ = ("SLUG", "Collection", "Collections")

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
        self._redis: Any = redis  # its types say str or bytes, and ours answers in bytes

    async def slugs(self) -> list[str]:
        """Every collection, sorted. Some may be gone."""
        return sorted(text(slug) for slug in await ask(lambda: self._redis.smembers(keys.collections())))

    async def get(self, slug: str) -> Collection | None:
        """None where there is none."""
        [found] = await self.many([slug])
        return found

    async def many(self, slugs: Sequence[str]) -> list[Collection | None]:
        """Each of these in this order, by one write to the socket."""

        async def read() -> list[bytes | None]:
            pipe = self._redis.pipeline(transaction=False)
            for slug in slugs:
                pipe.get(keys.collection(slug))
            return list(await pipe.execute())

        written = await ask(read) if slugs else []
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
