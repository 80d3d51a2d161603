"""release gives a claim back, spent or not, at once or later. promote returns delayed ones."""

import pytest

from director.broker import keys
from director.core.schema import Claim
from tests.support.keyspace import unchanged
from tests.support.queue_driver import QueueDriver


async def test_an_unspent_release_waits_again_and_counts_no_attempt(driver: QueueDriver, claim: Claim) -> None:
    await driver.hear_bell()
    assert await driver.release(claim) == "waiting"
    assert await driver.hear_bell()
    record = await driver.record(claim.id)
    assert (record.status, record.attempt, record.claims, record.token) == ("starting", 0, 1, "")
    assert await driver.members(keys.lease(driver.queue)) == {}
    assert await driver.pending() == {}
    assert sum(len(ids) for ids in (await driver.entries()).values()) == 1
    assert (await driver.claim_one()).record.attempt == 1


async def test_a_spent_release_waits_again_as_a_clean_next_attempt(driver: QueueDriver, claim: Claim) -> None:
    await driver.begin(claim, ("output", b"1"))
    assert await driver.release(claim, spent=True) == "waiting"
    record = await driver.record(claim.id)
    assert (record.status, record.started, record.attempt) == ("starting", None, 1)
    again = await driver.claim_one()
    assert again.record.attempt == 2
    await driver.begin(again, ("output", b"2"))
    stored = await driver.scripts.get(claim.id)
    assert bytes(stored.output or b"") == b"[2]", "the caller never sees two attempts at once"


async def test_a_delayed_release_is_in_no_stream_until_it_is_due(driver: QueueDriver, claim: Claim) -> None:
    await driver.hear_bell()
    assert await driver.release(claim, spent=True, delay_s=4) == "delayed"
    assert await driver.members(keys.delayed(driver.queue)) == {claim.id: driver.now_ms + 4_000}
    assert await driver.entries() == {}
    assert not await driver.hear_bell()
    driver.pass_time(3.999)
    assert await driver.scripts.promote(driver.queue, limit=9, now_ms=driver.now_ms) == 0
    assert await driver.claim() == []
    driver.pass_time(0.001)
    assert await driver.scripts.promote(driver.queue, limit=9, now_ms=driver.now_ms) == 1
    assert await driver.hear_bell()
    assert (await driver.claim_one()).id == claim.id
    assert await driver.members(keys.delayed(driver.queue)) == {}


async def test_promote_takes_no_more_than_its_limit(driver: QueueDriver) -> None:
    await driver.submit_many(3)
    for claim in await driver.claim(3):
        await driver.release(claim, delay_s=1)
    driver.pass_time(1)
    assert [await driver.promote(limit=2) for _ in range(2)] == [2, 1]
    async with unchanged(driver.redis):
        assert await driver.promote(limit=2) == 0


@pytest.mark.parametrize(("begun", "status"), [(False, "aborted"), (True, "canceled")])
async def test_a_late_prediction_ends_at_its_release(driver: QueueDriver, begun: bool, status: str) -> None:
    claim = await driver.claimed(lifetime_ms=10_000, deadline_status="aborted")
    if begun:
        await driver.begin(claim)
    driver.pass_time(10)
    assert await driver.release(claim, spent=begun) == "late"
    assert (await driver.record(claim.id)).status == status
