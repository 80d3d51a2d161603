"""revive and drop act on dead letters, which keep the history of their attempts."""

import pytest

from director.broker import keys
from director.core.ids import partition_of
from director.core.policy import Policy
from director.core.schema import Claim
from director.core.states import Status
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.keyspace import unchanged
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver

HOUR_S, WEEK_S = 3600, 7 * 86_400


async def test_a_dead_letter_records_the_holder_time_and_end_of_each_attempt(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    await driver.release(await driver.claim_one())
    assert await driver.field(prediction_id, "history") == "", "it was not spent"
    lines = []
    for attempt, holder in enumerate(["d1", "d2", "d3"], start=1):
        claimed_ms = driver.now_ms
        claim = await driver.claim_one(consumer=holder)
        driver.pass_time(15)
        code = "broken" if attempt == 3 else "director_lost"
        lines.append(f"{attempt} {holder} {claimed_ms} {driver.now_ms} {code}")
        if attempt == 3:
            await driver.release(claim, spent=True, error="It broke.", code=code)
        else:
            await driver.reap()
        driver.pass_time(60)
        await driver.promote()
    assert (await driver.field(prediction_id, "history")).split(";") == lines


async def test_dead_letters_without_a_record_leave_the_list_at_the_next_death(driver: QueueDriver) -> None:
    await driver.die()
    driver.pass_time(WEEK_S)
    younger = await driver.die()
    assert list(await driver.members(keys.dead(driver.queue))) == [younger]


async def test_a_revived_prediction_waits_as_new_with_all_attempts_left(driver: QueueDriver) -> None:
    prediction_id = await driver.die(lifetime_ms=60_000, start_by_ms=50_000)
    history = await driver.field(prediction_id, "history")
    driver.pass_time(HOUR_S)
    await driver.hear_bell()
    assert await driver.revive(prediction_id)
    assert await driver.hear_bell()
    record = await driver.record(prediction_id)
    assert (record.status, record.attempt, record.claims, record.revivals) == ("starting", 0, 0, 1)
    assert (record.error, record.code, record.completed, record.deadline) == ("", "", None, None)
    assert await driver.members(keys.dead(driver.queue)) == {}
    assert list(await driver.members(keys.live(driver.queue))) == [prediction_id]
    assert await driver.kinds(prediction_id) == ["revived"]
    assert record.seq == 1
    assert await driver.reconcile() == (0, {})
    claim = await driver.claim_one()
    assert (claim.record.attempt, bytes(claim.input)) == (1, b'{"text":"hi"}')
    assert await driver.field(prediction_id, "history") == history
    for _ in range(2):
        assert await driver.release(claim, spent=True) == "waiting"
        claim = await driver.claim_one()
    assert await driver.finish(claim, seq=claim.record.seq, output=b"1")


async def test_a_dead_letter_keeps_its_input_and_a_revived_one_everything(driver: QueueDriver) -> None:
    prediction_id = await driver.die()
    for key in (keys.record, keys.input_data):
        assert await driver.lifetime_s(key(prediction_id)) == WEEK_S
    assert await driver.lifetime_s(keys.events(prediction_id)) == HOUR_S
    await driver.revive(prediction_id)
    for key in (keys.record, keys.input_data, keys.events):
        assert await driver.lifetime_s(key(prediction_id)) == -1
    await driver.finish(await driver.claim_one())
    assert await driver.lifetime_s(keys.record(prediction_id)) == WEEK_S
    assert await driver.lifetime_s(keys.input_data(prediction_id)) == HOUR_S


async def test_a_revived_prediction_shows_none_of_its_former_output(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    for _ in range(2):
        await driver.release(await driver.claim_one(), spent=True)
    claim = await driver.claim_one()
    await driver.begin(claim, ("output", b"1"), ("logs", b'"old"'))
    assert await driver.release(claim, spent=True) == "dead"
    await driver.revive(prediction_id)
    await driver.begin(await driver.claim_one(), ("output", b"2"))
    stored = await driver.scripts.get(prediction_id)
    assert (bytes(stored.output or b""), stored.logs) == (b"[2]", "")


async def test_the_second_end_owes_a_webhook_of_its_own(driver: QueueDriver) -> None:
    prediction_id = await driver.die(webhook="https://example.com", webhook_events="completed")
    owed = keys.owed(partition_of(prediction_id))
    assert list(await driver.members(owed)) == [prediction_id]
    await driver.revive(prediction_id)
    assert await driver.members(owed) == {}
    await driver.finish(await driver.claim_one())
    assert not await driver.deliver(prediction_id, revivals=0)
    record = await driver.record(prediction_id)
    assert (list(await driver.members(owed)), record.webhook_outcome, record.webhook_attempts) == (
        [prediction_id],
        "",
        0,
    )
    assert await driver.deliver(prediction_id, revivals=1)
    assert await driver.members(owed) == {}


async def test_an_ordinary_failure_is_no_dead_letter(driver: QueueDriver, claim: Claim) -> None:
    await driver.finish(claim, Status.FAILED, error="no")
    async with unchanged(driver.redis):
        assert not await driver.revive(claim.id)
        assert not await driver.drop(claim.id)
        assert not await driver.revive(driver.new_id())


async def test_a_dead_letter_is_revived_once_and_only_with_its_input(driver: QueueDriver) -> None:
    revived, without_input = await driver.die(), await driver.die()
    assert await driver.revive(revived)
    await driver.redis.delete(keys.input_data(without_input))
    async with unchanged(driver.redis):
        assert not await driver.revive(revived)
        assert not await driver.revive(without_input)


async def test_a_dropped_dead_letter_becomes_an_ordinary_failure_that_expires(driver: QueueDriver) -> None:
    prediction_id = await driver.die()
    assert await driver.drop(prediction_id)
    assert await driver.members(keys.dead(driver.queue)) == {}
    assert await driver.lifetime_s(keys.input_data(prediction_id)) == HOUR_S
    assert await driver.lifetime_s(keys.events(prediction_id)) == HOUR_S
    assert await driver.lifetime_s(keys.record(prediction_id)) == WEEK_S
    record = await driver.record(prediction_id)
    assert (record.status, record.code) == ("failed", "broken")
    assert not await driver.revive(prediction_id)


async def test_drop_keeps_the_data_that_an_owed_webhook_needs(driver: QueueDriver, catalog: Catalog) -> None:
    policy = Policy(data_ttl_s=0)  # what drop shortens is gone at once
    await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="echo", policy=policy)
    prediction_id = await driver.die(webhook="https://example.com", webhook_events="completed")
    assert await driver.drop(prediction_id)
    stored = await driver.scripts.get(prediction_id)
    assert bytes(stored.input or b"") == b'{"text":"hi"}'
    assert await driver.kinds(prediction_id) == ["created", "retried", "retried", "completed"]
    assert await driver.scripts.redeliver(prediction_id, account=ACCOUNT, now_ms=driver.now_ms) == "owed"
    assert await driver.deliver(prediction_id)
    assert await driver.lifetime_s(keys.input_data(prediction_id)) == -2, "deliver shortens it"
    assert await driver.lifetime_s(keys.events(prediction_id)) == -2


@pytest.mark.parametrize("lost", ["meta", "record"])
async def test_drop_works_after_the_policy_or_the_record_was_lost(driver: QueueDriver, lost: str) -> None:
    prediction_id = await driver.die()
    await driver.redis.delete(keys.meta(driver.queue) if lost == "meta" else keys.record(prediction_id))
    if lost == "record":
        assert not await driver.revive(prediction_id)
    assert await driver.drop(prediction_id)
    assert await driver.members(keys.dead(driver.queue)) == {}
    assert lost == "record" or await driver.lifetime_s(keys.input_data(prediction_id)) == HOUR_S


async def test_dropping_never_prolongs_a_lifetime_and_twice_is_once(driver: QueueDriver) -> None:
    prediction_id = await driver.die()
    await driver.redis.expire(keys.input_data(prediction_id), 60)
    assert await driver.drop(prediction_id)
    assert await driver.lifetime_s(keys.input_data(prediction_id)) <= 60
    async with unchanged(driver.redis):
        assert not await driver.drop(prediction_id)
