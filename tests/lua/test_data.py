"""An account's bytes in Redis are counted once, by the time at which they expire, and refused above a limit."""

import asyncio

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.data_bytes import FOR_EVER_MS, NOTHING, Counted
from director.core.ids import PredictionId, lowest_id_at, new_prediction_id
from director.store.accounts import Accounts
from tests.support.clock import FakeClock
from tests.support.keyspace import unchanged
from tests.support.queue_driver import ACCOUNT, MODEL

NOW = 2**41
OLDEST = lowest_id_at(0)


class Book:
    """Count predictions of one account at one time, and read what counts at a later one."""

    def __init__(self, redis: Redis, scripts: Scripts) -> None:
        self._redis = redis
        self._scripts = scripts

    async def enlist(
        self, counts: Counted, *, most: int | None = None, name: PredictionId | None = None, now_ms: int = NOW
    ) -> object:
        name = name or new_prediction_id(model=MODEL, now_ms=NOW)
        return await self._scripts.enlist(name, account=ACCOUNT, oldest=OLDEST, counts=counts, most=most, now_ms=now_ms)

    async def total(self, now_ms: int = NOW) -> int:
        usage = await Accounts(self._redis, clock=FakeClock(now_ms=now_ms)).usage(ACCOUNT, day=0)
        return usage.data_bytes


@pytest.fixture
def book(redis: Redis, scripts: Scripts) -> Book:
    return Book(redis, scripts)


async def test_bytes_count_until_they_expire(book: Book) -> None:
    for counts in (Counted(10, NOW + 5), Counted(20, NOW + 5), Counted(40, NOW + 9)):
        assert await book.enlist(counts) == 1
    assert [await book.total(NOW + after) for after in (0, 4, 5, 8, 9)] == [70, 70, 40, 40, 0]


async def test_a_repeated_call_counts_once(book: Book, redis: Redis) -> None:
    name = new_prediction_id(model=MODEL, now_ms=NOW)
    await book.enlist(Counted(10, NOW + 5), name=name)
    async with unchanged(redis):
        assert await book.enlist(Counted(10, NOW + 5), name=name) == 1
        assert await book.enlist(Counted(10, NOW + 5), name=name, most=1) == 1


async def test_bytes_count_beside_a_repeated_call_that_counts_nothing(book: Book) -> None:
    name = new_prediction_id(model=MODEL, now_ms=NOW)
    await book.enlist(NOTHING, name=name)
    await asyncio.gather(book.enlist(Counted(10, NOW + 5)), book.enlist(NOTHING, name=name))
    assert await book.total() == 10


async def test_bytes_above_the_limit_are_refused_and_nothing_is_written(book: Book, redis: Redis) -> None:
    assert await book.enlist(Counted(60, NOW + 5_000), most=100) == 1
    assert await book.enlist(Counted(30, NOW + 9_000), most=100) == 1
    async with unchanged(redis):
        assert await book.enlist(Counted(11, NOW + 9_000), most=100) == [90, 5_000]
        assert await book.enlist(Counted(71, NOW + 9_000), most=100) == [90, 9_000]
        assert await book.enlist(Counted(101, NOW + 9_500), most=100) == [90, 9_500]
    assert await book.enlist(Counted(10, NOW + 9_000), most=100) == 1
    assert await book.enlist(Counted(60, NOW + 9_000), most=100, now_ms=NOW + 5_000) == 1


async def test_a_batch_is_refused_from_where_it_is_full(book: Book) -> None:
    calls = [book.enlist(Counted(40, NOW + 5), most=100) for _ in range(4)]
    assert await asyncio.gather(*calls) == [1, 1, [80, 5], [80, 5]]
    assert await book.total() == 80


async def test_a_refused_prediction_no_longer_counts(book: Book, scripts: Scripts, redis: Redis) -> None:
    name, counts = new_prediction_id(model=MODEL, now_ms=NOW), Counted(10, NOW + 5)
    await book.enlist(counts, name=name)
    await book.enlist(Counted(7, NOW + 5))
    assert await scripts.delist(name, account=ACCOUNT, counted=counts)
    assert not await scripts.delist(name, account=ACCOUNT, counted=counts)
    assert (await book.total(), await redis.zcard(keys.listing(ACCOUNT))) == (7, 1)


async def test_an_end_counts_what_it_left_and_moves_what_lives_longer(book: Book, scripts: Scripts) -> None:
    await book.enlist(Counted(10, NOW + 5))
    await scripts.weigh(ACCOUNT, Counted(100, NOW + 5), NOTHING, now_ms=NOW)
    await scripts.weigh(ACCOUNT, Counted(30, NOW + 9), Counted(10, NOW + 5), now_ms=NOW)
    assert [await book.total(NOW + after) for after in (0, 5, 9)] == [130, 30, 0]


async def test_bytes_are_never_below_zero(book: Book, scripts: Scripts) -> None:
    """An API may die before it counted what is taken off here, and a bucket may be over."""
    await book.enlist(Counted(3, NOW + 5))
    await scripts.weigh(ACCOUNT, Counted(30, NOW + 9), Counted(10, NOW + 5), now_ms=NOW)
    await scripts.weigh(ACCOUNT, Counted(30, NOW + 9), Counted(10, NOW + 7), now_ms=NOW)
    assert [await book.total(NOW + after) for after in (0, 5)] == [63, 60]


async def test_the_hash_forgets_what_is_over_and_expires_with_its_last_bucket(book: Book, redis: Redis) -> None:
    for after in range(100):
        await book.enlist(Counted(1, NOW + after + 30), now_ms=NOW + after)
    fields = await redis.hkeys(keys.data(ACCOUNT))
    assert len(fields) == 30
    assert await redis.pexpiretime(keys.data(ACCOUNT)) == NOW + 129
    await book.enlist(Counted(1, NOW + 120), now_ms=NOW + 110)
    assert await redis.pexpiretime(keys.data(ACCOUNT)) == NOW + 129


async def test_what_lasts_counts_for_longer(book: Book, scripts: Scripts) -> None:
    name = new_prediction_id(model=MODEL, now_ms=NOW)
    counts, lasting = Counted(10, NOW + 5), Counted(30, NOW + 90)
    options = {"account": ACCOUNT, "oldest": OLDEST, "counts": counts, "lasting": lasting}
    assert await scripts.enlist(name, most=39, now_ms=NOW, **options) == [0, 5]  # type: ignore[arg-type]
    assert await scripts.enlist(name, most=40, now_ms=NOW, **options) == 1  # type: ignore[arg-type]
    assert [await book.total(NOW + after) for after in (0, 5, 90)] == [40, 30, 0]
    for _ in range(2):
        await scripts.delist(name, account=ACCOUNT, counted=counts, lasting=lasting)
        assert await book.total() == 0


async def test_list_of_files_lives_as_long_as_its_last_file(redis: Redis, scripts: Scripts) -> None:
    for life_ms in (50_000, 90_000, 20_000):
        name = new_prediction_id(model=MODEL, now_ms=NOW)
        await scripts.enlist(name, account=ACCOUNT, oldest=OLDEST, life_ms=life_ms)
    assert 80_000 < await redis.pttl(keys.files(ACCOUNT)) <= 90_000
    assert await redis.zcard(keys.files(ACCOUNT)) == 3


async def test_what_is_retained_counts_until_it_is_given_back(book: Book, redis: Redis, scripts: Scripts) -> None:
    assert await scripts.retain(ACCOUNT, 60, most=100, now_ms=NOW) is None
    await book.enlist(Counted(30, NOW + 5))
    async with unchanged(redis):
        assert await scripts.retain(ACCOUNT, 11, most=100, now_ms=NOW) == [90, 5]
        assert await book.enlist(Counted(11, NOW + 5), most=100) == [90, 5]
    assert await book.total(NOW + 10**9) == 60
    for _ in range(3):  # one that is given back too often takes nothing of others
        await scripts.weigh(ACCOUNT, NOTHING, Counted(60, FOR_EVER_MS), now_ms=NOW)
        assert await book.total() == 30
