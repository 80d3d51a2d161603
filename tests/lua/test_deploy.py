"""deploy writes a deployment only for a caller that read its last state."""

from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from tests.support.keyspace import dump, unchanged
from tests.support.queue_driver import ACCOUNT

NAME = "chat"


async def deploy(scripts: Scripts, was: bytes, becomes: bytes, *, name: str = NAME, most: int = 9) -> str:
    return await scripts.deploy(ACCOUNT, name, was=was, becomes=becomes, created_ms=7, most=most)


async def test_a_writer_who_read_the_last_state_can_change_a_deployment(redis: Redis, scripts: Scripts) -> None:
    assert await deploy(scripts, b"", b"one") == "written"
    assert await redis.get(keys.deployment(ACCOUNT, NAME)) == b"one"
    assert await redis.zrange(keys.deployments(ACCOUNT), 0, -1, withscores=True) == [(b"chat", 7.0)]
    assert await deploy(scripts, b"one", b"two") == "written"
    assert await redis.get(keys.deployment(ACCOUNT, NAME)) == b"two"
    assert await deploy(scripts, b"two", b"") == "written"
    assert await dump(redis) == {}


async def test_a_late_writer_changes_nothing(redis: Redis, scripts: Scripts) -> None:
    await deploy(scripts, b"", b"one")
    async with unchanged(redis):
        for was, becomes in ((b"", b"mine"), (b"older", b"mine"), (b"older", b"")):
            assert await deploy(scripts, was, becomes) == "changed"
        assert await deploy(scripts, b"one", b"two", name="other") == "changed"


async def test_a_repeated_call_has_one_effect(redis: Redis, scripts: Scripts) -> None:
    for was, becomes in ((b"", b"one"), (b"one", b"two"), (b"two", b"")):
        await deploy(scripts, was, becomes)
        async with unchanged(redis):
            assert await deploy(scripts, was, becomes) == "written"


async def test_a_full_account_can_still_change_its_deployments(redis: Redis, scripts: Scripts) -> None:
    await deploy(scripts, b"", b"one", most=1)
    async with unchanged(redis):
        assert await deploy(scripts, b"", b"one", name="other", most=1) == "full"
    assert await deploy(scripts, b"one", b"two", most=1) == "written"
