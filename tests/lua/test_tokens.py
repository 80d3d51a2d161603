"""Only the fencing token holds a claim: a stale, foreign or empty one writes nothing."""

import pytest

from director.broker import keys
from director.core.schema import Claim
from director.core.states import Status
from tests.support.keyspace import dump
from tests.support.queue_driver import QueueDriver


async def write_with(driver: QueueDriver, claim: Claim, token: str) -> dict[str, object]:
    """Return the answers of each of the holder's calls to this token."""
    scripts, now_ms = driver.scripts, driver.now_ms
    [extended] = await scripts.extend(
        driver.queue, consumer=claim.record.holder, lease_s=15, claims=[(claim.id, token)], now_ms=now_ms
    )
    advanced = await scripts.advance(
        claim.id, token=token, seq=claim.record.seq, ran_ms=0, events=[("logs", b'"x"')], now_ms=now_ms
    )
    return {
        "extend": extended,
        "advance": advanced.hold,
        "release": await scripts.release(claim.id, token=token, spent=True, now_ms=now_ms),
        "finish": await scripts.finish(
            claim.id, queue=driver.queue, token=token, status=Status.SUCCEEDED, output=b"1", now_ms=now_ms
        ),
    }


RECOUNTED = (b"slots", b"starting", b"setup_failed", b"server_auth", b"recounted", b"moved_at")
LOST = {"extend": "lost", "advance": "lost", "release": "lost", "finish": False}


async def snapshot(driver: QueueDriver) -> dict[str, object]:
    """Return all keys but the directors' heartbeats, which are written even if all claims are lost."""
    meta = await driver.redis.hgetall(keys.meta(driver.queue))
    signs = {keys.directors(driver.queue), keys.slots(driver.queue), keys.meta(driver.queue)}
    rest = {name: what for name, what in (await dump(driver.redis)).items() if name not in signs}
    return rest | {name.decode(): value for name, value in meta.items() if name not in RECOUNTED}


@pytest.mark.parametrize("stage", ["waits", "claimed by another", "finished by another"])
async def test_a_stale_token_writes_nothing(driver: QueueDriver, claim: Claim, stage: str) -> None:
    driver.pass_time(15)
    await driver.reap()
    if stage != "waits":
        other = await driver.claim_one(consumer="d2")
        if stage == "finished by another":
            await driver.finish(other, output=b"2")
    before = await snapshot(driver)
    assert await write_with(driver, claim, claim.token) == LOST
    assert await snapshot(driver) == before


@pytest.mark.parametrize("stage", ["waiting", "claimed", "canceled"])
async def test_an_empty_token_is_no_claim(driver: QueueDriver, stage: str) -> None:
    prediction_id = await driver.submit()
    if stage == "claimed":
        await driver.claim_one()
    elif stage == "canceled":
        await driver.cancel(prediction_id)
    before = await snapshot(driver)
    assert await write_with(driver, Claim(await driver.record(prediction_id), b""), "") == LOST
    assert await snapshot(driver) == before


async def test_an_unknown_prediction_has_no_holder(driver: QueueDriver, claim: Claim) -> None:
    await driver.finish(claim)
    await driver.redis.flushall()
    assert await write_with(driver, claim, claim.token) == LOST
    assert await snapshot(driver) == {}
