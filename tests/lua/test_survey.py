"""survey tells what waits and could start, by account and lane; order keeps what an operator wants loaded."""

import pytest

from director.broker.replies import Line
from director.core.policy import Policy
from tests.support.queue_driver import ACCOUNT, VERSION, QueueDriver


async def lines(driver: QueueDriver) -> set[Line]:
    return set((await driver.scripts.survey(driver.queue, now_ms=driver.now_ms)).lines)


async def test_survey_names_accounts_and_lanes_with_the_age_of_their_oldest(driver: QueueDriver) -> None:
    await driver.submit(account="first")
    driver.pass_time(5)
    await driver.submit_many(2, account="a")
    driver.pass_time(2)
    await driver.submit_many(3, account="b", lane="high")
    driver.pass_time(1)
    told = await driver.scripts.survey(driver.queue, now_ms=driver.now_ms)
    assert (told.order, told.accepted, told.run_s) == ("", 6, 0)
    assert sorted((line.account, line.lane, line.count, line.oldest_s) for line in told.lines) == [
        ("a", "normal", 2, 3.0),
        ("b", "high", 1, 1.0),  # the first of its lane is in a stream
        ("b", "high", 2, 1.0),
        ("first", "normal", 1, 8.0),
    ]


async def test_survey_leaves_out_what_is_claimed_or_may_not_start(driver: QueueDriver) -> None:
    await driver.submit(account="runs")
    await driver.run(await driver.claim_one(), 2)
    await driver.submit(account="runs")
    await driver.claim_one()
    await driver.submit_many(3, account="held")
    await driver.submit_many(3, account="limited", most_running=1)
    await driver.pause(account="held")
    told = await driver.scripts.survey(driver.queue, now_ms=driver.now_ms)
    assert {line.account for line in told.lines} <= {"limited", "held"}
    assert sum(line.count for line in told.lines if line.account == "held") <= 1, "an entry in a stream may be there"
    assert told.run_s == 2
    await driver.pause()
    assert await lines(driver) == set()


async def test_survey_leaves_out_what_backs_off_until_it_is_due(driver: QueueDriver) -> None:
    await driver.submit()
    await driver.release(await driver.claim_one(), spent=True, delay_s=30)
    assert await lines(driver) == set()
    driver.pass_time(30)
    await driver.promote()
    assert await lines(driver) == {Line(ACCOUNT, "normal", 1, 30.0)}


async def test_open_breaker_lets_one_try_after_its_cool_time(driver: QueueDriver) -> None:
    await driver.scripts.register(driver.queue, version=VERSION, policy=Policy(breaker_after=2))
    await driver.have_slots(3)
    await driver.submit_many(3)
    for consumer in ("d1", "d2"):
        await driver.release(await driver.claim_one(consumer=consumer), spent=True, delay_s=60)
    assert await lines(driver) == set()
    driver.pass_time(31)
    assert sum(line.count for line in await lines(driver)) == 1


async def test_accounts_beyond_the_first_count_as_one(driver: QueueDriver) -> None:
    for number in range(40):
        await driver.submit_many(2, account=f"a{number}")
    told = (await driver.scripts.survey(driver.queue, now_ms=driver.now_ms)).lines  # two of one account may be equal
    assert sum(line.count for line in told) == 80
    assert len({line.account for line in told}) <= 34
    assert any(line.account == "" for line in told)


@pytest.mark.parametrize("order", ["load", "rest", "pin"])
async def test_order_stands_until_another_replaces_it(driver: QueueDriver, order: str) -> None:
    await driver.scripts.order(driver.queue, order)  # type: ignore[arg-type]
    await driver.scripts.order(driver.queue, "", was="load")
    told = await driver.scripts.survey(driver.queue)
    assert told.order == ("" if order == "load" else order)


async def test_what_waits_behind_older_ones_that_may_not_start_has_an_age(driver: QueueDriver) -> None:
    await driver.have_slots(10)
    for _ in range(9):
        await driver.submit()
        await driver.release(await driver.claim_one(), spent=True, delay_s=600)
    driver.pass_time(5)
    await driver.submit()
    driver.pass_time(300)
    assert await lines(driver) == {Line("", "normal", 1, 305.0)}
