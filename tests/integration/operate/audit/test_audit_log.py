"""Test reading every log with a cursor: each entry in order, and a count of the entries that were cut."""

import anyio
import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import new_prediction_id, partition_of
from director.core.policy import Policy
from director.operate.audit.feeder import Fed, Feeder, ReceiverAway
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.logs import AuditLog
from tests.support.audit import STEPS, KeptSink, cut, live
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.queue_driver import VERSION, QueueDriver, driving
from tests.support.servers import redis_server


async def time_ms(redis: Redis) -> int:
    seconds, us = await redis.time()
    return int(seconds) * 1000 + int(us) // 1000


@pytest.fixture
def kept() -> KeptSink:
    return KeptSink()


@pytest.fixture
def feeder(redis: Redis, kept: KeptSink) -> Feeder:
    return Feeder(AuditLog(redis), kept, SystemClock())


async def test_all_partitions_are_read(feeder: Feeder, kept: KeptSink, driver: QueueDriver, catalog: Catalog) -> None:
    queue = await catalog.register("acme/other", VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    other = QueueDriver(driver.redis, driver.scripts, queue)
    elsewhere = new_prediction_id(model="acme/other", now_ms=1)
    await other.submit(elsewhere)
    here = await driver.submit()
    await feeder.run_once()
    assert {(batch.partition, entry.id) for batch in kept.batches for entry in batch.entries} == {
        (partition_of(here), here),
        (partition_of(elsewhere), elsewhere),
    }


async def test_entries_cut_before_reading_are_counted(feeder: Feeder, kept: KeptSink, driver: QueueDriver) -> None:
    await live(driver)
    await feeder.run_once()
    for _ in range(4):
        await live(driver)
    await cut(driver, to=5)
    assert await feeder.run_once() == Fed(entries=5, missed=7)
    assert kept.batches[-1].missed == 7
    await live(driver)
    await cut(driver, to=2)
    assert await feeder.run_once() == Fed(entries=2, missed=1)
    assert await feeder.run_once() == Fed()


async def test_entries_cut_after_reading_are_not_missed(feeder: Feeder, kept: KeptSink, driver: QueueDriver) -> None:
    await live(driver)
    await feeder.run_once()
    await cut(driver, to=0)
    assert await feeder.run_once() == Fed()
    await live(driver)
    assert await feeder.run_once() == Fed(entries=3)


async def test_first_reader_starts_with_the_existing_entries(feeder: Feeder, driver: QueueDriver) -> None:
    await live(driver)
    await cut(driver, to=1)
    assert await feeder.run_once() == Fed(entries=1)


async def test_recreated_log_is_read_from_its_start(feeder: Feeder, kept: KeptSink, driver: QueueDriver) -> None:
    await live(driver)
    await feeder.run_once()
    await driver.redis.delete(keys.log(partition_of(driver.new_id())))
    assert await feeder.run_once() == Fed()
    after = await live(driver)
    assert await feeder.run_once() == Fed(entries=3)
    assert kept.told[-3:] == [(after, step) for step in STEPS]


async def test_older_copy_of_the_log_is_read_again(feeder: Feeder, kept: KeptSink, driver: QueueDriver) -> None:
    key = keys.log(partition_of(driver.new_id()))
    prediction_id = await live(driver)
    older = await driver.redis.dump(key)
    await driver.submit()
    await feeder.run_once()
    await driver.redis.restore(key, 0, older, replace=True)
    assert await feeder.run_once() == Fed(entries=3)
    assert await feeder.run_once() == Fed()
    assert kept.told[-3:] == [(prediction_id, step) for step in STEPS]


async def test_failover_that_loses_entries_hides_no_newer_ones() -> None:
    soon = {"repl-diskless-sync-delay": "0"}
    with redis_server(loopback=True, config=soon) as first, redis_server(loopback=True) as second:
        async with driving(first.url) as old, driving(second.url) as new:
            await new.redis.replicaof("127.0.0.1", first.port)
            kept = KeptSink()
            prediction_id = await old.submit()
            await Feeder(AuditLog(old.redis), kept, SystemClock()).run_once()
            await eventually(lambda: new.redis.exists(keys.record(prediction_id)), "the replica has it")

            await new.redis.replicaof("NO", "ONE")
            claim = await new.claim_one()
            # an entry has the name of its millisecond: two of the same one could not be told apart
            claimed_ms = await time_ms(new.redis)
            await eventually(lambda: time_ms(old.redis), "another millisecond", until=lambda now: now > claimed_ms)
            await old.submit()  # lost, and named after an id that the new master has passed by now
            await Feeder(AuditLog(old.redis), kept, SystemClock()).run_once()
            first.kill()

            feeder = Feeder(AuditLog(new.redis), kept, SystemClock())
            assert await feeder.run_once() == Fed(entries=2)
            assert kept.told[-2:] == [(prediction_id, "accepted"), (prediction_id, "claimed")]
            await new.finish(claim)
            assert await feeder.run_once() == Fed(entries=1)
            for _ in range(2):
                await live(new)
            await cut(new, to=1)
            assert await feeder.run_once() == Fed(entries=1, missed=5), "and it still counts"


async def test_as_many_new_entries_as_lost_ones_are_still_found(
    feeder: Feeder, kept: KeptSink, driver: QueueDriver
) -> None:
    key = keys.log(partition_of(driver.new_id()))
    await live(driver)
    older = await driver.redis.dump(key)
    await driver.submit()
    await feeder.run_once()
    await driver.redis.restore(key, 0, older, replace=True)
    [(last, fields)] = await driver.redis.xrevrange(key, count=1)
    milliseconds, _, number = last.decode().partition("-")
    # not the next number: the lost entry has that one if it was written within the same millisecond
    await driver.redis.xadd(key, fields, id=f"{milliseconds}-{int(number) + 2}")
    assert await feeder.run_once() == Fed(entries=4)


async def test_entries_from_before_the_deletion_of_a_queue_are_still_delivered(
    feeder: Feeder, kept: KeptSink, driver: QueueDriver, redis: Redis
) -> None:
    await live(driver)
    await feeder.run_once()
    await live(driver)
    await redis.srem(keys.queues(), driver.queue)
    later = KeptSink(kept.kept)
    assert await Feeder(AuditLog(redis), later, SystemClock()).run_once() == Fed(entries=3)


async def test_entries_of_a_queue_that_was_deleted_before_the_first_round_are_delivered(
    feeder: Feeder, kept: KeptSink, driver: QueueDriver, redis: Redis
) -> None:
    prediction_id = await live(driver)
    await redis.srem(keys.queues(), driver.queue)
    assert await feeder.run_once() == Fed(entries=3)
    assert kept.told == [(prediction_id, step) for step in STEPS]


async def test_busy_partition_delays_no_other(
    redis: Redis, kept: KeptSink, driver: QueueDriver, catalog: Catalog, scripts: Scripts
) -> None:
    queue = await catalog.register("acme/other", VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    busy, quiet = sorted([driver, QueueDriver(redis, scripts, queue)], key=lambda one: keys.queue_partition(one.queue))
    of_busy, of_quiet = (new_prediction_id(model=one.queue.partition(":")[0], now_ms=1) for one in (busy, quiet))
    await busy.submit(of_busy)
    await quiet.submit(of_quiet)
    [(_, fields)] = await busy.redis.xrange(keys.log(partition_of(of_busy)))
    pipe = busy.redis.pipeline()
    for _ in range(1100):
        pipe.xadd(keys.log(partition_of(of_busy)), fields)
    await pipe.execute()
    feeder = Feeder(AuditLog(redis), kept, SystemClock())
    assert await feeder.run_once() == Fed(entries=501, more=True)
    assert (of_quiet, "accepted") in kept.told
    assert await feeder.catch_up() == Fed(entries=601)


async def test_entries_cut_before_the_first_round_are_counted(
    feeder: Feeder, kept: KeptSink, driver: QueueDriver
) -> None:
    kept.is_away = True
    await live(driver)
    with pytest.raises(ReceiverAway):
        await feeder.run_once()
    await live(driver)
    await cut(driver, to=2)
    kept.is_away = False
    assert await feeder.run_once() == Fed(entries=2, missed=4)


async def test_sink_that_is_away_gets_the_same_batch_later(redis: Redis, kept: KeptSink, driver: QueueDriver) -> None:
    clock = FakeClock()
    kept.is_away = True
    await live(driver)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Feeder(AuditLog(redis), kept, clock).run)
        await eventually(lambda: kept.refusals == 1, "it was tried")
        kept.is_away = False
        clock.pass_time(60)
        await eventually(lambda: len(kept.told) == 3, "it was brought")
        tasks.cancel_scope.cancel()
