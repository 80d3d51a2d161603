"""recover finds claims without a lease by their pending entries and takes no others."""

import pytest

from director.broker import keys
from director.core.schema import Claim
from tests.support.keyspace import Keyspace, dump, unchanged
from tests.support.queue_driver import QueueDriver

HOUR_S = 3600.0


async def held(driver: QueueDriver, count: int = 1) -> list[Claim]:
    """Return claims of one stream, oldest entry first."""
    await driver.submit_many(count, streams=[3])
    return await driver.claim(count)


async def all_but_streams(driver: QueueDriver) -> Keyspace:
    """Return all keys but streams, in which a look leaves its time."""
    return {name: value for name, value in (await dump(driver.redis)).items() if ":s" not in name}


@pytest.mark.parametrize("lease", ["missing", "expired"])
async def test_a_claim_without_a_valid_lease_runs_again(driver: QueueDriver, lease: str) -> None:
    [claim] = await held(driver)
    if lease == "missing":
        await driver.redis.delete(keys.lease(driver.queue))
    else:
        driver.pass_time(15)
    await driver.hear_bell()
    assert await driver.recover(3) == ("0-0", {claim.id: "waiting"})
    before, entries = await all_but_streams(driver), await driver.entries()
    assert await driver.recover(3) == ("0-0", {}), "twice is once"
    assert (await all_but_streams(driver), await driver.entries(), await driver.pending()) == (before, entries, {})
    assert await driver.hear_bell()
    assert not await driver.finish(claim)
    assert (await driver.claim_one(consumer="d2")).record.attempt == 2


async def test_a_long_run_with_a_valid_lease_is_never_recovered(driver: QueueDriver) -> None:
    [claim] = await held(driver)
    await driver.begin(claim)
    driver.pass_time(14)
    for _ in range(3):
        assert await driver.recover(3) == ("0-0", {})
    assert await driver.extend(claim) == ["held"]
    assert await driver.pending() == {claim.id: "d1"}, "its holder has it back"
    assert await driver.finish(claim, seq=2)


async def test_a_recently_extended_claim_is_not_examined(driver: QueueDriver) -> None:
    await held(driver)
    await driver.redis.delete(keys.lease(driver.queue))
    before = await all_but_streams(driver)
    assert await driver.recover(3, idle_s=HOUR_S) == ("0-0", {})
    assert await all_but_streams(driver) == before
    assert set((await driver.pending()).values()) == {"d1"}


async def test_the_last_attempt_ends_as_a_dead_letter(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(streams=[3])
    for _ in range(2):
        await driver.release(await driver.claim_one(), spent=True)
    await driver.claim_one()
    await driver.redis.delete(keys.lease(driver.queue))
    number = int(await driver.field(prediction_id, "stream"))
    assert await driver.recover(number) == ("0-0", {prediction_id: "dead"})
    assert (await driver.record(prediction_id)).code == "director_lost"


async def test_only_a_carried_cursor_finds_an_orphan_behind_many_claims(driver: QueueDriver) -> None:
    """The server scans ten entries for each that it may hand out, and hands out only idle ones: all of them here."""
    claims = await held(driver, 40)
    orphan = claims[-1]
    await driver.redis.zrem(keys.lease(driver.queue), orphan.id)
    for _ in range(10):
        cursor, found = await driver.recover(3, count=5)
        assert cursor != "0-0"
        assert found == {}
    calls = 1
    while not found:
        assert cursor != "0-0"
        cursor, found = await driver.recover(3, cursor=cursor, count=5)
        calls += 1
    assert (found, calls) == ({orphan.id: "waiting"}, 8)


async def test_entries_of_terminal_or_unknown_predictions_are_dropped(driver: QueueDriver) -> None:
    stream = keys.stream(driver.queue, "normal", 3)
    prediction_id = await driver.submit(streams=[3])
    await driver.finish(await driver.claim_one())
    for name in (prediction_id, driver.new_id()):
        await driver.redis.xadd(stream, {"id": name, "cost": 1})
    await driver.redis.xreadgroup(keys.GROUP, "stranger", {stream: ">"}, count=9)
    _, found = await driver.recover(3)
    assert set(found.values()) == {"gone"}
    assert await driver.redis.xlen(stream) == 0
    assert await driver.pending() == {}


async def test_the_pending_id_of_a_deleted_entry_is_removed(driver: QueueDriver) -> None:
    [claim] = await held(driver)
    stream = keys.stream(driver.queue, "normal", 3)
    await driver.redis.xdel(stream, await driver.field(claim.id, "mid"))
    assert await driver.recover(3) == ("0-0", {})
    assert (await driver.redis.xpending(stream, keys.GROUP))["pending"] == 0
    driver.pass_time(15)
    assert await driver.reap() == {claim.id: "waiting"}, "its lease was all that was left of it"


async def test_a_waiting_prediction_that_a_stranger_read_is_placed_again(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(streams=[3])
    stream = keys.stream(driver.queue, "normal", 3)
    await driver.redis.xgroup_create(stream, keys.GROUP, "0")
    await driver.redis.xreadgroup(keys.GROUP, "stranger", {stream: ">"}, count=1)
    assert await driver.claim() == []
    assert await driver.recover(3) == ("0-0", {prediction_id: "waiting"})
    claim = await driver.claim_one()
    assert (claim.id, claim.record.attempt) == (prediction_id, 1)


async def test_a_missing_stream_or_group_holds_nothing(driver: QueueDriver) -> None:
    await driver.submit(streams=[3])
    async with unchanged(driver.redis):
        assert await driver.recover(3) == ("0-0", {})
        assert await driver.recover(4) == ("0-0", {})
