"""reserve takes a token for a request or compute for a prediction. A denial takes nothing."""

from itertools import count
from typing import Any

import pytest

from director.broker import keys
from director.broker.replies import Allowance
from director.broker.scripts import Scripts
from director.core.account_limits import Bucket

NOW_MS = 20_000 * 86_400_000 + 3_600_000  # an hour after midnight
CREATE = Bucket("create", rate=2.0, burst=3)
READ = Bucket("read", rate=50.0, burst=100)


class Account:
    def __init__(self, scripts: Scripts) -> None:
        self.scripts = scripts
        self.asked = count()

    async def take(self, of: Bucket = CREATE, *, at_ms: int = 0, name: str = "", **options: Any) -> Allowance:
        name = name or f"n{next(self.asked)}"
        return await self.scripts.reserve("acme", of, id=name, now_ms=NOW_MS + at_ms, **options)

    async def compute(self, asked_s: float, *, most: int = 100, at_ms: int = 0, name: str = "") -> Allowance:
        return await self.credit(asked_s, of_day=most, in_all=None, at_ms=at_ms, name=name)

    async def credit(
        self, asked_s: float, *, of_day: int | None = None, in_all: int | None = 100, **options: Any
    ) -> Any:
        return await self.take(of_day, in_all=in_all, asked_s=asked_s, **options)


@pytest.fixture
def account(scripts: Scripts) -> Account:
    return Account(scripts)


async def test_a_denial_states_the_retry_time_and_the_reset_time(account: Account) -> None:
    for _ in range(3):
        await account.take()
    assert await account.take(at_ms=100) == Allowance(
        limit="create", allowed=False, most=3, remaining=0, reset_ms=1400, retry_after_ms=400
    )
    slow = Bucket("create", rate=0.3, burst=1)
    denied = await account.take(slow, at_ms=107)
    assert not denied.allowed
    assert (await account.take(slow, at_ms=107 + denied.retry_after_ms)).allowed


async def test_buckets_are_separate_for_each_account_and_kind(account: Account, scripts: Scripts) -> None:
    for _ in range(4):
        await account.take()
    assert (await account.take(READ)).remaining == 99
    assert (await scripts.reserve("umbrella", CREATE, id="n1", now_ms=NOW_MS)).remaining == 2


async def test_six_concurrent_denials_count_as_one_burst(account: Account, redis: Any) -> None:
    for _ in range(3):
        await account.take()

    async def bursts() -> int:
        return int(await redis.hget(keys.usage("acme"), "create:bursts") or 0)

    for at_ms in (0, 8, 16, 24, 32, 40):
        assert not (await account.take(at_ms=at_ms)).allowed
    assert await bursts() == 1
    slow = Bucket("create", rate=0.01, burst=3)
    assert not (await account.take(slow, at_ms=1040)).allowed
    assert await bursts() == 1, "a second after the last one is the same burst"
    assert not (await account.take(slow, at_ms=2041)).allowed
    assert await bursts() == 2


async def test_the_record_of_taken_tokens_is_bounded(account: Account, redis: Any) -> None:
    fast = Bucket("read", rate=100_000.0, burst=1000)
    for _ in range(600):
        await account.take(fast)
    assert await redis.zcard(keys.taken("acme")) == 512
    await account.take(fast, at_ms=30_000)
    assert await redis.zcard(keys.taken("acme")) == 1


async def test_a_clock_that_steps_back_neither_fills_nor_empties_a_bucket(account: Account) -> None:
    for _ in range(2):
        await account.take(at_ms=10_000)
    assert (await account.take()).remaining == 0
    assert not (await account.take(at_ms=10_499)).allowed
    assert (await account.take(at_ms=10_500)).allowed


async def test_a_changed_limit_applies_at_once(account: Account) -> None:
    await account.take(Bucket("create", rate=0.001, burst=1))
    assert not (await account.take(Bucket("create", rate=0.001, burst=1))).allowed
    assert (await account.take(Bucket("create", rate=10.0, burst=5), at_ms=100)).allowed
    assert (await account.take(READ)).remaining == 99
    assert (await account.take(Bucket("read", rate=1.0, burst=2))).remaining == 1


async def test_every_key_expires_but_no_bucket_before_it_is_full(account: Account, redis: Any) -> None:
    day_s = 86_400
    await account.take()
    assert day_s - 5 < await redis.ttl(keys.usage("acme")) <= day_s
    assert 25 < await redis.ttl(keys.taken("acme")) <= 30
    await account.take(Bucket("create", rate=0.00001, burst=3))  # 27 hours and 47 minutes for one
    assert await redis.ttl(keys.usage("acme")) > day_s
    await account.compute(1)
    assert 40 * day_s - 5 < await redis.ttl(keys.compute("acme")) <= 40 * day_s


async def test_reserve_uses_the_servers_clock_by_default(scripts: Scripts) -> None:
    slow = Bucket("create", rate=0.001, burst=1)
    assert (await scripts.reserve("acme", slow, id="n1")).allowed
    denied = await scripts.reserve("acme", slow, id="n2")
    assert 900_000 < denied.retry_after_ms <= 1_000_000


class TestCompute:
    async def test_is_reserved_up_to_the_limit_only(self, account: Account, redis: Any) -> None:
        assert (await account.compute(60)).remaining == 40
        before = await redis.hgetall(keys.compute("acme"))
        denied = await account.compute(41)
        assert (denied.allowed, denied.limit, denied.most, denied.remaining) == (False, "compute", 100, 40)
        assert denied.retry_after_ms == denied.reset_ms == 23 * 3_600_000
        assert await redis.hgetall(keys.compute("acme")) == before
        assert (await account.compute(40)).remaining == 0

    async def test_does_not_return_to_yesterday_when_the_clock_steps_back(self, account: Account) -> None:
        await account.compute(100, at_ms=24 * 3_600_000)
        assert not (await account.compute(1)).allowed

    @pytest.mark.parametrize(("limit", "other"), [("compute", "create"), ("credit", "compute")])
    async def test_denials_of_each_limit_are_counted_apart(
        self, account: Account, redis: Any, limit: str, other: str
    ) -> None:
        for at_ms in (0, 20, 40):
            allowance = account.compute(101, at_ms=at_ms) if limit == "compute" else account.credit(101, at_ms=at_ms)
            assert not (await allowance).allowed
        usage = await redis.hgetall(keys.usage("acme"))
        assert (usage[f"{limit}:bursts".encode()], f"{other}:bursts".encode() in usage) == (b"1", False)


class TestCredit:
    async def test_is_reserved_up_to_the_limit_only(self, account: Account) -> None:
        assert (await account.credit(60)).remaining == 40
        assert await account.credit(41) == Allowance(
            limit="credit", allowed=False, most=100, remaining=40, reset_ms=0, retry_after_ms=0
        )
        assert (await account.credit(40)).remaining == 0

    async def test_does_not_return_after_a_year_but_can_be_raised(self, account: Account, redis: Any) -> None:
        await account.credit(100)
        assert not (await account.credit(1, at_ms=366 * 86_400_000)).allowed
        assert await redis.ttl(keys.credit("acme")) == -1
        assert (await account.credit(1, in_all=101)).allowed

    async def test_is_the_reported_limit_when_waiting_cannot_help(self, account: Account) -> None:
        assert (await account.credit(1, of_day=50)).limit == "compute", "there is less left of it"
        assert (await account.credit(60, of_day=50)).limit == "compute"
        assert (await account.credit(200, of_day=50)).limit == "credit"
