import asyncio

import pytest

from api.services import lookups
from api.services.lookups import Cache
from tests.support.clock import FakeClock
from tests.support.eventually import turns
from tests.support.garbage import alive, uncollected


class Source:
    """Counts how often it is asked; `value` is what it answers."""

    def __init__(self, value: str | None = "v") -> None:
        self.value = value
        self.asked = 0

    async def load(self) -> str | None:
        self.asked += 1
        return self.value


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cache(clock: FakeClock) -> Cache[str, str]:
    return Cache(clock=clock, ttl_s=5, most=2)


async def test_a_value_is_asked_for_once_until_it_is_old(cache: Cache[str, str], clock: FakeClock) -> None:
    source = Source()
    for moment, asked in [(0.0, 1), (4.9, 1), (0.1, 2)]:
        clock.pass_time(moment)
        assert await cache.get("k", source.load) == "v"
        assert source.asked == asked


async def test_what_is_missing_is_kept_for_a_second(cache: Cache[str, str], clock: FakeClock) -> None:
    source = Source(None)
    assert await cache.get("k", source.load) is None
    clock.pass_time(0.9)
    assert await cache.get("k", source.load) is None
    assert source.asked == 1
    source.value = "made"
    clock.pass_time(0.1)
    assert await cache.get("k", source.load) == "made"


async def test_the_oldest_makes_room(cache: Cache[str, str]) -> None:
    first, other = Source(), Source()
    await cache.get("a", first.load)
    await cache.get("b", other.load)
    await cache.get("c", other.load)
    await cache.get("a", first.load)
    assert first.asked == 2


async def test_what_is_missing_pushes_out_no_value(clock: FakeClock) -> None:
    is_away = False
    cache: Cache[str, str] = Cache(clock=clock, ttl_s=5, most=2, is_away=lambda: is_away)
    known, source = Source(), Source(None)
    await cache.get("good", known.load)
    for number in range(10):
        assert await cache.get(f"wrong {number}", source.load) is None
    clock.pass_time(60)
    is_away = True
    assert await cache.get("good", known.load) == "v"
    assert known.asked == 1


async def test_values_of_one_account_push_out_none_of_others(clock: FakeClock) -> None:
    cache: Cache[str, str] = Cache(clock=clock, ttl_s=5, most=4, whose=lambda key, _: key.partition("/")[0])
    known, source = Source(), Source()
    await cache.get("acme/painter", known.load)
    for number in range(10):
        await cache.get(f"mallory/{number}", source.load)
    await cache.get("acme/painter", known.load)
    assert known.asked == 1


async def test_value_that_is_gone_is_missing(cache: Cache[str, str], clock: FakeClock) -> None:
    source = Source()
    await cache.get("k", source.load)
    clock.pass_time(5)
    source.value = None
    assert await cache.get("k", source.load) is None
    source.value = "made"
    clock.pass_time(1)
    assert await cache.get("k", source.load) == "made"


async def test_a_failure_is_not_kept(cache: Cache[str, str]) -> None:
    async def fail() -> str | None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await cache.get("k", fail)
    assert await cache.get("k", Source().load) == "v"


async def test_a_failure_leaves_nothing_to_the_garbage_collector(cache: Cache[str, str]) -> None:
    async def fail() -> str | None:
        raise ChildProcessError

    with uncollected():
        await asyncio.gather(cache.get("k", fail), cache.get("k", fail), return_exceptions=True)
        await turns()  # the tasks are gone
        assert alive(ChildProcessError) == 0


async def test_no_lifetime_is_no_cache(clock: FakeClock) -> None:
    cache: Cache[str, str] = Cache(clock=clock, ttl_s=0, most=2)
    source = Source()
    await cache.get("k", source.load)
    await cache.get("k", source.load)
    assert source.asked == 2


async def test_concurrent_readers_share_one_load_and_its_failure(cache: Cache[str, str]) -> None:
    source, goes_on = Source(), asyncio.Event()

    async def load() -> str | None:
        await goes_on.wait()
        return await source.load()

    async def fail() -> str | None:
        source.asked += 1
        raise ConnectionError

    first, *others = [asyncio.ensure_future(cache.get("k", load)) for _ in range(5)]
    await turns()
    first.cancel()
    goes_on.set()
    assert await asyncio.gather(*others) == ["v"] * 4
    assert source.asked == 1
    failed = await asyncio.gather(*(cache.get("f", fail) for _ in range(5)), return_exceptions=True)
    assert [type(exc) for exc in failed] == [ConnectionError] * 5
    assert source.asked == 2


def test_search_has_models_of_each_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "MOST_CARDS", 4)
    names = ["acme/old", "acme/older", *(f"mallory/{number}" for number in range(9))]
    assert lookups.fair_newest(names) == ["mallory/8", "mallory/7", "acme/older", "acme/old"]
    assert lookups.fair_newest(names[:3]) == ["mallory/0", "acme/older", "acme/old"]
