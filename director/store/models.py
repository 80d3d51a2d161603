"""What is said of each model: its description, who may see it, what is shown of it. Knows of no version but its name.

Anybody may see a public model, and its owner and operators a private one. That rule stands here and nowhere else.
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
    """A named thing that can be run. '' where nothing is said.

    `latest`: see `Catalog.register`, '' before its first version. `default_example`: the id of one of its examples.
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
    gist: str = ""  # how its readme begins
    former_runs: int = 0  # of versions that were deleted

    @property
    def owner(self) -> str:
        return self.name.partition("/")[0]

    def may_be_seen_by(self, account: Account) -> bool:
        """For whom it is no model at all, and neither are its versions and all that is made of them."""
        return self.visibility == "public" or self.may_be_changed_by(account)

    def may_be_changed_by(self, account: Account) -> bool:
        """May this account change what is said of it, and take it away?"""
        return self.owner == account.name or "admin" in account.scopes


# field of the hash -> of the struct
READ: Final = {"created" if name == "created_ms" else name: name for name in Model.__struct_fields__ if name != "name"}


class Models:
    """All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis, scripts: Scripts, clock: Clock) -> None:
        self._redis: Any = redis  # redis-py says str or bytes; ours answers in bytes
        self._scripts = scripts
        self._clock = clock

    async def make(self, name: str, said: Mapping[str, str]) -> bool:
        """A new model, of which this is said; False where there is one of this name."""
        now_ms = self._clock.now_ms()
        # the registry first: who is listed and not found is passed over, who is not listed stays so
        await self._list_new(name, now_ms)
        fields = {"created": str(now_ms), **_with_gist(said)}
        is_made = await self._scripts.amend(name, "make", said=fields, nonce=secrets.token_hex(8)) == "done"
        await self._list_new(name, now_ms)  # a removal may have come between
        return is_made

    async def change(self, name: str, said: Mapping[str, str]) -> bool:
        """Say this of it, where '' takes back; all else stays. False where there is no such model."""
        return await self._scripts.amend(name, "change", said=_with_gist(said)) == "done"

    async def remove(self, name: str) -> bool:
        """Take away a model, and its examples; False while it has a version."""
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
        """Name it in the registry, as one whose latest version was made then."""
        await self._list(name, "created", created_ms, only_new=True)
        await self._list(name, "latest", latest_ms)

    async def listed(self, order: Order) -> list[tuple[int, str]]:
        """Every model with the moment that orders it, from old to new. Some may be gone."""
        found: list[tuple[bytes, float]] = await ask(
            lambda: self._redis.zrange(keys.models(order), 0, -1, withscores=True)
        )
        return sorted((int(at_ms), text(name)) for name, at_ms in found)

    async def readme(self, name: str) -> str:
        """'' where it has none."""
        found: bytes | None = await ask(lambda: self._redis.hget(keys.model(name), "readme"))
        return text(found or b"")

    async def default_examples(self, models: Sequence[Model]) -> list[Raw | None]:
        """The one example of each that stands for it, None where it has none."""
        found: list[bytes | None] = await self._of_examples("hget", models)
        return [None if example is None else Raw(example) for example in found]

    async def example_bytes(self, models: Sequence[Model]) -> list[int]:
        """How large that example of each is."""
        return await self._of_examples("hstrlen", models)

    async def example_sizes(self, name: str) -> dict[str, int]:
        """The ids of those that are shown with a model, newest first, with the bytes of each."""
        key = keys.examples(name)
        ids = sorted((text(each) for each in await ask(lambda: self._redis.hkeys(key))), reverse=True)
        sizes = await pipelined(self._redis, lambda pipe: [pipe.hstrlen(key, each) for each in ids])
        return dict(zip(ids, sizes, strict=True))

    async def examples(self, name: str, ids: Sequence[str]) -> list[Raw]:
        """These predictions, as far as they are shown with a model, in this order."""
        found = await ask(lambda: self._redis.hmget(keys.examples(name), ids)) if ids else []
        return [Raw(example) for example in found if example is not None]

    async def get(self, name: str) -> Model | None:
        """A model by "owner/name"; None where there is none."""
        [found] = await self.many([name])
        return found

    async def many(self, names: Sequence[str]) -> list[Model | None]:
        """Each of these in this order, by one write to the socket."""
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
    """The beginning of a readme stands beside it: thousands are searched, and none of them is read whole."""
    return {**said, "gist": said["readme"][:GIST]} if "readme" in said else said


def _model(name: str, values: Sequence[bytes | None]) -> Model | None:
    said: Mapping[str, str] = {
        field: text(value) for field, value in zip(READ.values(), values, strict=True) if value is not None
    }
    if "created_ms" not in said:
        return None
    return msgspec.convert({**said, "name": name}, Model, strict=False)
