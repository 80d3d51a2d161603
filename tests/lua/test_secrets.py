"""The end of a prediction overwrites the secret values of its input, wherever it ends."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import pytest

from api.predictions.secrets import Secrets
from director.broker import keys
from director.core.ids import PredictionId
from director.core.schema import Stored
from director.core.states import Status
from director.core.view import public_input, view
from tests.support.keyspace import holders, unchanged
from tests.support.queue_driver import ACCOUNT, QueueDriver

SCHEMA: Final = {"properties": {"token": {"writeOnly": True}, "keys": {"items": {"format": "password"}}}}
GIVEN: Final = msgspec.Raw(b'{"token":"hush-1","text":"h\xc3\xa9","keys":["hush-2","a hush-3"]}')
MARKED: Final = Secrets({}, SCHEMA).mark(GIVEN)
PUBLIC: Final = {"token": "[REDACTED]", "text": "hé", "keys": ["[REDACTED]", "[REDACTED]"]}
OPTIONS: Final = {"data": MARKED.input, "secret": MARKED.secret}

pytestmark = pytest.mark.not_on("cluster", why="it looks at the keys of one server")


async def stored(driver: QueueDriver, prediction_id: PredictionId) -> Stored:
    found = await driver.scripts.get(prediction_id)
    assert found is not None
    return found


async def shown(driver: QueueDriver, prediction_id: PredictionId) -> object:
    return msgspec.json.decode(view(await stored(driver, prediction_id)).input)


async def finished(driver: QueueDriver) -> PredictionId:
    claim = await driver.claimed(**OPTIONS)
    await driver.finish(claim, Status.SUCCEEDED, output=b'"a"')
    return claim.id


async def canceled(driver: QueueDriver) -> PredictionId:
    prediction_id = await driver.submit(**OPTIONS)
    assert await driver.scripts.cancel(prediction_id, account=ACCOUNT, now_ms=driver.now_ms) == "canceled"
    return prediction_id


async def expired(driver: QueueDriver) -> PredictionId:
    prediction_id = await driver.submit(**OPTIONS, lifetime_ms=1000, deadline_status="aborted")
    driver.pass_time(2)
    await driver.expire()
    return prediction_id


async def dead(driver: QueueDriver) -> PredictionId:
    return await driver.die(**OPTIONS)


@pytest.mark.parametrize("end", [finished, canceled, expired, dead])
async def test_no_key_holds_a_secret_after_the_end(
    driver: QueueDriver, end: Callable[[QueueDriver], Awaitable[PredictionId]]
) -> None:
    prediction_id = await end(driver)
    assert await holders(driver.redis, b"hush") == []
    assert await shown(driver, prediction_id) == PUBLIC
    left = await driver.redis.get(keys.input_data(prediction_id))
    assert (len(left), msgspec.json.decode(left)) == (len(MARKED.input), PUBLIC)
    assert await driver.redis.pttl(keys.input_data(prediction_id)) > 0


async def test_a_live_prediction_keeps_its_secrets_and_shows_none(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(**OPTIONS)
    assert await shown(driver, prediction_id) == PUBLIC
    claim = await driver.claim_one()
    assert msgspec.json.decode(claim.input) == msgspec.json.decode(GIVEN)
    assert msgspec.json.decode(public_input(claim.record, claim.input)) == PUBLIC
    await driver.release(claim, spent=True, code="broken")
    assert await holders(driver.redis, b"hush") == [keys.input_data(prediction_id)]
    driver.pass_time(60)
    await driver.promote()
    again = await driver.claim_one()
    assert (again.record.attempt, msgspec.json.decode(again.input)) == (2, msgspec.json.decode(GIVEN))


async def test_a_dead_letter_with_secrets_is_not_revived(driver: QueueDriver) -> None:
    prediction_id = await driver.die(**OPTIONS)
    async with unchanged(driver.redis):
        assert not await driver.revive(prediction_id)


async def test_an_input_that_is_gone_does_not_come_back(driver: QueueDriver) -> None:
    claim = await driver.claimed(**OPTIONS)
    await driver.redis.delete(keys.input_data(claim.id))
    await driver.finish(claim, Status.SUCCEEDED)
    assert (await stored(driver, claim.id)).input is None


async def test_a_batch_overwrites_the_secrets_of_each(driver: QueueDriver) -> None:
    await driver.submit_many(3, **OPTIONS)
    claims = await driver.claim(3)
    await asyncio.gather(*(driver.finish(claim, Status.SUCCEEDED) for claim in claims))
    assert await holders(driver.redis, b"hush") == []
