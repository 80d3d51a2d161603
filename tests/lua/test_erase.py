"""erase removes a terminal prediction at once and leaves any other as it is."""

from typing import Any

import pytest

from director.broker import keys
from director.core.ids import partition_of
from director.core.states import Status
from tests.support.keyspace import dump, unchanged
from tests.support.queue_driver import ACCOUNT, QueueDriver


async def test_a_terminal_prediction_is_erased_without_a_trace(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(webhook="https://example.com", webhook_events="completed")
    assert await driver.finish(await driver.claim_one(), output=b"1", logs="text")
    assert await driver.scripts.erase(prediction_id, account=ACCOUNT) == "erased"
    assert not [key for key in await dump(driver.redis) if prediction_id in str(key)]
    assert await driver.redis.zscore(keys.owed(partition_of(prediction_id)), prediction_id) is None


async def test_an_erased_dead_letter_leaves_the_list(driver: QueueDriver) -> None:
    prediction_id = await driver.die()
    assert await driver.redis.zcard(keys.dead(driver.queue)) == 1
    assert await driver.scripts.erase(prediction_id, account=ACCOUNT) == "erased"
    assert await driver.redis.zcard(keys.dead(driver.queue)) == 0


@pytest.mark.parametrize("runs", [False, True])
async def test_a_prediction_that_is_not_terminal_cannot_be_erased(driver: QueueDriver, runs: bool) -> None:
    prediction_id = await driver.submit()
    if runs:
        await driver.begin(await driver.claim_one())
    before: Any = await dump(driver.redis)
    assert await driver.scripts.erase(prediction_id, account=ACCOUNT) == "running"
    assert await dump(driver.redis) == before


async def test_another_accounts_prediction_appears_missing(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    await driver.finish(await driver.claim_one())
    async with unchanged(driver.redis):
        assert await driver.scripts.erase(prediction_id, account="rival") == "unknown"
        assert await driver.scripts.erase(driver.new_id(), account=ACCOUNT) == "unknown"


async def test_an_erased_prediction_can_be_created_again_under_its_key(driver: QueueDriver) -> None:
    key = ("digest", "print")
    first = await driver.submit(idempotency=key)
    assert await driver.submit(idempotency=key) == first
    await driver.finish(await driver.claim_one(), Status.FAILED)
    await driver.scripts.erase(first, account=ACCOUNT)
    assert await driver.submit(idempotency=key) != first


async def test_training_is_erased_only_as_one(driver: QueueDriver) -> None:
    training = await driver.submit(kind="training")
    assert await driver.scripts.cancel(training, account=ACCOUNT, kind="training") == "canceled"
    assert await driver.scripts.erase(training, account=ACCOUNT) == "unknown"
    assert await driver.scripts.erase(training, account=ACCOUNT, kind="training") == "erased"
    assert not [key for key in await dump(driver.redis) if training in str(key)]
