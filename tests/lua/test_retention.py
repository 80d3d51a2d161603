"""Terminal data is kept as its account wants, else as its queue has it. The record is kept at least as long."""

import pytest

from director.broker import keys
from director.core.ids import PredictionId
from tests.support.queue_driver import QueueDriver

HOUR_S, DAY_S = 3600, 86400


async def lives_s(driver: QueueDriver, prediction_id: PredictionId) -> dict[str, int]:
    names = ("record", "input_data", "output_data", "events")
    return {name: round(await driver.redis.pttl(getattr(keys, name)(prediction_id)) / 1000) for name in names}


@pytest.mark.parametrize(
    ("asked_s", "data_s", "record_s"),
    [(None, HOUR_S, 7 * DAY_S), (60, 60, 7 * DAY_S), (30 * DAY_S, 30 * DAY_S, 30 * DAY_S)],
)
async def test_an_account_sets_how_long_its_data_is_kept(
    driver: QueueDriver, asked_s: int | None, data_s: int, record_s: int
) -> None:
    prediction_id = await driver.submit(data_ttl_ms=asked_s and asked_s * 1000)
    await driver.finish(await driver.claim_one(), output=b"1")
    lives = await lives_s(driver, prediction_id)
    assert lives == {"record": record_s, "input_data": data_s, "output_data": data_s, "events": data_s}


async def test_data_kept_for_a_webhook_returns_to_the_accounts_lifetime(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(data_ttl_ms=60_000, webhook="https://example.com", webhook_events="completed")
    await driver.finish(await driver.claim_one(), output=b"1")
    assert (await lives_s(driver, prediction_id))["output_data"] > DAY_S
    await driver.deliver(prediction_id)
    lives = await lives_s(driver, prediction_id)
    assert {lives[name] for name in ("input_data", "output_data", "events")} == {60}


async def test_a_dead_letter_keeps_its_input_as_long_as_its_record(driver: QueueDriver) -> None:
    prediction_id = await driver.die(data_ttl_ms=60_000)
    assert (await lives_s(driver, prediction_id))["input_data"] == 7 * DAY_S
    await driver.scripts.drop(prediction_id, queue=driver.queue)
    assert (await lives_s(driver, prediction_id))["input_data"] == 60
