"""amend creates a model once and changes an existing one."""

from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from tests.support.keyspace import dump, unchanged

MODEL, VERSION = "acme/painter", "a" * 64
SAID = {"created": "1", "description": "It paints."}


async def said(redis: Redis) -> dict[str, str]:
    found = await redis.hgetall(keys.model(MODEL))
    return {name.decode(): value.decode() for name, value in found.items() if name != b"nonce"}


async def test_a_model_is_created_once(scripts: Scripts, redis: Redis) -> None:
    assert await scripts.amend(MODEL, "make", said=SAID, nonce="first") == "done"
    async with unchanged(redis):
        assert await scripts.amend(MODEL, "make", said={"created": "2"}, nonce="second") == "exists"
        assert await scripts.amend(MODEL, "make", said=SAID) == "exists"
        assert await scripts.amend(MODEL, "make", said=SAID, nonce="first") == "done", "the reply was lost"
    assert await said(redis) == SAID
    await redis.hdel(keys.model(MODEL), "nonce")
    assert await scripts.amend(MODEL, "make", said=SAID) == "exists", "a director registered it"


async def test_a_change_sets_and_clears_fields_and_keeps_the_rest(scripts: Scripts, redis: Redis) -> None:
    await scripts.amend(MODEL, "make", said=SAID | {"paper_url": "https://example.com"}, nonce="n")
    for _ in range(2):
        assert await scripts.amend(MODEL, "change", said={"description": "", "license_url": "https://l"}) == "done"
        assert await said(redis) == {"created": "1", "paper_url": "https://example.com", "license_url": "https://l"}


async def test_a_change_does_not_create_a_missing_model(scripts: Scripts, redis: Redis) -> None:
    assert await scripts.amend(MODEL, "change", said=SAID) == "unknown"
    assert await dump(redis) == {}


async def test_the_last_setup_of_a_version_replaces_the_one_before(scripts: Scripts, redis: Redis) -> None:
    key = keys.version(MODEL, VERSION)
    await redis.hset(key, mapping={"created": "1", "schema": "{}"})
    for setup in (b"one", b"two", b"two"):
        assert await scripts.amend(MODEL, "change", said={"setup_run": setup}, version=VERSION) == "done"
    assert await redis.hgetall(key) == {b"created": b"1", b"schema": b"{}", b"setup_run": b"two"}


async def test_a_change_does_not_create_a_missing_version(scripts: Scripts, redis: Redis) -> None:
    setup = {"setup_run": b"one"}
    assert await scripts.amend(MODEL, "change", said=setup, version=VERSION) == "unknown"
    await redis.hset(keys.version(MODEL, VERSION), "weights", "of one that is going")
    async with unchanged(redis):
        assert await scripts.amend(MODEL, "change", said=setup, version=VERSION) == "unknown"
