"""A paused queue or tenant is handed nothing, loses nothing and continues when it is resumed."""

from director.core.ids import LANES
from tests.support.keyspace import unchanged
from tests.support.queue_driver import ACCOUNT, QueueDriver


async def test_a_paused_queue_accepts_work_and_hands_none_out_until_resumed(driver: QueueDriver) -> None:
    ids = [await driver.submit()]
    await driver.hear_bell()
    await driver.pause()
    async with unchanged(driver.redis):
        await driver.pause()
        assert await driver.claim(5) == []
        assert not await driver.hear_bell()
    ids.append(await driver.submit())
    await driver.hear_bell()
    await driver.pause(paused=False)
    assert await driver.hear_bell()
    assert [claim.id for claim in await driver.claim(5)] == ids


async def test_ready_predictions_of_a_paused_tenant_are_skipped_for_others(driver: QueueDriver) -> None:
    await driver.have_slots(9)
    mine = [await driver.submit(streams=[0]) for _ in range(2)]
    others = [await driver.submit(account="other", streams=[0]) for _ in range(2)]
    await driver.pause(account=ACCOUNT)
    assert [claim.id for claim in await driver.claim(9)] == others
    assert await driver.backlog() == mine, "in their order, for when it is resumed"


async def test_a_paused_tenant_can_submit_and_resuming_sends_a_wakeup(driver: QueueDriver) -> None:
    await driver.pause(account=ACCOUNT)
    ids = [await driver.submit(lane=lane) for lane in LANES]
    await driver.hear_bell()
    assert await driver.claim(9) == []
    assert not await driver.hear_bell()
    await driver.pause(paused=False, account=ACCOUNT)
    assert await driver.hear_bell()
    assert [claim.id for claim in await driver.claim(9)] == ids


async def test_a_resumed_tenant_is_not_owed_the_paused_time(driver: QueueDriver) -> None:
    for account in (ACCOUNT, "other"):
        await driver.submit_many(20, account=account)
    await driver.pause(account=ACCOUNT)
    for claim in await driver.claim(10):
        await driver.run(claim, 1)
    await driver.pause(paused=False, account=ACCOUNT)
    served = [claim.record.account for claim in await driver.claim(10)]
    assert served.count(ACCOUNT) in (5, 6), "half, and it is level with the other again"


async def test_pausing_or_resuming_a_tenant_twice_has_one_effect(driver: QueueDriver) -> None:
    await driver.submit_many(3)
    async with unchanged(driver.redis):
        await driver.pause(paused=False, account="never-paused")
    for paused in (True, False):
        await driver.pause(paused=paused, account=ACCOUNT)
        async with unchanged(driver.redis, expiry=False):
            await driver.pause(paused=paused, account=ACCOUNT)


async def test_nothing_of_a_suspended_tenant_is_handed_out(driver: QueueDriver) -> None:
    await driver.have_slots(2)
    ready = [await driver.submit(streams=[0]) for _ in range(2)]
    waiting = await driver.submit()
    await driver.pause(account=ACCOUNT, revision=1)
    later = await driver.submit(lane="high")
    assert await driver.claim_all() == []
    await driver.pause(paused=False, account=ACCOUNT, revision=2)
    assert {claim.id for claim in await driver.claim_all()} == {*ready, waiting, later}


async def test_an_older_change_that_arrives_late_undoes_nothing(driver: QueueDriver) -> None:
    await driver.submit()
    await driver.pause(account=ACCOUNT, revision=3)
    async with unchanged(driver.redis):
        await driver.pause(paused=False, account=ACCOUNT, revision=2)
        await driver.pause(account=ACCOUNT, revision=1)
    assert await driver.claim() == []


async def test_a_suspension_and_an_operators_pause_are_independent(driver: QueueDriver) -> None:
    await driver.submit()
    await driver.pause(account=ACCOUNT)
    await driver.pause(account=ACCOUNT, revision=1)
    await driver.pause(paused=False, account=ACCOUNT, revision=2)
    assert await driver.claim() == []
    await driver.pause(account=ACCOUNT, revision=3)
    await driver.pause(paused=False, account=ACCOUNT)
    assert await driver.claim() == []
    await driver.pause(paused=False, account=ACCOUNT, revision=4)
    assert len(await driver.claim()) == 1


async def test_a_waiting_prediction_reports_that_its_tenant_is_suspended(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    await driver.pause(account=ACCOUNT, revision=1)
    outlook = await driver.outlook(prediction_id)
    assert (outlook.reason, outlook.detail, outlook.p50_ms) == ("paused", 2, None)


async def test_resuming_a_suspended_tenant_sends_one_wakeup(driver: QueueDriver) -> None:
    await driver.pause(account=ACCOUNT, revision=1)
    await driver.submit()
    await driver.hear_bell()
    await driver.pause(paused=False, account=ACCOUNT, revision=2)
    assert await driver.hear_bell()
    async with unchanged(driver.redis, expiry=False):
        await driver.pause(paused=False, account=ACCOUNT, revision=2)
