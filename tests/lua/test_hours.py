"""Out of its open hours nothing of an account or a queue starts. It waits, and starts by the clock."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from director.broker import keys
from director.core.hours import DAY_MS
from director.core.ids import PredictionId
from director.core.policy import Policy
from director.core.schema import Outlook
from tests.support.clock import FakeClock
from tests.support.keyspace import unchanged
from tests.support.queue_driver import ACCOUNT, QueueDriver

NIGHT = "22:00-06:00 Europe/Berlin"
EVENING_MS = int(datetime(2027, 1, 15, 21, 0, tzinfo=ZoneInfo("Europe/Berlin")).timestamp() * 1000)
HOUR_S = 3_600


@pytest.fixture
async def driver(driver: QueueDriver) -> QueueDriver:
    """Return a driver whose clock shows 21:00 in Berlin."""
    driver.now_ms = EVENING_MS
    await driver.have_slots(4)
    return driver


async def open_from(driver: QueueDriver, hours: str = NIGHT, *, account: str = ACCOUNT, revision: int = 1) -> None:
    assert await driver.scripts.hours(driver.queue, hours, account=account, revision=revision, now_ms=driver.now_ms)


async def pass_hours(driver: QueueDriver, hours: float) -> None:
    driver.pass_time(hours * HOUR_S)
    await driver.have_slots(4)


async def claimed(driver: QueueDriver, count: int = 9) -> list[PredictionId]:
    return [claim.id for claim in await driver.claim(count)]


async def runnable(driver: QueueDriver, soon_s: float = 60) -> int:
    return (await driver.scripts.demand(driver.queue, soon_s=soon_s, now_ms=driver.now_ms)).runnable


@pytest.mark.parametrize("whose", [ACCOUNT, ""], ids=["account", "queue"])
async def test_work_starts_when_its_hours_begin_without_any_keeper(driver: QueueDriver, whose: str) -> None:
    await open_from(driver, account=whose)
    prediction_id = await driver.submit()
    assert await claimed(driver) == []
    await pass_hours(driver, 0.999)
    assert await claimed(driver) == []
    await pass_hours(driver, 0.001)
    assert await claimed(driver) == [prediction_id]


@pytest.mark.parametrize("whose", [ACCOUNT, ""], ids=["account", "queue"])
async def test_work_stops_starting_when_its_hours_end(driver: QueueDriver, whose: str) -> None:
    await open_from(driver, account=whose)
    await pass_hours(driver, 8.9)
    ids = await driver.submit_many(3)
    claim = await driver.claim_one()
    await pass_hours(driver, 0.2)
    assert await claimed(driver) == []
    assert await driver.extend(claim) == ["held"], "what runs runs on"
    await pass_hours(driver, 15.9)
    assert sorted(await claimed(driver)) == sorted(ids[1:])


async def test_work_of_others_goes_on_while_an_account_is_closed(driver: QueueDriver) -> None:
    await open_from(driver)
    await driver.submit_many(70)
    others = await driver.submit_many(2, account="day")
    assert sorted(await claimed(driver, 4)) == sorted(others)


async def test_turns_return_with_the_hours_of_many_accounts(driver: QueueDriver) -> None:
    accounts = [f"t{number}" for number in range(40)]
    for account in accounts:
        await open_from(driver, account=account)
        await driver.submit(account=account)
    await pass_hours(driver, 1)
    found = [await claimed(driver, 50) for _ in range(3)]
    assert sum(map(len, found)) == 40


async def test_keeper_gives_turns_of_a_model_that_is_not_loaded(driver: QueueDriver) -> None:
    await open_from(driver)
    await driver.submit()
    await pass_hours(driver, 1)
    assert (await driver.scripts.survey(driver.queue, now_ms=driver.now_ms)).lines == ()
    await driver.promote()
    [line] = (await driver.scripts.survey(driver.queue, now_ms=driver.now_ms)).lines
    assert (line.account, line.count) == (ACCOUNT, 1)


async def test_outlook_says_when_the_hours_begin(driver: QueueDriver) -> None:
    await open_from(driver)
    prediction_id = await driver.submit()
    opens = driver.now_ms + HOUR_S * 1000
    outlook = Outlook(1, 0, HOUR_S * 1000, HOUR_S * 1000, "closed", opens, "Europe/Berlin")
    assert await driver.outlook(prediction_id) == outlook
    await open_from(driver, account="", hours="23:00-24:00 Asia/Kolkata")
    assert (await driver.outlook(prediction_id)).by == "Asia/Kolkata"
    driver.pass_time(60)
    assert (await driver.outlook(prediction_id)).p50_ms is None, "its director is silent"


@pytest.mark.parametrize("whose", [ACCOUNT, ""], ids=["account", "queue"])
async def test_closed_work_is_no_demand_until_it_opens_soon(driver: QueueDriver, whose: str) -> None:
    await open_from(driver, account=whose)
    await driver.submit()
    assert (await runnable(driver), await runnable(driver, HOUR_S)) == (0, 1)
    await pass_hours(driver, 1)
    assert await runnable(driver) == 1


async def test_older_change_of_hours_changes_nothing(driver: QueueDriver) -> None:
    await open_from(driver, "", revision=3)
    await open_from(driver, revision=2)
    await open_from(driver, revision=3)
    async with unchanged(driver.redis):
        await open_from(driver, revision=3)
        await open_from(driver, "", revision=2)


async def test_work_starts_at_once_when_hours_are_taken_back(driver: QueueDriver) -> None:
    await open_from(driver)
    prediction_id = await driver.submit()
    await driver.hear_bell()
    await open_from(driver, "", revision=2)
    assert await driver.hear_bell()
    assert await claimed(driver) == [prediction_id]
    await open_from(driver, revision=1)
    await driver.submit()
    assert len(await claimed(driver)) == 1, "what an API process knew from before closes nothing again"


async def test_entry_in_a_stream_returns_to_its_backlog_when_hours_begin_to_hold(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    await open_from(driver)
    assert await claimed(driver) == []
    assert await driver.backlog() == [prediction_id]
    await pass_hours(driver, 1)
    assert await claimed(driver) == [prediction_id]


async def test_start_limit_and_deadline_hold_while_it_is_closed(driver: QueueDriver) -> None:
    await open_from(driver)
    late = await driver.submit(lifetime_ms=60_000)
    driver.pass_time(60)
    assert await driver.scripts.expire(driver.queue, limit=9, now_ms=driver.now_ms) == (1, 0)
    assert (await driver.record(late)).code == "deadline_exceeded"


async def test_idle_poll_of_a_closed_queue_writes_nothing(driver: QueueDriver) -> None:
    await open_from(driver)
    await open_from(driver, account="")
    await driver.submit()
    await claimed(driver)
    async with unchanged(driver.redis):
        assert await claimed(driver) == []


async def test_known_hours_last_for_a_week_without_a_keeper(driver: QueueDriver) -> None:
    await open_from(driver)
    await driver.submit()
    for _ in range(7):
        await pass_hours(driver, 12)  # 9:00
        assert await claimed(driver) == []
        await pass_hours(driver, 12)


@pytest.mark.parametrize("given", ["hours", "none"])
async def test_hours_of_an_account_go_with_its_moved_work(driver: QueueDriver, given: str) -> None:
    other = QueueDriver(driver.redis, driver.scripts, driver.queue.replace("a1" * 32, "b2" * 32))  # type: ignore[arg-type]
    await driver.scripts.register(other.queue, version="b2" * 32, policy=Policy())
    other.now_ms = driver.now_ms
    if given == "hours":
        await open_from(driver)
    await driver.submit()
    moved = await driver.scripts.migrate(
        driver.queue, to=other.queue, start=0, count=9, only_asks=False, now_ms=driver.now_ms
    )
    assert moved is not None
    assert moved.moved == 1
    assert len(await other.claim(9)) == (0 if given == "hours" else 1)
    other.pass_time(HOUR_S)
    assert len(await other.claim(9)) == (1 if given == "hours" else 0)


async def test_unregistered_queue_has_no_hours(driver: QueueDriver) -> None:
    await open_from(driver)
    await open_from(driver, account="")
    driver.pass_time(120)
    assert await driver.scripts.unregister(driver.queue, now_ms=driver.now_ms) == "done"
    assert not await driver.redis.exists(keys.hours(driver.queue), keys.opens(driver.queue))
    assert not await driver.scripts.hours(driver.queue, NIGHT, revision=1)


async def test_hours_that_are_taken_back_leave_nothing_to_read(driver: QueueDriver) -> None:
    async def cost() -> int:
        await driver.submit()
        before = await driver.redis.info("commandstats")
        await driver.submit()
        after = await driver.redis.info("commandstats")
        return sum(each["calls"] for each in after.values()) - sum(each["calls"] for each in before.values())

    free = await cost()
    await open_from(driver, account="other")
    assert await cost() > free
    await open_from(driver, "", account="other", revision=2)
    assert await cost() == free
    assert not await driver.redis.exists(keys.hours(driver.queue), keys.opens(driver.queue))
    assert 0 < await driver.redis.ttl(keys.reopened(driver.queue, "other")) <= 600


async def test_hours_from_an_old_cache_close_no_queue_that_knew_none(driver: QueueDriver) -> None:
    await open_from(driver, "", revision=2)
    async with unchanged(driver.redis):
        await open_from(driver, revision=1)
    prediction_id = await driver.submit()
    assert await claimed(driver) == [prediction_id]
    await open_from(driver, revision=3)
    await driver.submit()
    assert await claimed(driver) == []


async def set_own(driver: QueueDriver, hours: str, *, revision: int | None = None, ahead_s: float = 0) -> None:
    """Set the hours of the queue, as a director does at its registration. `ahead_s`: of Redis's clock."""
    now_ms = driver.now_ms + int(ahead_s * 1000)
    assert await driver.scripts.hours(driver.queue, hours, revision=revision, now_ms=now_ms)


async def test_last_registration_decides_whatever_the_clock_shows(driver: QueueDriver) -> None:
    await set_own(driver, NIGHT, ahead_s=2 * HOUR_S)
    prediction_id = await driver.submit()
    assert await claimed(driver) == []
    await set_own(driver, "")
    assert await claimed(driver) == [prediction_id]
    await set_own(driver, NIGHT)
    await driver.submit()
    assert await claimed(driver) == []


async def test_keeper_brings_no_hours_of_a_queue_back(driver: QueueDriver) -> None:
    await set_own(driver, NIGHT)
    [kept] = await driver.redis.hvals(keys.hours(driver.queue))
    async with unchanged(driver.redis):
        await set_own(driver, NIGHT)
    await set_own(driver, "")
    async with unchanged(driver.redis):
        await set_own(driver, NIGHT, revision=int(kept.split()[0]))
        await set_own(driver, "")


async def test_closures_begin_on_the_day_of_redis(driver: QueueDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, _ = await driver.redis.time()
    for days in (-30, 30):
        wrong = FakeClock(now_ms=(seconds + days * 86_400) * 1000)
        monkeypatch.setattr("director.broker.scripts.SystemClock", lambda wrong=wrong: wrong)
        await driver.scripts.hours(driver.queue, NIGHT, account=f"of {days}", revision=1)
    found = await driver.redis.hvals(keys.hours(driver.queue))
    first_days = {int(each.partition(b"|")[2].partition(b"-")[0]) // DAY_MS for each in found}
    assert first_days == {seconds * 1000 // DAY_MS}
