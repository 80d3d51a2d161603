"""Test the catalogue: what a director registers is what callers find."""

from typing import Any

import pytest
from msgspec import Raw
from redis.asyncio import Redis

from director.broker import keys
from director.core.errors import BackendUnavailable, SettingsError
from director.core.policy import Policy
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.keyspace import dump

MODEL = "acme/painter"
OLD, NEW = "a" * 64, "b" * 64


async def register(catalog: Catalog, version: str, **options: Any) -> None:
    await catalog.register(MODEL, version, **{"schema": OPEN_SCHEMA, "server": "cog", "policy": Policy(), **options})


async def latest(catalog: Catalog) -> str:
    model = await catalog.model(MODEL)
    return model.latest


@pytest.mark.parametrize("registered", [(OLD, NEW), (OLD, NEW, OLD)], ids=["new director", "restarted old director"])
async def test_newest_version_stays_the_latest(catalog: Catalog, registered: tuple[str, ...]) -> None:
    for version in registered:
        await register(catalog, version)
    assert await latest(catalog) == NEW


async def test_explicit_rollback_makes_the_old_version_latest(catalog: Catalog) -> None:
    await register(catalog, OLD)
    await register(catalog, NEW)
    await register(catalog, OLD, is_latest=True)
    assert await latest(catalog) == OLD


async def test_repeated_registration_writes_nothing(catalog: Catalog, redis: Redis) -> None:
    await register(catalog, OLD)
    before = await dump(redis)
    await register(catalog, OLD)
    assert await dump(redis) == before


async def test_interrupted_registration_is_completed(catalog: Catalog, redis: Redis) -> None:
    await register(catalog, OLD)
    await register(catalog, NEW)
    await redis.hset(keys.model(MODEL), "latest", OLD)
    await redis.hdel(keys.version(MODEL, NEW), "announced")  # as if the connection broke before the last two writes
    await register(catalog, NEW)
    assert await latest(catalog) == NEW


async def test_different_schema_of_the_same_version_is_kept(catalog: Catalog) -> None:
    await register(catalog, OLD)
    await register(catalog, OLD, schema=Raw(b'{"openapi":"3.0.2"}'))
    version = await catalog.version(MODEL, OLD)
    assert bytes(version.schema) == b'{"openapi":"3.0.2"}'


@pytest.mark.parametrize("again", [{}, {"is_latest": True}, {"server": "another cog"}], ids=str)
async def test_full_server_still_accepts_a_repeated_registration(
    catalog: Catalog, redis: Redis, again: dict[str, Any]
) -> None:
    await register(catalog, OLD)
    await redis.config_set("maxmemory", "1")
    try:
        await register(catalog, OLD, **again)
        with pytest.raises(BackendUnavailable):
            await register(catalog, NEW)
    finally:
        await redis.config_set("maxmemory", "0")
        await register(catalog, NEW)  # a queue without a version would be no queue


@pytest.mark.parametrize(("model", "version"), [("Acme/Painter", OLD), ("painter", OLD), (MODEL, "v1"), ("a/b:c", OLD)])
async def test_unusable_name_is_refused(catalog: Catalog, model: str, version: str) -> None:
    with pytest.raises(SettingsError, match="owner/name"):
        await catalog.register(model, version, schema=OPEN_SCHEMA, server="cog", policy=Policy())


@pytest.mark.parametrize("wrong", [{"lanes": ()}, {"lanes": ("urgent",)}, {"account": "Team 1"}])
async def test_invalid_account_or_lane_is_refused(redis: Redis, wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        await Accounts(redis).create_token(**{"account": "team-1", **wrong})


async def test_next_registration_repairs_the_remains_of_a_deletion(redis: Redis, catalog: Catalog) -> None:
    for left in ({"announced": "2"}, {"announced": "2", "weights": ""}):
        await redis.delete(keys.version(MODEL, NEW))
        await redis.hset(keys.version(MODEL, NEW), mapping=left)
        assert await catalog.version(MODEL, NEW) is None
        await catalog.register(MODEL, NEW, schema=OPEN_SCHEMA, server="cog", policy=Policy())
        version = await catalog.version(MODEL, NEW)
        assert (version.server, version.schema) == ("cog", OPEN_SCHEMA)
        assert await latest(catalog) == NEW
