"""After a large clock step no stored time is believed for longer than without the step."""

from typing import Any

import pytest

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.account_limits import Bucket
from director.core.ids import partition_of
from director.core.policy import Policy
from director.core.schema import Claim
from director.store.directors import Directors
from tests.support.queue_driver import VERSION, QueueDriver

BACK_S = 600


async def opened(driver: QueueDriver, **policy: Any) -> None:
    """Open the breaker for 30 seconds."""
    options = {"breaker_after": 1, "breaker_cool_s": 30, **policy}
    await driver.scripts.register(driver.queue, version=VERSION, policy=Policy(**options))
    await driver.submit_many(3)
    for number in range(2):
        claim = await driver.claim_one(consumer=f"d{number}")
        assert await driver.release(claim, spent=True, delay_s=1) == "delayed"
        driver.pass_time(1.5)
    assert await driver.meta("breaker") == "open"
    await driver.hear_bell()


@pytest.mark.parametrize("mode", ["hold", "fail"])
async def test_an_open_breaker_probes_at_once_after_a_step(driver: QueueDriver, mode: str) -> None:
    await opened(driver, breaker_mode=mode)
    driver.pass_time(-BACK_S)
    assert await driver.submit()
    await driver.hear_bell()
    await driver.promote()
    assert await driver.hear_bell()
    assert len(await driver.claim(5)) == 1


async def test_a_step_shorter_than_the_cool_time_changes_nothing(driver: QueueDriver) -> None:
    await opened(driver)
    driver.pass_time(-1)
    assert await driver.claim(5) == []


async def test_reconcile_finds_a_retry_delayed_beyond_any_backoff(driver: QueueDriver) -> None:
    claim = await driver.claimed()
    assert await driver.release(claim, spent=True, delay_s=60) == "delayed"
    planned = await driver.submit(start_after=driver.now_ms + 86_400_000)
    driver.pass_time(-BACK_S)
    assert await driver.promote() == 0
    assert await driver.reconcile() == (0, {claim.id: "placed"})
    assert [again.id for again in await driver.claim(2)] == [claim.id]
    assert await driver.reconcile() == (0, {})
    await driver.cancel(planned)


async def test_a_director_silent_since_before_the_step_no_longer_counts(driver: QueueDriver) -> None:
    await driver.have_slots(4, consumer="dead")
    await driver.have_slots(2, consumer="alive")
    assert (await driver.stats()).slots == 6
    driver.pass_time(-BACK_S)
    await driver.have_slots(2, consumer="alive")
    stats = await driver.stats()
    assert (stats.slots, stats.directors) == (2, 1)


async def test_a_director_silent_since_before_the_step_appears_silent(driver: QueueDriver) -> None:
    seconds, _ = await driver.redis.time()
    driver.now_ms = (seconds + BACK_S) * 1000
    await driver.have_slots(1, consumer="dead")
    [found] = await Directors(driver.redis).of([driver.queue])
    assert not found.is_alive


async def test_a_bucket_refills_after_a_step(scripts: Scripts, redis: Any) -> None:
    async def take(at_s: int) -> bool:
        name = f"at {at_s}"
        return (await scripts.reserve("acme", bucket, id=name, now_ms=at_s * 1000)).allowed

    bucket = Bucket("create", rate=1.0, burst=1)
    assert await take(BACK_S)
    assert not await take(0)
    assert await take(1)
    await redis.delete(keys.usage("acme"))


@pytest.mark.parametrize("step_s", [60, -600])
@pytest.mark.parametrize("is_told", [True, False], ids=["it-was-told-of", "nothing-was-told"])
async def test_a_run_is_charged_by_its_directors_clock(driver: QueueDriver, step_s: int, is_told: bool) -> None:
    claim = await driver.claimed(metered=True)
    driver.pass_time(1)
    if is_told:
        await driver.begin(claim)
    driver.pass_time(2)
    driver.pass_time(step_s)
    await driver.extend(claim)
    assert await driver.finish(claim, ran_ms=2_000, claimed_ms=3_000)
    owed = keys.unspent(partition_of(claim.id))
    assert list((await driver.members(owed)).values()) == [2_000]
    assert (await driver.stats()).service_ms == 3_000
    record = await driver.record(claim.id)
    assert record.started is not None
    assert record.completed == record.started + 2_000
    await driver.redis.delete(owed)


async def test_a_delayed_finish_keeps_its_start_time(driver: QueueDriver, claim: Claim) -> None:
    await driver.begin(claim)
    began = (await driver.record(claim.id)).started
    driver.pass_time(2 + 20)  # it ran, and its end waited for others that were sent before
    assert await driver.finish(claim, ran_ms=2_000, claimed_ms=2_000)
    assert (await driver.record(claim.id)).started == began


async def test_a_director_silent_since_before_the_step_serves_no_queue(driver: QueueDriver) -> None:
    await driver.have_slots(1, consumer="dead")
    assert await driver.scripts.unregister(driver.queue, now_ms=driver.now_ms) == "served"
    driver.pass_time(-BACK_S)
    assert await driver.scripts.unregister(driver.queue, now_ms=driver.now_ms) == "done"


async def test_a_released_run_is_charged_by_its_directors_clock(driver: QueueDriver) -> None:
    for account in ("stranger", "a", "a", "b", "b"):  # the first is ready, and the others wait for a turn
        await driver.submit(account=account)
    await driver.claim_one()
    claim = await driver.claim_one()
    assert claim.record.account == "a"
    await driver.begin(claim)
    driver.pass_time(3 + 60)
    assert await driver.release(claim, spent=True, claimed_ms=3_000) == "waiting"
    turns = await driver.redis.zrange(keys.vtime(driver.queue, "normal"), 0, -1, withscores=True)
    assert dict(turns) == {b"a": 3, b"b": 0}
