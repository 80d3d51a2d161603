"""Store what is said about each model: description, visibility, examples, configuration; and collections of models.

Every account may see a public model; only its owner and operators a private one. Only this module has that rule.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, Raw, Struct
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text, texts
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.data_bytes import ENTRY_BYTES
from director.core.errors import SettingsError, UnknownModel
from director.core.ids import MODEL_NAME, PredictionId
from director.core.model_config import ModelConfig, StoredConfig, judge
from director.core.schema import Stored
from director.core.states import Status
from director.core.view import view
from director.store.accounts import Account
from director.store.changes import Changes

Visibility = Literal["public", "private"]
Order = Literal["created", "latest"]

GIST: Final = 1_000

ORDERS: Final[tuple[Order, ...]] = get_args(Order)


class Model(Struct, frozen=True, kw_only=True):
    """'' means that nothing is said. `default_example` is the id of one of its examples."""

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
    price: str = ""  # a Price of core/usage as JSON

    @property
    def owner(self) -> str:
        return self.name.partition("/")[0]

    def may_be_seen_by(self, account: Account) -> bool:
        """May this account see the model? To others it does not exist, nor do its versions or what they produce."""
        return self.visibility == "public" or account.oversees or self.may_be_changed_by(account)

    def may_be_changed_by(self, account: Account) -> bool:
        return self.owner == account.name or "admin" in account.scopes


# Fields that an owner may write, with the one that is made of them
TEXTS: Final = (
    *("description", "readme", "gist", "github_url", "paper_url", "license_url", "weights_url", "cover_image_url"),
)
READ: Final = {"created" if name == "created_ms" else name: name for name in Model.__struct_fields__ if name != "name"}


class Models:
    def __init__(self, redis: Redis, scripts: Scripts, clock: Clock) -> None:
        self._redis: Any = redis  # ours answers in bytes
        self._scripts = scripts
        self._clock = clock

    async def make(self, name: str, said: Mapping[str, str]) -> bool:
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
        await self._list(name, "created", created_ms, only_new=True)
        await self._list(name, "latest", latest_ms)

    async def list_all(self, order: Order) -> list[tuple[int, str]]:
        """Return every model with the time that orders it, oldest first. Some may be gone."""
        found: list[tuple[bytes, float]] = await ask(
            lambda: self._redis.zrange(keys.models(order), 0, -1, withscores=True)
        )
        return sorted((int(at_ms), text(name)) for name, at_ms in found)

    async def readme(self, name: str) -> str:
        found: bytes | None = await ask(lambda: self._redis.hget(keys.model(name), "readme"))
        return text(found or b"")

    async def default_examples(self, models: Sequence[Model]) -> list[Raw | None]:
        found: list[bytes | None] = await self._of_examples("hget", models)
        return [None if example is None else Raw(example) for example in found]

    async def read_kept_bytes(self, names: Sequence[str]) -> list[int]:
        """Return the bytes of what is said of each model, and of the model itself unless a director made it."""
        asked = (*TEXTS, "nonce")  # only `make` leaves one
        replies = await pipelined(
            self._redis, lambda pipe: [pipe.hstrlen(keys.model(name), field) for name in names for field in asked]
        )
        slices = [replies[start : start + len(asked)] for start in range(0, len(replies), len(asked))]
        return [sum(texts) + (ENTRY_BYTES if nonce else 0) for *texts, nonce in slices]

    async def growth(self, name: str, said: Mapping[str, str]) -> int:
        """Return the bytes by which a change would make this model larger."""
        fields = [field for field in _with_gist(said) if field in TEXTS]
        had: list[int] = await pipelined(
            self._redis, lambda pipe: [pipe.hstrlen(keys.model(name), field) for field in fields]
        )
        return count_bytes(said) - sum(had)

    async def example_bytes(self, models: Sequence[Model]) -> list[int]:
        return await self._of_examples("hstrlen", models)

    async def example_sizes(self, name: str) -> dict[str, int]:
        """Return the ids of a model's examples, newest first, with the size of each."""
        key = keys.examples(name)
        ids = sorted((text(each) for each in await ask(lambda: self._redis.hkeys(key))), reverse=True)
        sizes = await pipelined(self._redis, lambda pipe: [pipe.hstrlen(key, each) for each in ids])
        return dict(zip(ids, sizes, strict=True))

    async def examples(self, name: str, ids: Sequence[str]) -> list[Raw]:
        found = await ask(lambda: self._redis.hmget(keys.examples(name), ids)) if ids else []
        return [Raw(example) for example in found if example is not None]

    async def get(self, name: str) -> Model | None:
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


def count_bytes(said: Mapping[str, str]) -> int:
    """Return the bytes that these texts take once they are written."""
    return sum(len(value.encode()) for field, value in _with_gist(said).items() if field in TEXTS)


def _with_gist(said: Mapping[str, str]) -> Mapping[str, str]:
    return {**said, "gist": said["readme"][:GIST]} if "readme" in said else said


def _model(name: str, values: Sequence[bytes | None]) -> Model | None:
    said: Mapping[str, str] = {
        field: text(value) for field, value in zip(READ.values(), values, strict=True) if value is not None
    }
    if "created_ms" not in said:
        return None
    return msgspec.convert({**said, "name": name}, Model, strict=False)


OF_CONFIG: Final = ("created", "config_rev", "config", "config_at", "config_by")
NO_CONFIG: Final = ModelConfig()


class ConfigChanged(SettingsError):
    """The configuration changed since it was read: read it again, and decide again."""


class ModelConfigs:
    # A change is logged with the names of its fields, not their values: a template may be confidential.
    def __init__(self, redis: Redis, scripts: Scripts, clock: Clock) -> None:
        self._redis: Any = redis  # ours answers in bytes
        self._scripts = scripts
        self._clock = clock
        self._changes = Changes(redis, scripts, clock)

    async def get(self, model: str) -> StoredConfig | None:
        """Return the configuration, or None without the model. Raises SettingsError if a newer release wrote it."""
        found: list[bytes | None] = await ask(lambda: self._redis.hmget(keys.model(model), OF_CONFIG))
        created, revision, config, at_ms, by = found
        if created is None:
            return None
        try:
            return StoredConfig(
                revision=int(revision or 0),
                config=msgspec.json.decode(config, type=ModelConfig) if config else NO_CONFIG,
                changed_ms=int(at_ms) if at_ms else None,
                changed_by=(by or b"").decode(),
            )
        except msgspec.DecodeError as exc:
            raise SettingsError(f"The configuration of {model} cannot be read here: {exc}") from exc

    async def put(self, model: str, config: ModelConfig, *, by: str, was: int | None = None) -> int:
        """Replace revision `was`, and return the new one. Raises UnknownModel, ConfigChanged and SettingsError."""
        judge(config)
        text = b"" if config == NO_CONFIG else msgspec.json.encode(config)
        said = sorted(msgspec.to_builtins(config))
        async with self._changes.noting("model_configured", by=by, model=model, was=was, fields=said):
            word, revision = await self._scripts.configure(
                model, text, by=by, at_ms=self._clock.now_ms(), was=was, nonce=secrets.token_hex(8)
            )
            if word == "unknown":
                raise UnknownModel(model)
            if word == "changed":
                raise ConfigChanged(f"It is revision {revision} by now, and not {was}: read it again.")
        return revision


# A collection is one value, and the last write wins. It may name any model: visibility is not checked.
SLUG: Final = r"^[a-z0-9][a-z0-9._-]{0,63}$"
# Until an operator names the hardware, clients need something to choose.
HARDWARE: Final = {"cpu": "CPU", "gpu": "GPU"}

Name = Annotated[str, Meta(pattern=MODEL_NAME)]


class Collection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    description: Annotated[str, Meta(max_length=2_000)] = ""
    full_description: Annotated[str, Meta(max_length=20_000)] = ""
    models: Annotated[tuple[Name, ...], Meta(max_length=100)] = ()


class Collections:
    def __init__(self, redis: Redis) -> None:
        self._redis: Any = redis  # ours answers in bytes

    async def slugs(self) -> list[str]:
        return sorted(text(slug) for slug in await ask(lambda: self._redis.smembers(keys.collections())))

    async def get(self, slug: str) -> Collection | None:
        [found] = await self.many([slug])
        return found

    async def many(self, slugs: Sequence[str]) -> list[Collection | None]:
        """Return each collection in this order, None if it is missing, in one write to the socket."""
        written = await pipelined(self._redis, lambda pipe: [pipe.get(keys.collection(slug)) for slug in slugs])
        return [None if one is None else msgspec.json.decode(one, type=Collection) for one in written]

    async def put(self, slug: str, collection: Collection) -> None:
        _refuse(slug, "a slug")

        async def write() -> None:
            await self._redis.sadd(keys.collections(), slug)
            await self._redis.set(keys.collection(slug), msgspec.json.encode(collection))
            await self._redis.sadd(keys.collections(), slug)  # a removal may have come between

        await ask(write)

    async def remove(self, slug: str) -> None:

        async def write() -> None:
            await self._redis.delete(keys.collection(slug))
            await self._redis.srem(keys.collections(), slug)
            if await self._redis.exists(keys.collection(slug)):  # written again between the two
                await self._redis.sadd(keys.collections(), slug)

        await ask(write)

    async def hardware(self) -> dict[str, str]:
        written = texts(await ask(lambda: self._redis.hgetall(keys.hardware())))
        return dict(sorted((written or HARDWARE).items()))

    async def put_hardware(self, sku: str, name: str) -> None:
        _refuse(sku, "a SKU")
        await ask(lambda: self._redis.hset(keys.hardware(), sku, name))

    async def remove_hardware(self, sku: str) -> None:
        await ask(lambda: self._redis.hdel(keys.hardware(), sku))


def _refuse(given: str, what: str) -> None:
    if not re.fullmatch(SLUG, given):
        raise SettingsError(f"{given!r} is not {what}: use a-z, 0-9, '.', '_' and '-', at most 64.")


MOST_EXAMPLES: Final = 100
MOST_EXAMPLE_BYTES: Final = 256 * 1024  # every answer that shows the model carries one


class Examples:
    """Copies of predictions that operators show, without webhook and stream address. Raises SettingsError if unfit."""

    def __init__(self, redis: Redis, scripts: Scripts) -> None:
        self._redis: Any = redis  # ours answers in bytes
        self._scripts = scripts

    async def show(self, model: str, prediction_id: PredictionId, *, is_default: bool) -> None:
        """Show this prediction with its model. The default one stands for the model in every list. Safe to repeat."""
        stored = await self._scripts.get(prediction_id, outlook=False)
        if stored is None or stored.record.model != model:
            raise SettingsError(f"{model} has no such prediction any more.")
        example = _example(stored)
        key = keys.examples(model)
        if await ask(lambda: self._redis.hlen(key)) >= MOST_EXAMPLES:
            raise SettingsError(f"A model has at most {MOST_EXAMPLES} examples: take one away first.")
        await ask(lambda: self._redis.hset(key, prediction_id, bytes(example)))
        if is_default and await self._scripts.amend(model, "change", said={"default_example": prediction_id}) != "done":
            await ask(lambda: self._redis.delete(key))
            raise SettingsError(f"there is no model {model}.")

    async def hide(self, model: str, prediction_id: PredictionId) -> bool:
        return bool(await ask(lambda: self._redis.hdel(keys.examples(model), prediction_id)))


def _example(stored: Stored) -> Raw:
    if stored.record.status is not Status.SUCCEEDED or stored.input is None:
        raise SettingsError("Only a prediction that succeeded, and whose data is still there, is an example.")
    shown = view(stored)
    shown = replace(shown, webhook=UNSET, webhook_events_filter=UNSET, urls=replace(shown.urls, stream=""))
    example = msgspec.json.encode(shown)
    if len(example) > MOST_EXAMPLE_BYTES:
        raise SettingsError(f"An example is at most {MOST_EXAMPLE_BYTES:,} bytes, and this one {len(example):,}.")
    return Raw(example)
