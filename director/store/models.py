"""Store what is said about each model: its description, its visibility, its examples. Versions are known by name only.

Every account may see a public model; its owner and operators may see a private one. Only this module has that rule.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Raw, Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.store.accounts import Account

Visibility = Literal["public", "private"]
Order = Literal["created", "latest"]

GIST: Final = 1_000

ORDERS: Final[tuple[Order, ...]] = get_args(Order)


class Model(Struct, frozen=True, kw_only=True):
    """A named thing that can be run. '' means that nothing is said.

    `latest` is '' before the first version (see `Catalog.register`). `default_example` is the id of one of its
    examples.
    """

    name: str
    created_ms: int
    latest: str = ""
    visibility: Visibility = "public"
    hardware: str = ""
    description: str = ""
    github_url: str = ""
    paper_url: str = ""
    license_url: str = ""
    weights_url: str = ""
    cover_image_url: str = ""
    default_example: str = ""
    is_official: bool = False
    gist: str = ""  # the beginning of its readme
    former_runs: int = 0  # of deleted versions

    @property
    def owner(self) -> str:
        return self.name.partition("/")[0]

    def may_be_seen_by(self, account: Account) -> bool:
        """May this account see the model? To others it does not exist, nor do its versions or what they produce."""
        return self.visibility == "public" or self.may_be_changed_by(account)

    def may_be_changed_by(self, account: Account) -> bool:
        """May this account change and remove the model?"""
        return self.owner == account.name or "admin" in account.scopes


# Field of the hash → field of the struct.
READ: Final = {"created" if name == "created_ms" else name: name for name in Model.__struct_fields__ if name != "name"}


class Models:
    """Models in Redis. All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis, scripts: Scripts, clock: Clock) -> None:
        self._redis: Any = redis  # redis-py says str or bytes; ours answers in bytes
        self._scripts = scripts
        self._clock = clock

    async def make(self, name: str, said: Mapping[str, str]) -> bool:
        """Create a model with these fields. Return False if it exists."""
        now_ms = self._clock.now_ms()
        # The registry first: readers skip a listed model without a record, but cannot find a model that is not listed.
        await self._list_new(name, now_ms)
        fields = {"created": str(now_ms), **_with_gist(said)}
        is_made = await self._scripts.amend(name, "make", said=fields, nonce=secrets.token_hex(8)) == "done"
        await self._list_new(name, now_ms)  # a removal may have come between
        return is_made

    async def change(self, name: str, said: Mapping[str, str]) -> bool:
        """Set these fields, where '' removes one. Other fields stay. Return False if the model does not exist."""
        return await self._scripts.amend(name, "change", said=_with_gist(said)) == "done"

    async def remove(self, name: str) -> bool:
        """Remove a model and its examples. Return False while it has a version."""
        if await self._scripts.withdraw(name, "model") != "done":
            return False

        async def forget() -> None:
            await self._redis.delete(keys.examples(name))
            for order in ORDERS:
                await self._redis.zrem(keys.models(order), name)

        await ask(forget)
        if (again := await self.get(name)) is not None:  # made again between the two
            await self._list_new(name, again.created_ms)
        return True

    async def _list_new(self, name: str, at_ms: int) -> None:
        for order in ORDERS:
            await self._list(name, order, at_ms, only_new=True)

    async def enlist(self, name: str, *, created_ms: int, latest_ms: int) -> None:
        """List the model in the registry, with the time at which its latest version was made."""
        await self._list(name, "created", created_ms, only_new=True)
        await self._list(name, "latest", latest_ms)

    async def listed(self, order: Order) -> list[tuple[int, str]]:
        """Return every model with the time that orders it, oldest first. Some may be gone."""
        found: list[tuple[bytes, float]] = await ask(
            lambda: self._redis.zrange(keys.models(order), 0, -1, withscores=True)
        )
        return sorted((int(at_ms), text(name)) for name, at_ms in found)

    async def readme(self, name: str) -> str:
        """Return the readme, '' without one."""
        found: bytes | None = await ask(lambda: self._redis.hget(keys.model(name), "readme"))
        return text(found or b"")

    async def default_examples(self, models: Sequence[Model]) -> list[Raw | None]:
        """Return the default example of each model, or None."""
        found: list[bytes | None] = await self._of_examples("hget", models)
        return [None if example is None else Raw(example) for example in found]

    async def example_bytes(self, models: Sequence[Model]) -> list[int]:
        """Return the size of each default example."""
        return await self._of_examples("hstrlen", models)

    async def example_sizes(self, name: str) -> dict[str, int]:
        """Return the ids of a model's examples, newest first, with the size of each."""
        key = keys.examples(name)
        ids = sorted((text(each) for each in await ask(lambda: self._redis.hkeys(key))), reverse=True)
        sizes = await pipelined(self._redis, lambda pipe: [pipe.hstrlen(key, each) for each in ids])
        return dict(zip(ids, sizes, strict=True))

    async def examples(self, name: str, ids: Sequence[str]) -> list[Raw]:
        """Return those predictions that are examples of a model, in this order."""
        found = await ask(lambda: self._redis.hmget(keys.examples(name), ids)) if ids else []
        return [Raw(example) for example in found if example is not None]

    async def get(self, name: str) -> Model | None:
        """Return a model by "owner/name", or None."""
        [found] = await self.many([name])
        return found

    async def many(self, names: Sequence[str]) -> list[Model | None]:
        """Return each model in this order, in one write to the socket."""
        replies = await pipelined(
            self._redis, lambda pipe: [pipe.hmget(keys.model(name), list(READ)) for name in names]
        )
        return [_model(name, values) for name, values in zip(names, replies, strict=True)]

    async def _of_examples(self, command: Literal["hget", "hstrlen"], models: Sequence[Model]) -> list[Any]:
        def read(pipe: Any) -> None:
            for model in models:
                getattr(pipe, command)(keys.examples(model.name), model.default_example)

        return await pipelined(self._redis, read)

    async def _list(self, name: str, order: Order, at_ms: int, *, only_new: bool = False) -> None:
        await ask(lambda: self._redis.zadd(keys.models(order), {name: at_ms}, nx=only_new))


def _with_gist(said: Mapping[str, str]) -> Mapping[str, str]:
    """Add the beginning of the readme. A search reads thousands of these, and no readme in full."""
    return {**said, "gist": said["readme"][:GIST]} if "readme" in said else said


def _model(name: str, values: Sequence[bytes | None]) -> Model | None:
    said: Mapping[str, str] = {
        field: text(value) for field, value in zip(READ.values(), values, strict=True) if value is not None
    }
    if "created_ms" not in said:
        return None
    return msgspec.convert({**said, "name": name}, Model, strict=False)
