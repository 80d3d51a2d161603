"""get returns a prediction as it is now."""

import json

import pytest

from director.broker import keys
from director.core.schema import Claim
from tests.support.queue_driver import QueueDriver


async def test_a_waiting_prediction_has_input_and_no_output(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(data=b'{"n":1}')
    stored = await driver.scripts.get(prediction_id)
    assert stored.record == await driver.record(prediction_id)
    assert (bytes(stored.input or b""), stored.output, stored.logs) == (b'{"n":1}', None, "")


async def test_get_returns_the_outlook_of_a_waiting_prediction_on_request(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    assert (await driver.scripts.get(prediction_id)).outlook is not None
    assert (await driver.scripts.get(prediction_id, outlook=False)).outlook is None
    claim = await driver.claim_one()
    for _ in range(2):
        assert (await driver.scripts.get(prediction_id)).outlook is None, "it does not wait"
        await driver.finish(claim)


async def test_get_builds_output_and_logs_of_a_run_from_its_events(driver: QueueDriver, claim: Claim) -> None:
    await driver.begin(claim, ("output", b'"a"'), ("logs", b'"one\\n"'), ("output", b"[]"), ("logs", b'"two\\n"'))
    stored = await driver.scripts.get(claim.id)
    assert (bytes(stored.output or b""), stored.logs) == (b'["a",[]]', "one\ntwo\n")


@pytest.mark.parametrize(("endpoint", "most"), [("chat", 4094), ("", 6000)])
async def test_get_shows_the_first_chunks_of_a_long_call(driver: QueueDriver, endpoint: str, most: int) -> None:
    claim = await driver.claimed(endpoint=endpoint)
    seq = await driver.begin(claim)
    for first in range(0, 6000, 1000):
        chunks = [("output", b"%d" % number) for number in range(first, first + 1000)]
        advanced = await driver.scripts.advance(claim.id, token=claim.token, seq=seq, ran_ms=1, events=chunks)
        seq = advanced.seq
    stored = await driver.scripts.get(claim.id)
    assert stored is not None
    assert json.loads(bytes(stored.output or b"")) == list(range(most)), "its first two events have no output"


async def test_get_returns_the_output_and_logs_that_finish_wrote(driver: QueueDriver, claim: Claim) -> None:
    await driver.finish(claim, output=b'{"big":12345678901234567890,"list":[]}', logs="done\n")
    stored = await driver.scripts.get(claim.id)
    assert bytes(stored.output or b"") == b'{"big":12345678901234567890,"list":[]}'
    assert stored.logs == "done\n"


async def test_get_returns_the_record_after_its_data_is_gone(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    await driver.finish(await driver.claim_one(), output=b"1")
    await driver.redis.delete(keys.input_data(prediction_id), keys.output_data(prediction_id))
    stored = await driver.scripts.get(prediction_id)
    assert (stored.record.status, stored.input, stored.output) == ("succeeded", None, None)
    assert await driver.scripts.get(driver.new_id()) is None
