"""allow changes what a token may do and until when, and brings no revoked token back."""

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.store.accounts import Accounts, digest
from tests.support.keyspace import unchanged
from tests.support.queue_driver import ACCOUNT

FAR_MS = 4_000_000_000_000


@pytest.fixture
async def token(redis: Redis) -> str:
    return digest(await Accounts(redis).create_token(ACCOUNT, scopes=["read", "run"]))


async def test_fields_and_end_are_changed_and_all_else_stays(token: str, redis: Redis, scripts: Scripts) -> None:
    before = await redis.hgetall(keys.token(token))
    for _ in range(2):
        assert await scripts.allow(token, {"scopes": "read", "label": "ci"}, expires_ms=FAR_MS)
        after = await redis.hgetall(keys.token(token))
        assert after == before | {b"scopes": b"read", b"label": b"ci", b"expires": str(FAR_MS).encode()}
        assert await redis.pexpiretime(keys.token(token)) == FAR_MS


async def test_end_can_be_kept_and_taken_away(token: str, redis: Redis, scripts: Scripts) -> None:
    await scripts.allow(token, {}, expires_ms=FAR_MS)
    await scripts.allow(token, {"lanes": "low"}, expires_ms=None)
    assert await redis.pexpiretime(keys.token(token)) == FAR_MS
    await scripts.allow(token, {}, expires_ms=0)
    assert await redis.hmget(keys.token(token), ["lanes", "expires"]) == [b"low", b""]
    assert await redis.pexpiretime(keys.token(token)) == -1


async def test_revoked_token_stays_away(token: str, redis: Redis, scripts: Scripts) -> None:
    [found] = await Accounts(redis).tokens.of(ACCOUNT)
    await Accounts(redis).tokens.remove(found)
    async with unchanged(redis):
        assert not await scripts.allow(token, {"scopes": "admin"}, expires_ms=0)
