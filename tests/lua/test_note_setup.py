"""note_setup keeps the last setup of a version's servers and creates no version."""

from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from tests.support.keyspace import unchanged

MODEL, VERSION = "acme/painter", "a" * 64


async def test_the_last_setup_replaces_the_one_before(scripts: Scripts, redis: Redis) -> None:
    key = keys.version(MODEL, VERSION)
    await redis.hset(key, mapping={"created": "1", "schema": "{}"})
    for said in (b"one", b"two", b"two"):
        assert await scripts.note_setup(MODEL, VERSION, said)
    assert await redis.hgetall(key) == {b"created": b"1", b"schema": b"{}", b"setup_run": b"two"}


async def test_a_missing_version_is_not_created(scripts: Scripts, redis: Redis) -> None:
    assert not await scripts.note_setup(MODEL, VERSION, b"one")
    await redis.hset(keys.version(MODEL, VERSION), "weights", "of one that is going")
    async with unchanged(redis):
        assert not await scripts.note_setup(MODEL, VERSION, b"one")
