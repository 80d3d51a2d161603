"""configure writes a model's configuration for a caller that read the last one, and numbers each change."""

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from tests.support.keyspace import dump, unchanged

MODEL = "acme/painter"


async def configure(
    scripts: Scripts, config: bytes, nonce: str, *, was: int | None = None, at_ms: int = 7
) -> tuple[str, int]:
    return await scripts.configure(MODEL, config, by="ops", at_ms=at_ms, was=was, nonce=nonce)


@pytest.fixture
async def model(redis: Redis) -> None:
    await redis.hset(keys.model(MODEL), mapping={"created": "1", "description": "It paints."})


async def test_every_change_has_the_next_number_even_a_full_reset(scripts: Scripts, redis: Redis, model: None) -> None:
    assert await configure(scripts, b"one", "a") == ("done", 1)
    assert await configure(scripts, b"", "b") == ("done", 2)
    assert await configure(scripts, b"two", "c", was=2) == ("done", 3)
    said = await redis.hgetall(keys.model(MODEL))
    assert (said[b"config"], said[b"config_by"], said[b"config_at"]) == (b"two", b"ops", b"7")
    assert said[b"description"] == b"It paints."


async def test_a_writer_who_read_an_older_state_changes_nothing(scripts: Scripts, redis: Redis, model: None) -> None:
    await configure(scripts, b"one", "a")
    async with unchanged(redis):
        assert await configure(scripts, b"mine", "b", was=0) == ("changed", 1)


async def test_a_repeated_call_has_one_effect(scripts: Scripts, redis: Redis, model: None) -> None:
    for was in (None, 1):
        nonce = f"of {was}"
        answer = await configure(scripts, b"one", nonce, was=was)
        async with unchanged(redis):
            assert await configure(scripts, b"one", nonce, was=was, at_ms=9) == answer


async def test_a_missing_model_is_not_created(scripts: Scripts, redis: Redis) -> None:
    assert await configure(scripts, b"one", "a") == ("unknown", 0)
    assert await dump(redis) == {}
