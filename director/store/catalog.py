"""Store which models and versions there are, and the queue of each. Directors write this, and the API reads it."""

import re
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypedDict, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace
from redis import exceptions
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, read_all, text
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.data_bytes import DATA_TTL_MS, ENTRY_BYTES, RECORD_TTL_MS
from director.core.errors import SettingsError, UnknownModel
from director.core.ids import MODEL_NAME, VERSION_ID, Kind, Partition, QueueName, is_queue_of_predictions, queue_name
from director.core.policy import Policy, shard
from director.core.schema import SetupRun, read_setup_run
from director.store.models import Model, Models

T = TypeVar("T")
AT_ONCE: Final = 100  # models or versions that one write to the socket asks for
OPEN_SCHEMA: Final = Raw(b'{"openapi":"3.0.2","info":{"title":"Cog","version":"0.1.0"},"paths":{}}')

OPEN: Final = bytes(OPEN_SCHEMA).decode()

# Without `setup_run`: the last setup may have printed much, and is read only on request.
SHOWN: Final = ("created", "server", "schema", "weights")
REGISTERED: Final = ("created", "server", "schema", "announced")
AWAITED_S: Final = 20  # a director says it every 2 s; one that is silent for longer counts as gone
LISTED: Final = "2"  # marks a version that is announced; "1" did so before models were listed


class OfQueue(TypedDict):
    streams: int
    size: int
    data_ttl_ms: int
    record_ttl_ms: int


OF_QUEUE: Final = tuple(OfQueue.__annotations__)


def has_openai_api(server: str | None) -> bool:
    """Return whether servers of this kind have OpenAI's API, or may have it: '' while none was ready."""
    return server is not None and (not server or server.partition(" ")[0] == "openai")


class Version(Struct, frozen=True, kw_only=True):
    """One immutable image of a model, with the queue of `kind`. `schema` is from a model server, so it is untrusted."""

    model: str
    id: str
    created_ms: int
    server: str
    schema: Raw
    streams: int
    size: int
    data_ttl_ms: int = DATA_TTL_MS
    record_ttl_ms: int = RECORD_TTL_MS
    kind: Kind = ""
    weights: str = ""

    @property
    def queue(self) -> QueueName:
        return queue_name(self.model, self.id, self.kind)

    def shard_of(self, account: str) -> str:
        """Return the numbers of the streams that an account uses in its queue, joined by commas."""
        return ",".join(map(str, shard(account, streams=self.streams, size=self.size)))


class Awaited(Struct, frozen=True, kw_only=True):
    """A director's wait before a version has a queue. `version`: '' while it is unknown. `waited_s`: by the director's
    clock. `why`: the reason of its first server.
    """

    version: str = ""
    waited_s: float = 0
    servers: tuple[str, ...] = ()
    why: str = ""


class Catalog:
    def __init__(self, redis: Redis, scripts: Scripts, clock: Clock) -> None:
        self._redis = redis
        self._scripts = scripts
        self._clock = clock
        self.models = Models(redis, scripts, clock)

    async def register(
        self,
        model: str,
        version: str,
        *,
        schema: Raw,
        server: str,
        policy: Policy,
        is_latest: bool = False,
        makes_model: bool = True,
    ) -> QueueName:
        """Register a version and return its queue. Several directors may do so at once and repeatedly.

        The schema of a version is written once: only a version that showed none gets one later. The caller compares.
        A version becomes its model's latest when it is first registered, and again if `is_latest`. The model is written
        last: a reader of a name finds all of it. If all stands nothing is written, so a director can start beside a
        full server. Raises SettingsError for an invalid name or version, and UnknownModel for a missing model unless
        `makes_model`.
        """
        if not re.fullmatch(MODEL_NAME, model) or not re.fullmatch(VERSION_ID, version):
            raise SettingsError(f"{model}:{version} is not owner/name in lower case with a version of 64 hex digits.")
        queue = await self._make_queue(model, version, "", policy)
        key, now_ms = keys.version(model, version), self._clock.now_ms()

        async def write() -> None:
            known = _name_values(REGISTERED, await self._redis.hmget(key, REGISTERED))
            stands = "created" in known  # a deletion may have come between two writes of another director
            is_unknown = known.get("schema") == OPEN and schema != OPEN_SCHEMA
            if not stands or is_unknown or known.get("server") != server:
                try:
                    await self._write_version(key, schema, server, now_ms=now_ms, is_unknown=is_unknown)
                except exceptions.OutOfMemoryError:
                    # the name of the server is only shown, and what fills Redis waits for this director
                    if not stands or is_unknown:
                        raise
            is_listed = stands and known.get("announced") == LISTED
            [was] = await self._redis.hmget(keys.model(model), ["latest"]) if is_latest else [None]
            becomes_latest = is_latest and text(was or b"") != version
            if is_listed and not becomes_latest and await self._redis.hexists(keys.versions(), version):
                return
            await self._redis.hset(keys.versions(), version, model)
            latest = version if is_latest or not stands or "announced" not in known else None
            await self._make_known(model, latest, makes_model=makes_model)
            # The last write, so that what was cut short before it is repeated.
            await self._redis.hset(key, "announced", LISTED)

        await ask(write)
        return queue

    async def _write_version(self, key: str, schema: Raw, server: str, *, now_ms: int, is_unknown: bool) -> None:
        pipe = self._redis.pipeline(transaction=True)
        pipe.hset(key, "server", server)
        if is_unknown:
            pipe.hset(key, "schema", bytes(schema))
        pipe.hsetnx(key, "schema", bytes(schema))
        pipe.hsetnx(key, "created", str(now_ms))
        await pipe.execute()

    async def _make_known(self, model: str, latest: str | None, *, makes_model: bool) -> None:
        pipe = self._redis.pipeline(transaction=True)
        if makes_model:
            pipe.hsetnx(keys.model(model), "created", str(self._clock.now_ms()))
            if latest is not None:
                pipe.hset(keys.model(model), "latest", latest)
        elif not await self.models.change(model, {} if latest is None else {"latest": latest}):
            raise UnknownModel(model)
        pipe.hmget(keys.model(model), ["created", "latest"])
        created, named = (await pipe.execute())[-1]
        latest_ms = await self._redis.hget(keys.version(model, text(named or b"")), "created")
        await self.models.enlist(model, created_ms=int(created), latest_ms=int(latest_ms or created))

    async def version(self, model: str, version: str) -> Version | None:
        known = await self.versions(model, [version])
        return known[0] if known else None

    async def model(self, name: str) -> Model | None:
        """Return a model by "owner/name", or None. A model that an account created may have no version yet."""
        return await self.models.get(name)

    async def model_of(self, version: str) -> str | None:
        found = await ask(lambda: self._redis.hget(keys.versions(), version))
        return None if found is None else text(found)

    async def has_version(self, model: str, version: str) -> bool:
        """Return whether anything of this version exists. A deletion that was cut short leaves a part."""
        if await ask(lambda: self._redis.exists(keys.version(model, version))):
            return True
        [served] = await self._field_of_each([keys.meta(queue_name(model, version))], "version")
        return served == version.encode()

    async def is_registered(self, model: str, version: str, queue: QueueName) -> bool:
        """Return whether all that `register` wrote is there. A deletion at the same time may have removed a part."""

        def read(pipe: Any) -> None:
            for each in {queue, queue_name(model, version)}:
                pipe.sismember(keys.queues(), each)
                pipe.exists(keys.meta(each))
            pipe.hexists(keys.versions(), version)
            pipe.hexists(keys.version(model, version), "created")

        return all(await pipelined(self._redis, read))

    async def queues(self) -> list[QueueName]:
        return sorted(QueueName(text(name)) for name in await ask(lambda: self._redis.smembers(keys.queues())))

    async def partitions(self) -> list[Partition]:
        return [Partition(int(number)) for number in await ask(lambda: self._redis.smembers(keys.partitions()))]

    async def version_ids(self, model: str) -> list[str]:
        return [version for _, version in await self.list_versions(model)]

    async def list_versions(self, model: str) -> list[tuple[int, str]]:
        """Return all versions of a model as (created, version), newest first. They come from the list of queues."""
        queues = filter(is_queue_of_predictions, await self.queues())
        of_model = [queue for queue in queues if queue.rpartition(":")[0] == model]
        named = await self._field_of_each([keys.meta(queue) for queue in of_model], "version")
        ids = [text(name) for name in named if name is not None]
        created = await self._field_of_each([keys.version(model, name) for name in ids], "created")
        known = [(int(at_ms), name) for at_ms, name in zip(created, ids, strict=True) if at_ms is not None]
        return sorted(known, reverse=True)

    async def versions(self, model: str, ids: Sequence[str]) -> list[Version]:
        """Return the known ones of these versions, with their schemas, in this order and in one write to the socket."""
        found = await self.each_version([(model, version) for version in ids])
        return [version for version in found if version is not None]

    async def each_version(self, named: Sequence[tuple[str, str]]) -> list[Version | None]:
        def read(pipe: Any) -> None:
            for model, version in named:
                pipe.hmget(keys.version(model, version), SHOWN)
                pipe.hmget(keys.meta(queue_name(model, version)), OF_QUEUE)

        replies = iter(await pipelined(self._redis, read))
        return [_version(*name, *parts) for name, *parts in zip(named, replies, replies, strict=True)]

    async def servers_of_latest(self, models: Sequence[str]) -> list[str | None]:
        """Return the kind of the servers of each model's latest version, or None for a model without a version."""
        latest = await self._field_of_each([keys.model(name) for name in models], "latest")
        versions = [keys.version(name, text(version or b"")) for name, version in zip(models, latest, strict=True)]
        found = await self._field_of_each(versions, "server")
        return [None if server is None else text(server) for server in found]

    async def schema_bytes(self, named: Sequence[tuple[str, str]]) -> list[int]:
        return await pipelined(
            self._redis, lambda pipe: [pipe.hstrlen(keys.version(*version), "schema") for version in named]
        )

    async def read_kept_bytes(self, owners: Collection[str]) -> AsyncIterator[tuple[str, int]]:
        """Yield what callers among these accounts had stored: (owner, bytes) of each model, and of each version that a
        training made. Schemas of a director's versions are not theirs.
        """
        names = [name for _, name in await self.models.list_all("created") if _owner(name) in owners]
        for some in _slices(names):
            for name, size in zip(some, await self.models.read_kept_bytes(some), strict=True):
                yield _owner(name), size
        redis: Any = self._redis  # redis-py says str or bytes; ours answers in bytes
        made = await ask(lambda: redis.hgetall(keys.versions()))
        versions = [(text(model), text(version)) for version, model in made.items() if _owner(text(model)) in owners]
        for these in _slices(versions):
            replies = await read_all(redis, these, lambda pipe, each: pipe.hexists(keys.version(*each), "weights"))
            trained = [each for each, is_trained in zip(these, replies, strict=True) if is_trained]
            for (model, _), size in zip(trained, await self.schema_bytes(trained), strict=True):
                yield _owner(model), ENTRY_BYTES + size

    async def note_awaited(self, model: str, awaited: Awaited) -> None:
        written = msgspec.json.encode(awaited)
        await ask(lambda: self._redis.set(keys.wait_reason(model), written, ex=AWAITED_S))

    async def read_awaited(self, model: str) -> Awaited | None:
        """Return what the director of this model waits for. None if none does, or an unknown release wrote it."""
        written: Any = await ask(lambda: self._redis.get(keys.wait_reason(model)))
        try:
            return None if written is None else msgspec.json.decode(written, type=Awaited)
        except msgspec.DecodeError:
            return None

    async def note_setup(self, model: str, version: str, setup: SetupRun) -> bool:
        said = {"setup_run": msgspec.json.encode(setup)}
        return await self._scripts.amend(model, "change", said=said, version=version) == "done"

    async def setup_run(self, model: str, version: str) -> SetupRun | None:
        [stored] = await self._field_of_each([keys.version(model, version)], "setup_run")
        return read_setup_run(stored)

    async def setup_run_of(self, queue: QueueName) -> SetupRun | None:
        """Return the last setup of the version of a queue of predictions. None for a queue of another kind."""
        [version] = await self._field_of_each([keys.meta(queue)], "version")
        if version is None or not is_queue_of_predictions(queue):
            return None
        return await self.setup_run(queue.rpartition(":")[0], text(version))

    async def runs(self, queues: Sequence[QueueName]) -> dict[QueueName, int]:
        counts = await self._field_of_each([keys.meta(queue) for queue in queues], "arrivals")
        return {queue: int(count or 0) for queue, count in zip(queues, counts, strict=True)}

    async def _field_of_each(self, hashes: Sequence[str], field: str) -> list[bytes | None]:
        found: list[bytes | None] = []
        for some in _slices(hashes):
            found += await read_all(self._redis, some, lambda pipe, key: pipe.hget(key, field))
        return found

    async def of_kind(self, version: Version, kind: Kind) -> Version | None:
        """Return the version with the queue for this kind of run, or None if no director has ever run this kind."""
        if not kind:
            return version
        meta = keys.meta(queue_name(version.model, version.id, kind))
        values = await ask(lambda: self._redis.hmget(meta, OF_QUEUE))
        facts = _of_queue(values)
        return None if facts is None else replace(version, kind=kind, **facts)

    async def register_kind(
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
        if not kind or await self.version(model, version) is None:
            mine = Policy() if kind else policy
            predictions = await self.register(
                model, version, schema=schema, server=server, policy=mine, is_latest=is_latest
            )
            if not kind:
                return predictions
        return await self._make_queue(model, version, kind, policy)

    async def _make_queue(self, model: str, version: str, kind: Kind, policy: Policy) -> QueueName:
        """List a queue, then pause suspended accounts in it (see `Suspensions`). Writes nothing if all of it stands."""
        queue = queue_name(model, version, kind)
        if not await self._scripts.register(queue, version=version, policy=policy):
            raise SettingsError(
                f"Version {version} of {model} shares its first 12 digits with another: choose a new id."
            )
        redis: Any = self._redis  # redis-py says str or bytes; ours answers in bytes
        # The partition first: a reader that finds a queue finds what is owed there, even after the queue is gone.
        for registry, member in ((keys.partitions(), str(keys.queue_partition(queue))), (keys.queues(), queue)):
            # a full server refuses to add even what is there
            if not await ask(partial(redis.sismember, registry, member)):
                await ask(partial(redis.sadd, registry, member))
        for name, score in await ask(lambda: redis.zrange(keys.suspensions(), 0, -1, withscores=True)):
            revision, is_suspended = divmod(int(score), 2)
            if is_suspended:
                await self._scripts.pause(queue, paused=True, account=text(name), revision=revision)
        return queue


def _owner(model: str) -> str:
    return model.partition("/")[0]


def _slices(names: Sequence[T]) -> Iterator[Sequence[T]]:
    return (names[start : start + AT_ONCE] for start in range(0, len(names), AT_ONCE))


def _name_values(names: Sequence[str], values: Sequence[bytes | str | None]) -> dict[str, str]:
    return {name: text(value) for name, value in zip(names, values, strict=True) if value is not None}


def _version(model: str, version: str, values: Sequence[bytes | None], meta: Sequence[bytes | None]) -> Version | None:
    found, facts = _name_values(SHOWN, values), _of_queue(meta)
    if "created" not in found or facts is None:
        return None
    return Version(
        model=model,
        id=version,
        created_ms=int(found["created"]),
        server=found["server"],
        schema=Raw(found["schema"].encode()),
        weights=found.get("weights", ""),
        **facts,
    )


def _of_queue(values: Sequence[bytes | str | None]) -> OfQueue | None:
    """Return the fields of OF_QUEUE, or None if there is no such queue."""
    streams, size, data_ttl_ms, record_ttl_ms = values
    if streams is None or size is None:
        return None
    return {
        "streams": int(streams),
        "size": int(size),
        "data_ttl_ms": int(data_ttl_ms or DATA_TTL_MS),
        "record_ttl_ms": int(record_ttl_ms or RECORD_TTL_MS),
    }
