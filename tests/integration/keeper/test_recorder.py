"""Check the history that keepers record from logs and records."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.gatherer import Gatherer
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import QueueName
from director.core.policy import Policy
from director.core.states import Status
from director.core.trends import STEPS, Level, Point, bucket
from director.keeper import recorder as module
from director.keeper.recorder import STEP_S, Recorder
from director.keeper.registry import Registry
from director.store import trends as store
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.queues import Queues
from director.store.trends import ALL, MOST_BYTES, ROOM_OF_ALL, Trends, most_queues
from tests.support.queue_driver import MODEL, VERSION, QueueDriver

DAY = 86_400


@pytest.fixture
def recorder(redis: Redis, catalog: Catalog) -> Recorder:
    return make(redis, catalog)


def make(redis: Redis, catalog: Catalog) -> Recorder:
    queues = Queues(redis, catalog, Scripts(Gatherer(redis)))
    return Recorder(redis, Registry(redis, catalog, SystemClock()), Trends(redis), queues)


@pytest.fixture
def trends(redis: Redis) -> Trends:
    return Trends(redis)


@pytest.fixture
def until_s(driver: QueueDriver) -> int:
    """The end of a step that begins before all that the test does, and is not over."""
    driver.now_ms = time.time_ns() // 1_000_000
    return STEPS[0].start(driver.now_ms / 1000) + 2 * STEP_S


async def record(recorder: Recorder, until_s: int) -> int:
    """Record both steps that the test may be in."""
    return await recorder.record(until_s - STEP_S) + await recorder.record(until_s)


async def whole(trends: Trends, queue: QueueName, until_s: int) -> Point:
    return (await trends.of(queue, "15m", now_s=until_s)).whole


async def test_ends_waits_and_runs_are_recorded(driver: QueueDriver, recorder: Recorder, until_s: int) -> None:
    for _ in range(4):
        await driver.submit()
    driver.pass_time(3)
    *run, failed = await driver.claim(4)
    driver.pass_time(20)
    for claim in run:
        assert await driver.finish(claim, ran_ms=20_000)
    assert await driver.finish(failed, Status.FAILED, ran_ms=20_000, error="No.", code="model_failed")
    assert await record(recorder, until_s) > 0
    for queue in (driver.queue, ALL):
        found = await whole(Trends(driver.redis), queue, until_s)
        assert (found.succeeded, found.failed, found.canceled) == (3, 1, 0)
        assert found.waits == {bucket(3_000): 4}
        assert found.runs == {bucket(20_000): 4}


async def test_what_waits_and_slots_in_use_are_recorded(driver: QueueDriver, recorder: Recorder, until_s: int) -> None:
    trends = Trends(driver.redis)
    for _ in range(5):
        await driver.submit()
    await driver.claim(2)
    await record(recorder, until_s)
    for queue in (driver.queue, ALL):
        *_, level = await trends.levels(queue, "15m", now_s=until_s)
        assert (level.waiting, level.busy_s, level.slots) == (3, 2 * STEP_S, 2)
    *_, whole_of_both = await trends.levels(driver.queue, "7d", now_s=until_s)
    assert whole_of_both.busy_s == 4 * STEP_S, "the seconds of both steps"


async def test_longest_idle_queues_lose_their_levels(trends: Trends, redis: Redis, queue: QueueName) -> None:
    others = [QueueName(f"acme/m{n}:0123456789ab") for n in range(4)]
    for number, name in enumerate((queue, *others)):
        at_s = 1_790_000_000 + number * STEP_S
        await trends.add({}, {name: Level(at_s=at_s, waiting=1)}, most=3)
    assert not await redis.exists(keys.level(queue, "10s"), keys.level(others[0], "10s"))
    assert await redis.exists(keys.level(others[-1], "10s"))


@pytest.mark.parametrize(("waiting", "stays"), [(9, True), (2, False)])
async def test_queue_with_the_most_work_keeps_its_history(
    trends: Trends, redis: Redis, queue: QueueName, waiting: int, stays: bool
) -> None:
    stuck = QueueName("acme/a:0123456789ab")  # names decide between queues of one time: this one is before the other
    for number in range(2):
        at_s = STEPS[0].start(time.time()) + number * STEP_S
        point, level = Point(at_s=at_s, succeeded=5), Level(at_s=at_s, waiting=waiting)
        await trends.add({queue: point}, {stuck: level, queue: Level(at_s=at_s)}, most=1)
        assert await trends.queues(since_s=0, most=10) == [stuck if stays else queue]
        assert await redis.exists(keys.level(stuck, "10s")) == stays
        both = keys.trend(queue, "10s"), keys.level(queue, "10s")
        assert await redis.exists(*both) == (0 if stays else 2), "both series are of the same queues"


async def test_idle_queues_take_no_place_of_a_queue_with_work(
    driver: QueueDriver, catalog: Catalog, recorder: Recorder, until_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_LEVELS", 1)
    for name in ("acme/a", "acme/z"):  # queues are looked at in the order of their names
        await catalog.register(name, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    await driver.submit()
    for number in (1, 2):  # the first look of a keeper has all queues for other roles
        await recorder.record(until_s + number * STEP_S)
        assert len(await Trends(driver.redis).levels(driver.queue, "15m", now_s=until_s + 2 * STEP_S)) == number


async def test_bounded_number_of_queues_is_looked_at(
    driver: QueueDriver, catalog: Catalog, recorder: Recorder, until_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_LEVELS", 1)
    monkeypatch.setattr(module, "AT_ONCE", 1)
    after = await catalog.register(MODEL, "c3" * 32, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    await driver.submit()
    other = QueueDriver(driver.redis, driver.scripts, after)
    other.now_ms = driver.now_ms
    await other.submit()
    await recorder.record(until_s)
    trends = Trends(driver.redis)
    assert [len(await trends.levels(each, "15m", now_s=until_s)) for each in (driver.queue, after)] == [1, 0]


async def test_canceled_predictions_count_apart(driver: QueueDriver, recorder: Recorder, until_s: int) -> None:
    await driver.cancel(await driver.submit())
    await record(recorder, until_s)
    found = await whole(Trends(driver.redis), driver.queue, until_s)
    assert (found.succeeded, found.failed, found.canceled, found.runs) == (0, 0, 1, {})


async def test_an_idle_queue_has_no_history(driver: QueueDriver, recorder: Recorder, until_s: int) -> None:
    await driver.submit()
    assert await record(recorder, until_s) == 0
    assert [key async for key in driver.redis.scan_iter("*trend:*")] == []


async def test_two_keepers_record_a_step_once(
    driver: QueueDriver, recorder: Recorder, redis: Redis, catalog: Catalog, until_s: int
) -> None:
    await driver.cancel(await driver.submit())
    other = make(redis, catalog)
    await record(other, until_s)
    await record(recorder, until_s)
    assert (await whole(Trends(redis), driver.queue, until_s)).canceled == 1


async def test_a_busy_log_is_read_in_part_and_counted_whole(
    driver: QueueDriver, recorder: Recorder, until_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_READ", 8)
    monkeypatch.setattr(module, "LEAST_READ", 8)
    from_ms = (until_s - STEP_S) * 1000
    await log_ends(driver, [from_ms + 250 * number for number in range(40)])
    await recorder.record(until_s)
    assert 30 <= (await whole(Trends(driver.redis), driver.queue, until_s)).canceled <= 50


async def log_ends(driver: QueueDriver, at_ms: Sequence[int]) -> None:
    pipe = driver.redis.pipeline(transaction=False)
    for number, at in enumerate(at_ms):
        fields: Any = {"id": driver.new_id(), "kind": "ended", "queue": driver.queue, "account": "a", "at": at}
        log = keys.log(keys.queue_partition(driver.queue))
        pipe.xadd(log, {**fields, "detail": "canceled"}, id=f"{at}-{number}")
    await pipe.execute()


async def test_a_log_that_was_cut_within_a_step_is_counted_whole(
    driver: QueueDriver, recorder: Recorder, until_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAST_READ", 8)
    monkeypatch.setattr(module, "LOGGED", 20)
    from_ms = (until_s - STEP_S) * 1000
    await log_ends(driver, [from_ms + 7_500 + 100 * number for number in range(25)])
    await recorder.record(until_s)
    assert 90 <= (await whole(Trends(driver.redis), driver.queue, until_s)).canceled <= 110


async def test_a_burst_is_not_taken_to_go_on(
    driver: QueueDriver, recorder: Recorder, until_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log_ends(driver, [until_s * 1000 - 1] * 400)
    monkeypatch.setattr(module, "MOST_OF_LOG", 200)
    await recorder.record(until_s)
    assert 400 <= (await whole(Trends(driver.redis), driver.queue, until_s)).canceled <= 2_000


async def test_a_step_is_not_recorded_again_after_the_clock_was_set_back(
    driver: QueueDriver, recorder: Recorder, redis: Redis, until_s: int
) -> None:
    await driver.cancel(await driver.submit())
    await record(recorder, until_s)
    assert await redis.pttl(keys.trends_turn(str(until_s))) > 1000 * (STEPS[0].covers_s - STEP_S)


async def test_lines_are_merged_into_coarser_steps(trends: Trends, redis: Redis, queue: QueueName) -> None:
    until_s = STEPS[-1].start(time.time())
    for at_s in range(until_s - 900, until_s, STEP_S):
        await trends.add({queue: Point(at_s=at_s, succeeded=1, failed=1, waits={9: 1}, runs={12: 2})}, most=10)
        await trends.roll_up(now_s=at_s + STEP_S)
    for over, steps in (("15m", 90), ("1h", 15), ("24h", 1), ("7d", 1)):
        found = await trends.of(queue, over, now_s=until_s)  # type: ignore[arg-type]
        assert (len(found.points), found.whole.succeeded, found.whole.waits) == (steps, 90, {9: 90}), over
    assert await redis.llen(keys.trend(queue, "2h")) == 1


async def test_the_newest_step_is_made_of_finer_ones(trends: Trends, queue: QueueName) -> None:
    begin_s = STEPS[-1].start(time.time())
    for number in range(9):
        at_s = begin_s + number * STEP_S
        await trends.add({queue: Point(at_s=at_s, succeeded=1)}, most=10)
        await trends.roll_up(now_s=at_s + STEP_S)
    for over in ("15m", "1h", "24h", "7d"):
        found = await trends.of(queue, over, now_s=begin_s + 90)  # type: ignore[arg-type]
        assert found.whole.succeeded == 9, over


async def test_steps_missed_by_keepers_are_merged_later(trends: Trends, queue: QueueName) -> None:
    begin_s = STEPS[-1].start(time.time())
    for number in range(12):
        await trends.add({queue: Point(at_s=begin_s + number * STEP_S, succeeded=1)}, most=10)
    await trends.roll_up(now_s=begin_s + 180)
    found = await trends.of(queue, "1h", now_s=begin_s + 180)
    assert [(one.at_s - begin_s, one.succeeded) for one in found.points] == [(0, 6), (60, 6)]


async def test_history_is_kept_for_at_most_the_allowed_queues(trends: Trends, redis: Redis, queue: QueueName) -> None:
    others = [QueueName(f"acme/other-{number}:0123456789ab") for number in range(5)]
    at_s = STEPS[0].start(time.time())
    for number, name in enumerate([queue, *others]):
        await trends.add({name: Point(at_s=at_s + number * STEP_S, succeeded=1)}, most=3)
    assert await trends.queues(since_s=0, most=10) == others[:-4:-1]
    assert not await redis.exists(keys.trend(queue, "10s"), keys.trend(others[0], "10s"))
    assert (await trends.of(ALL, "15m", now_s=at_s + 60)).whole.succeeded == 6


def test_history_takes_at_most_two_percent_of_the_memory() -> None:
    for maxmemory in (1 << 20, 100 << 20, 1 << 30, 64 << 30):
        assert (most_queues(maxmemory) + ROOM_OF_ALL) * MOST_BYTES <= max(0.02 * maxmemory, ROOM_OF_ALL * MOST_BYTES)
    assert (most_queues(0) + ROOM_OF_ALL) * MOST_BYTES <= store.UNLIMITED


async def test_a_full_history_of_a_queue_keeps_to_its_bytes(trends: Trends, redis: Redis, queue: QueueName) -> None:
    widest = dict.fromkeys(range(85), 1_000)  # from a millisecond to a day
    for step in STEPS:
        for number in range(step.kept):
            at_s = 1_790_000_000 + number * step.seconds
            point = Point(at_s=at_s, succeeded=90_000, failed=90_000, canceled=90_000, waits=widest, runs=widest)
            level = Level(at_s=at_s, waiting=90_000_000, busy_s=90_000_000, slots=90_000)
            await trends._write(store._PACES, step, [(queue, [point]), (ALL, [point])])
            await trends._write(store._LEVELS, step, [(queue, [level])])
    lists = [key(queue, step.name) for step in STEPS for key in (keys.trend, keys.level)]
    used = sum([await redis.memory_usage(name, samples=0) or 0 for name in lists])
    assert used <= MOST_BYTES
    of_all = sum([await redis.memory_usage(keys.trend_of_all(step.name), samples=0) or 0 for step in STEPS])
    assert of_all <= ROOM_OF_ALL * MOST_BYTES
