"""Days of the ledger that are old are added up by month, once, and kept as long as the setting says."""

from datetime import date

from redis.asyncio import Redis

from director.broker import keys
from director.core.ids import partition_of_model
from director.core.usage import Used
from director.keeper.bookkeeper import Bookkeeper
from director.store.ledger import Ledger
from director.store.services import Services
from tests.support.clock import FakeClock
from tests.support.queue_driver import ACCOUNT, MODEL, START_MS, QueueDriver

DAY_MS = 86_400_000
RUN = Used(runs=1, ms=10, output_tokens=3)


async def test_old_months_are_added_up_once_and_later_ones_stay(driver: QueueDriver, redis: Redis) -> None:
    days = (-200, -70, -40, -39, 0, 40)  # 2026-06-29, 2026-11-06, 2026-12-06, 2026-12-07, 2027-01-15, 2027-02-24
    for day in days:
        driver.now_ms = START_MS + day * DAY_MS
        await driver.finish(await driver.claimed(api_token="t"), used=RUN)
    services = Services(redis)
    clock = FakeClock(now_ms=START_MS + 86 * DAY_MS)  # 2027-04-11: January has days of less than 90 days
    assert await Bookkeeper(services.ledger, clock, 6).run_once() == 4
    assert await Bookkeeper(services.ledger, clock, 6).run_once() == 0
    rows = await all_rows(services.ledger)
    assert [(row, used.runs) for row, used in rows] == [
        ("2026-06", 1),
        ("2026-11", 1),
        ("2026-12", 2),
        ("2027-01-15", 1),
        ("2027-02-24", 1),
    ]
    life_s = await driver.lifetime_s(keys.ledger(partition_of_model(MODEL), "202612", ACCOUNT))
    assert life_s == (date(2026, 12, 31) - date(2027, 4, 11)).days * 86_400 + 6 * 31 * 86_400
    await services.gatherer.aclose()


async def test_a_large_month_is_added_up_in_slices(driver: QueueDriver, redis: Redis) -> None:
    key = keys.ledger(partition_of_model(MODEL), "202612", ACCOUNT)
    driver.now_ms = START_MS - 40 * DAY_MS
    await driver.finish(await driver.claimed(), used=RUN)
    await redis.hset(key, mapping={f"{1 + n % 31:02} {MODEL} token-{n}": RUN.packed for n in range(2_000)})
    services = Services(redis)
    assert await services.ledger.fold("202612", kept_until=date(2027, 12, 31), today=date(2027, 4, 11)) == 2_001
    rows = await all_rows(services.ledger)
    assert ({day for day, _ in rows}, sum(used.runs for _, used in rows)) == ({"2026-12"}, 2_001)
    await services.gatherer.aclose()


async def all_rows(ledger: Ledger) -> list[tuple[str, Used]]:
    found = ledger.rows(date(2026, 1, 1), date(2028, 1, 1))
    return sorted((row.day, row.used) for rows in [each async for each in found] for row in rows)
