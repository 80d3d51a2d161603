"""rotate changes an account's signing secret. The former one signs until it expires."""

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.webhooks import new_secret
from director.store.accounts import Accounts
from tests.support.clock import FakeClock
from tests.support.keyspace import unchanged
from tests.support.queue_driver import ACCOUNT

DAY_S = 86_400.0
MOST_FORMER = 4


class Rotation:
    def __init__(self, redis: Redis, scripts: Scripts) -> None:
        self.scripts, self.clock = scripts, FakeClock()
        self.accounts = Accounts(redis, clock=self.clock)

    async def rotate(self, secret: str | None = None, *, keep_s: float = DAY_S, account: str = ACCOUNT) -> str:
        secret = secret or new_secret()
        return await self.scripts.rotate(account, secret=secret, keep_s=keep_s, now_ms=self.clock.now_ms())

    async def secrets(self) -> list[str]:
        return await self.accounts.webhook_secrets(ACCOUNT)


@pytest.fixture
async def rotation(redis: Redis, scripts: Scripts) -> Rotation:
    await Accounts(redis).create_token(ACCOUNT)
    return Rotation(redis, scripts)


async def test_old_and_new_secrets_both_sign_until_the_old_one_expires(rotation: Rotation, redis: Redis) -> None:
    [old] = await rotation.secrets()
    new = new_secret()
    assert await rotation.rotate(new) == "rotated"
    assert await rotation.secrets() == [new, old]
    rotation.clock.pass_time(DAY_S - 1)
    assert await rotation.secrets() == [new, old]
    rotation.clock.pass_time(1)
    assert await rotation.secrets() == [new]
    assert old.encode() in await redis.hvals(keys.account(ACCOUNT)), "a director reads, and may not write"
    await rotation.rotate(new_secret())
    assert old.encode() not in await redis.hvals(keys.account(ACCOUNT)), "the next rotation drops it"


@pytest.mark.parametrize("apart_s", [0, 3600])
async def test_each_secret_of_one_day_lives_its_full_day(rotation: Rotation, apart_s: int) -> None:
    first, *_ = await rotation.secrets()
    second, third = new_secret(), new_secret()
    await rotation.rotate(second)
    rotation.clock.pass_time(apart_s)
    await rotation.rotate(third)
    assert set(await rotation.secrets()) == {first, second, third}
    if apart_s:
        rotation.clock.pass_time(DAY_S - apart_s)
        assert await rotation.secrets() == [third, second]


async def test_the_number_of_signing_secrets_is_bounded(rotation: Rotation, redis: Redis) -> None:
    for _ in range(MOST_FORMER):
        assert await rotation.rotate() == "rotated"
    async with unchanged(redis):
        assert await rotation.rotate() == "full"
    rotation.clock.pass_time(DAY_S + 1)
    assert await rotation.rotate() == "rotated"
    assert len(await rotation.secrets()) == 2


async def test_a_rotation_that_keeps_none_ends_all_former_secrets(rotation: Rotation) -> None:
    for _ in range(MOST_FORMER):
        await rotation.rotate()
    new = new_secret()
    assert await rotation.rotate(new, keep_s=0) == "rotated"
    assert await rotation.secrets() == [new]


async def test_a_repeated_call_rotates_once(rotation: Rotation, redis: Redis) -> None:
    new = new_secret()
    await rotation.rotate(new)
    async with unchanged(redis):
        assert await rotation.rotate(new) == "rotated"


async def test_limits_stay_and_no_missing_account_is_created(rotation: Rotation, redis: Redis) -> None:
    await rotation.accounts.set_limits(ACCOUNT, {"rate": "2"})
    await rotation.rotate()
    assert (await rotation.accounts.read_written(ACCOUNT)).limits == {"rate": "2"}
    assert len(await rotation.secrets()) == 2
    assert await rotation.rotate(account="stranger") == "unknown"
    assert await redis.exists(keys.account("stranger")) == 0
