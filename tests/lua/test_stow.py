"""stow counts the bytes that an account keeps, and never more than its quota."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from director.broker import keys
from director.broker.replies import Stowed
from director.broker.scripts import Scripts
from tests.support.keyspace import unchanged

ACCOUNT = "acme"
NOW = 1_800_000_000_000
LATER = NOW + 1000


async def test_new_bytes_count_and_changes_replace_and_removals_subtract(scripts: Scripts, redis: Redis) -> None:
    async def stow(name: str, size: int) -> int:
        return (await scripts.stow(ACCOUNT, name, size, until_ms=LATER, now_ms=NOW)).total

    assert [await stow("a", 5), await stow("b", 7), await stow("a", 9), await stow("a", 9)] == [5, 12, 16, 16]
    assert [await stow("a", 2), await stow("a", 0), await stow("a", 0), await stow("b", 0)] == [9, 7, 7, 0]
    assert await redis.exists(keys.stored(ACCOUNT), keys.stored_until(ACCOUNT)) == 0


async def test_a_refused_size_changes_nothing_and_a_smaller_one_always_fits(scripts: Scripts, redis: Redis) -> None:
    await scripts.stow(ACCOUNT, "a", 6, most=10, until_ms=LATER, now_ms=NOW)
    async with unchanged(redis):
        assert await scripts.stow(ACCOUNT, "b", 5, most=10, until_ms=LATER, now_ms=NOW) == Stowed(fits=False, total=6)
        assert await scripts.stow(ACCOUNT, "a", 11, most=10, until_ms=LATER, now_ms=NOW) == Stowed(fits=False, total=6)
    assert await scripts.stow(ACCOUNT, "b", 4, most=10, until_ms=LATER, now_ms=NOW) == Stowed(fits=True, total=10)
    lowered = await scripts.stow(ACCOUNT, "a", 5, most=1, until_ms=LATER, now_ms=NOW)
    assert lowered == Stowed(fits=True, total=9)


async def test_expired_files_make_room_whatever_their_number(scripts: Scripts) -> None:
    for number in range(250):
        await scripts.stow(ACCOUNT, f"f{number}", 1, most=250, until_ms=LATER, now_ms=NOW)
    assert not (await scripts.stow(ACCOUNT, "big", 250, most=250, until_ms=LATER, now_ms=NOW)).fits
    after = LATER + 1
    assert await scripts.stow(ACCOUNT, "big", 250, most=250, until_ms=after + 9, now_ms=after) == Stowed(True, 250)


async def test_an_expired_file_that_returns_counts_once(scripts: Scripts) -> None:
    await scripts.stow(ACCOUNT, "a", 5, until_ms=LATER, now_ms=NOW)
    assert (await scripts.stow(ACCOUNT, "a", 5, until_ms=LATER + 9, now_ms=LATER + 1)).total == 5


async def test_all_counts_expire_with_the_last_file(scripts: Scripts, redis: Redis) -> None:
    await scripts.stow(ACCOUNT, "a", 5, until_ms=LATER + 7, now_ms=NOW)
    await scripts.stow(ACCOUNT, "b", 5, until_ms=LATER, now_ms=NOW)
    for key in (keys.stored(ACCOUNT), keys.stored_until(ACCOUNT)):
        assert await redis.pexpiretime(key) == LATER + 7


async def test_terabytes_are_counted_to_the_byte(scripts: Scripts) -> None:
    most = 10**14
    assert (await scripts.stow(ACCOUNT, "a", most - 1, most=most, until_ms=LATER, now_ms=NOW)).fits
    assert not (await scripts.stow(ACCOUNT, "b", 2, most=most, until_ms=LATER, now_ms=NOW)).fits
    assert await scripts.stow(ACCOUNT, "b", 1, most=most, until_ms=LATER, now_ms=NOW) == Stowed(True, most)
    assert (await scripts.stow(ACCOUNT, now_ms=NOW)).total == most


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 20), st.integers(0, 9)), max_size=20
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_the_total_is_the_sum_of_the_live_files(
    scripts: Scripts, redis: Redis, steps: list[tuple[str, int, int, int]]
) -> None:
    await redis.flushall()
    kept: dict[str, tuple[int, int]] = {}
    at = NOW
    for name, size, life, passed in steps:
        at += passed
        kept = {each: (much, until) for each, (much, until) in kept.items() if until > at}
        before = sum(much for much, _ in kept.values())
        had = kept.get(name, (0, 0))[0]
        fits = size <= had or before - had + size <= 15
        if fits and size:
            kept[name] = (size, at + 1 + life)
        elif fits:
            kept.pop(name, None)
        stowed = await scripts.stow(ACCOUNT, name, size, most=15, until_ms=at + 1 + life, now_ms=at)
        assert stowed == Stowed(fits, sum(much for much, _ in kept.values()))
