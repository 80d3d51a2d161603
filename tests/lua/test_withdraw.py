"""withdraw removes a model without a version and counts the runs of removed versions once."""

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from tests.support.keyspace import dump, unchanged

MODEL = "acme/painter"
OLD, NEW = "a" * 64, "b" * 64


@pytest.fixture
async def model(redis: Redis, scripts: Scripts) -> None:
    await scripts.amend(MODEL, "make", said={"created": "1", "latest": NEW, "former_runs": "3"}, nonce="n")


async def said(redis: Redis, *fields: str) -> list[str | None]:
    return [None if value is None else value.decode() for value in await redis.hmget(keys.model(MODEL), list(fields))]


async def test_a_model_without_a_version_is_removed_once(scripts: Scripts, redis: Redis) -> None:
    await scripts.amend(MODEL, "make", said={"created": "1"}, nonce="n")
    for _ in range(2):
        assert await scripts.withdraw(MODEL, "model") == "done"
        assert await dump(redis) == {}


async def test_a_model_with_a_version_is_not_removed(scripts: Scripts, redis: Redis, model: None) -> None:
    async with unchanged(redis):
        assert await scripts.withdraw(MODEL, "model") == "versions"


async def test_runs_of_a_removed_version_are_added_once(scripts: Scripts, redis: Redis, model: None) -> None:
    for runs in (7, 7, 0):  # the last one is of a deletion that is done again: its queue is gone by then
        await scripts.withdraw(MODEL, "going", version=OLD, runs=runs)
    for _ in range(2):
        await scripts.withdraw(MODEL, "gone", version=OLD)
    assert await said(redis, "former_runs", "latest", f"going:{OLD}") == ["10", NEW, None]


async def test_two_versions_removed_together_are_both_counted(scripts: Scripts, redis: Redis, model: None) -> None:
    await scripts.withdraw(MODEL, "going", version=OLD, runs=7)
    await scripts.withdraw(MODEL, "going", version=NEW, runs=20)
    await scripts.withdraw(MODEL, "gone", version=OLD)
    await scripts.withdraw(MODEL, "gone", version=NEW)
    assert await said(redis, "former_runs", "latest") == ["30", ""]


async def test_the_latest_version_changes_only_when_it_is_removed(scripts: Scripts, redis: Redis, model: None) -> None:
    await scripts.withdraw(MODEL, "gone", version="c" * 64, latest=OLD)
    assert await said(redis, "latest") == [NEW]
    for _ in range(2):
        await scripts.withdraw(MODEL, "gone", version=NEW, latest=OLD)
        assert await said(redis, "latest") == [OLD]


async def test_a_removed_model_stays_removed(scripts: Scripts, redis: Redis) -> None:
    await scripts.withdraw(MODEL, "going", version=OLD, runs=1)
    await scripts.withdraw(MODEL, "gone", version=OLD, latest=NEW)
    assert await dump(redis) == {}
