"""A queue's policy decides whether, how often and when lost claims run again."""

from typing import Any, Final

import pytest

from director.broker import keys
from director.broker.gatherer import Gatherer
from director.core.policy import Policy
from director.core.schema import Claim
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.queue_driver import MODEL, VERSION, QueueDriver


async def obey(catalog: Catalog, **policy: object) -> None:
    """Register the queue again with this policy."""
    await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy(**policy))


async def waits(driver: QueueDriver, *, jitter: float, losses: int) -> list[float]:
    """Return the backoff after each of these losses, in seconds."""
    found = []
    await driver.submit()
    for _ in range(losses):
        claim = await driver.claim_one()
        driver.pass_time(15)
        gatherer = Gatherer(driver.redis)
        names = [keys.lease(driver.queue)]
        await gatherer.call("reap", names, [9, jitter, 15_000, driver.now_ms])
        await gatherer.aclose()
        due_ms = (await driver.members(keys.delayed(driver.queue))).get(claim.id, driver.now_ms)
        found.append((due_ms - driver.now_ms) / 1000)
        driver.now_ms = due_ms
        await driver.promote()
    return found


async def test_retries_back_off_to_the_cap_after_an_immediate_first_one(driver: QueueDriver, catalog: Catalog) -> None:
    await obey(catalog, attempts=7, backoff_s=2, backoff_cap_s=20, breaker_after=0)
    assert await waits(driver, jitter=1, losses=6) == [0, 4, 8, 16, 20, 20]


async def test_full_jitter_can_draw_any_part_of_the_backoff(driver: QueueDriver, catalog: Catalog) -> None:
    await obey(catalog, attempts=7, backoff_s=2, backoff_cap_s=20, breaker_after=0)
    assert await waits(driver, jitter=0.5, losses=4) == [0, 2, 4, 8]
    assert await waits(driver, jitter=0, losses=4) == [0, 0, 0, 0]


@pytest.mark.parametrize("policy", [{"on_lost": "fail"}, {"attempts": 1}], ids=["no repeat", "one attempt"])
async def test_a_lost_claim_is_final_by_policy(driver: QueueDriver, catalog: Catalog, policy: dict[str, Any]) -> None:
    await obey(catalog, **policy)
    claim = await driver.claimed()
    driver.pass_time(15)
    assert await driver.reap() == {claim.id: "dead"}
    record = await driver.record(claim.id)
    assert (record.status, record.code) == ("failed", "director_lost")
    assert list(await driver.members(keys.dead(driver.queue))) == [claim.id]


@pytest.mark.parametrize(("spent", "code"), [(True, "server_lost"), (False, "drained")], ids=["server lost", "drained"])
async def test_a_started_run_ends_where_nothing_may_run_twice(
    driver: QueueDriver, catalog: Catalog, spent: bool, code: str
) -> None:
    await obey(catalog, on_lost="fail")
    claim = await driver.claimed()
    await driver.begin(claim, ("output", b"1"))
    assert await driver.release(claim, spent=spent, error="It had begun.", code=code) == "dead"
    record = await driver.record(claim.id)
    assert (record.status, record.error, record.code) == ("failed", "It had begun.", code)
    assert (record.attempt, record.history) == (1, f"1 d1 {driver.now_ms} {driver.now_ms} {code}")
    assert list(await driver.members(keys.dead(driver.queue))) == [claim.id]
    assert await driver.claim() == []
    assert await driver.release(claim, spent=spent, code=code) == "lost", "twice is once"


LOSSES: Final = {
    "server lost": (True, "server_lost"),
    "drained": (False, "drained"),
    "director lost": (None, "director_lost"),
}


async def lose(driver: QueueDriver, claim: Claim, loss: str) -> str:
    """Take the claim away in this way. Return what became of the prediction."""
    spent, code = LOSSES[loss]
    if spent is None:
        driver.pass_time(15)
        return (await driver.reap())[claim.id]
    return await driver.release(claim, spent=spent, error="It may not run again.", code=code, began=True)


@pytest.mark.parametrize("loss", LOSSES)
async def test_run_that_has_shown_output_is_not_repeated(driver: QueueDriver, loss: str) -> None:
    claim = await driver.claimed(once_shown=True)
    await driver.begin(claim, ("output", b"1"))
    assert await lose(driver, claim, loss) == "dead"
    record = await driver.record(claim.id)
    assert (record.status, record.code) == ("failed", LOSSES[loss][1])
    assert "may not run again" in record.error
    assert await driver.claim() == []
    assert await driver.revive(claim.id), "an operator may let it run again"
    again = await driver.claim_one()
    await driver.begin(again)
    assert await lose(driver, again, loss) == "waiting", "it has shown nothing since"


@pytest.mark.parametrize("loss", LOSSES)
async def test_run_that_has_shown_nothing_is_repeated(driver: QueueDriver, loss: str) -> None:
    claim = await driver.claimed(once_shown=True)
    await driver.begin(claim, ("logs", b'"x"'))
    assert await lose(driver, claim, loss) == "waiting"
    assert (await driver.claim_one()).id == claim.id


async def test_run_that_has_shown_output_can_be_canceled_and_succeed(driver: QueueDriver) -> None:
    canceled, finished = await driver.claimed(once_shown=True), await driver.claimed(once_shown=True)
    for claim in (canceled, finished):
        await driver.begin(claim, ("output", b"1"))
    await driver.cancel(canceled.id)
    assert await driver.release(canceled, code="drained", error="It may not run again.") == "canceled"
    assert await driver.finish(finished, output=b"[1]", seq=3)
    for claim in (canceled, finished):
        assert await driver.field(claim.id, "shown") == "", "an ended record needs it no more"


async def test_the_holder_reports_whether_an_unrecorded_run_began(driver: QueueDriver, catalog: Catalog) -> None:
    await obey(catalog, on_lost="fail")
    claim = await driver.claimed()
    await driver.begin(claim)
    assert await driver.release(claim, code="refused", began=False) == "waiting", "a slow refusal"
    assert await driver.release(await driver.claim_one(), spent=True, code="server_lost", began=True) == "dead"


async def test_a_drained_probe_that_began_lets_another_probe_start(driver: QueueDriver, catalog: Catalog) -> None:
    await obey(catalog, on_lost="fail")
    await driver.submit()
    await driver.submit()
    await driver.redis.hset(keys.meta(driver.queue), mapping={"breaker": "open", "open_until": driver.now_ms})
    claim = await driver.claim_one()
    await driver.begin(claim)
    assert await driver.release(claim, code="drained") == "dead"
    assert (await driver.meta("breaker"), await driver.meta("probe")) == ("open", "")
    assert len(await driver.claim(2)) == 1
