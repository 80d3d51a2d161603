"""stats returns the numbers of one queue at one moment."""

from datetime import UTC, datetime, timedelta

import pytest

from director.core.view import iso
from director.operate.findings import work_of
from director.operate.views import view_of
from director.store.directors import ALIVE_S
from tests.support.queue_driver import QueueDriver


async def test_each_prediction_is_counted_where_it_is(driver: QueueDriver) -> None:
    for lane, many in (("high", 2), ("normal", 3), ("low", 5)):
        for number in range(many):
            await driver.submit(lane=lane, streams=[number])
    claimed, delayed, ended = await driver.claim(3)  # two of high and one of normal, by the order of turns
    await driver.release(delayed, delay_s=5)
    await driver.finish(ended)
    await driver.extend(claimed)
    driver.pass_time(2)
    stats = await driver.scripts.stats(driver.queue, now_ms=driver.now_ms)
    assert (stats.high, stats.normal, stats.low, stats.waiting) == (0, 2, 5, 7)
    assert (stats.claimed, stats.delayed, stats.dead, stats.live) == (1, 1, 0, 9)
    assert (stats.oldest_ms, stats.directors, stats.streams, stats.read, stats.paused) == (2_000, 1, 16, 16, False)


async def test_stats_count_dead_letters_and_report_a_pause(driver: QueueDriver) -> None:
    stats = await driver.stats()
    assert (stats.waiting, stats.claimed, stats.live, stats.oldest_ms, stats.directors, stats.dead) == (0,) * 6
    assert not stats.paused
    await driver.die()
    await driver.pause()
    stats = await driver.stats()
    assert (stats.dead, stats.paused) == (1, True)


async def test_counters_are_numbers(driver: QueueDriver) -> None:
    assert (await driver.scripts.stats(driver.queue)).tally == {}
    await driver.submit(affinity="0" * 16)
    await driver.claim_one()
    tally = (await driver.scripts.stats(driver.queue)).tally
    assert tally == {"accepted:normal": 1, "started": 1, "waited_ms": 0, "cold": 1}


async def test_a_silent_director_counts_while_outlooks_still_rely_on_it(driver: QueueDriver) -> None:
    await driver.have_slots(1)
    waiting = await driver.submit()
    driver.pass_time(ALIVE_S)
    assert ((await driver.stats()).directors, (await driver.outlook(waiting)).reason) == (1, "waiting_its_turn")
    driver.pass_time(0.001)
    assert ((await driver.stats()).directors, (await driver.outlook(waiting)).reason) == (0, "no_director")


async def test_upper_streams_are_counted_after_a_shrink(driver: QueueDriver) -> None:
    await driver.submit(streams=[9])
    await driver.scripts.resize(driver.queue, streams=2)
    stats = await driver.scripts.stats(driver.queue)
    assert (stats.waiting, stats.streams, stats.read) == (1, 2, 10)


async def test_stats_tell_apart_what_no_director_has_to_be_there_for(driver: QueueDriver) -> None:
    await driver.submit_many(2, lane="idle")
    await driver.submit_many(3, start_after=driver.now_ms + 60_000)
    await driver.submit(lane="low")
    await driver.release(await driver.claim_one(), delay_s=120)
    stats = await driver.stats()
    assert (stats.low, stats.idle, stats.delayed, stats.planned) == (2, 2, 4, 3)
    assert work_of(stats) == 1
    driver.pass_time(60)
    await driver.promote()
    stats = await driver.stats()
    assert (stats.normal, stats.delayed, stats.planned, work_of(stats)) == (3, 1, 0, 4)


@pytest.mark.parametrize("whose", ["", "night"], ids=["queue", "account"])
async def test_closed_work_needs_no_director(driver: QueueDriver, whose: str) -> None:
    opens = datetime.fromtimestamp(driver.now_ms // 1000, UTC) + timedelta(minutes=90)
    for lane, many in (("high", 1), ("normal", 2), ("low", 3), ("idle", 4)):
        await driver.submit_many(many, account="night", lane=lane)
    hours = f"{opens:%H:%M}-{opens + timedelta(minutes=90):%H:%M} UTC"
    await driver.scripts.hours(driver.queue, hours, account=whose, revision=None, now_ms=driver.now_ms)
    await driver.claim(9)
    await driver.submit(account="day")
    stats = await driver.stats()
    is_all = not whose
    assert (stats.closed, stats.waiting, work_of(stats)) == ((1, 3 if is_all else 2, 3), 11, 0 if is_all else 1)
    driver.pass_time(91 * 60)
    stats = await driver.stats()
    assert (stats.closed, work_of(stats)) == ((0, 0, 0), 7)


async def test_stats_say_when_the_hours_of_the_queue_begin(driver: QueueDriver) -> None:
    now = datetime.fromtimestamp(driver.now_ms // 1000, UTC)
    opens, closes = now.replace(second=0) + timedelta(minutes=90), now + timedelta(minutes=180)
    hours = f"{opens:%H:%M}-{closes:%H:%M} UTC"
    await driver.scripts.hours(driver.queue, hours, revision=None, now_ms=driver.now_ms)
    stats = await driver.stats()
    assert (stats.opens_ms, stats.zone) == (int(opens.timestamp()) * 1000, "UTC")
    view = view_of(driver.queue, stats)
    assert (view.state, view.words, view.shade) == ("closed", f"closed until {opens:%a %H:%M} UTC", "calm")
    assert view.opens_at == iso(stats.opens_ms or 0)
    await driver.pause()
    assert view_of(driver.queue, await driver.stats()).state == "paused", "as callers are told"
    await driver.pause(paused=False)
    driver.pass_time(90 * 60)
    await driver.have_slots(1)
    view = view_of(driver.queue, await driver.stats())
    assert (view.state, view.opens_at) == ("serving", None)
