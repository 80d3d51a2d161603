"""grant stores sessions of people, and links that make one session each."""

from typing import Any

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from tests.support.clock import FakeClock
from tests.support.keyspace import unchanged
from tests.support.queue_driver import ACCOUNT

LIFE_S = 60.0
TOKEN = "0" * 64


class Grants:
    def __init__(self, scripts: Scripts) -> None:
        self.scripts, self.clock = scripts, FakeClock()

    async def grant(self, entry: str, *, most: int = 3, life_s: float = LIFE_S, **of: Any) -> str | None:
        of = of if "link" in of else {"token_digest": TOKEN, "scopes": "read,view", **of}
        now_ms = self.clock.now_ms()
        value = await self.scripts.grant(ACCOUNT, entry, life_s=life_s, most=most, now_ms=now_ms, **of)
        return None if value is None else value.decode()


@pytest.fixture
def grants(scripts: Scripts) -> Grants:
    return Grants(scripts)


async def names(redis: Redis) -> list[str]:
    return sorted(name.decode() for name in await redis.hkeys(keys.sessions(ACCOUNT)))


async def test_session_is_stored_with_its_token_and_ends_with_its_life(grants: Grants, redis: Redis) -> None:
    value = await grants.grant("s:a")
    now_ms = grants.clock.now_ms()
    assert value == f"{now_ms + 60_000} {now_ms} {TOKEN} read,view"
    assert (await redis.hget(keys.sessions(ACCOUNT), "s:a")).decode() == value
    assert await redis.pexpiretime(keys.sessions(ACCOUNT)) == now_ms + 60_000


async def test_link_makes_one_session_of_its_token_and_scopes(grants: Grants, redis: Redis) -> None:
    await grants.grant("l:x", scopes="read")
    value = await grants.grant("s:a", link="l:x")
    assert value is not None
    assert value.split(" ")[2:] == [TOKEN, "read"]
    assert await names(redis) == ["s:a"]
    async with unchanged(redis):
        assert await grants.grant("s:b", link="l:x") is None


async def test_a_repeated_call_makes_the_same_session_once(grants: Grants, redis: Redis) -> None:
    await grants.grant("l:x")
    first = await grants.grant("s:a", link="l:x")
    grants.clock.pass_time(1)
    async with unchanged(redis):
        assert await grants.grant("s:a", link="l:x") == first


async def test_link_that_is_over_makes_no_session(grants: Grants, redis: Redis) -> None:
    await grants.grant("l:x")
    await grants.grant("s:other", life_s=9 * LIFE_S)
    grants.clock.pass_time(LIFE_S)
    async with unchanged(redis):
        assert await grants.grant("s:a", link="l:x") is None


async def test_unknown_link_writes_nothing(grants: Grants, redis: Redis) -> None:
    await grants.grant("l:x")
    async with unchanged(redis):
        assert await grants.grant("s:a", link="l:y") is None


async def test_oldest_session_goes_when_there_are_too_many(grants: Grants, redis: Redis) -> None:
    await grants.grant("l:x")
    for name in "abcd":
        await grants.grant(f"s:{name}")
        grants.clock.pass_time(1)
    assert await names(redis) == ["l:x", "s:b", "s:c", "s:d"]


async def test_what_is_over_is_removed_and_counts_no_more(grants: Grants, redis: Redis) -> None:
    for name in "abc":
        await grants.grant(f"s:{name}")
    grants.clock.pass_time(LIFE_S)
    await grants.grant("s:d")
    assert await names(redis) == ["s:d"]


async def test_key_lives_as_long_as_its_longest_entry(grants: Grants, redis: Redis) -> None:
    await grants.grant("s:a", life_s=9 * LIFE_S)
    longest = await redis.pexpiretime(keys.sessions(ACCOUNT))
    await grants.grant("l:x")
    assert await redis.pexpiretime(keys.sessions(ACCOUNT)) == longest


async def test_token_that_opens_many_sessions_ends_its_own(grants: Grants, redis: Redis) -> None:
    other, third = "1" * 64, "2" * 64
    await grants.grant("s:first")
    for name in "abcd":
        grants.clock.pass_time(1)
        await grants.grant(f"s:{name}", token_digest=other)
    assert await names(redis) == ["s:c", "s:d", "s:first"]
    grants.clock.pass_time(1)
    await grants.grant("s:new", token_digest=third)
    assert await names(redis) == ["s:d", "s:first", "s:new"]
