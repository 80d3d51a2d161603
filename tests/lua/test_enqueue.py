"""enqueue accepts a prediction whole, and once."""

import pytest

from director.broker import keys
from director.broker.replies import Accepted
from director.core.errors import IdempotencyMismatch
from tests.support.keyspace import unchanged
from tests.support.queue_driver import ACCOUNT, MODEL, QueueDriver, enqueue


async def test_enqueue_writes_record_input_entry_event_and_index(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(
        streams=[3], data=b'{"a":[]}', webhook="https://example.com", webhook_events="completed"
    )
    record = await driver.record(prediction_id)
    assert (record.status, record.created, record.attempt, record.claims) == ("starting", driver.now_ms, 0, 0)
    assert (record.account, record.model, record.webhook) == (ACCOUNT, MODEL, "https://example.com")
    assert await driver.redis.get(keys.input_data(prediction_id)) == b'{"a":[]}'
    assert await driver.entries() == {3: [prediction_id]}
    assert await driver.kinds(prediction_id) == ["created"]
    assert await driver.members(keys.live(driver.queue)) == {prediction_id: driver.now_ms}
    assert await driver.members(keys.deadline(driver.queue)) == {}


async def test_a_waiting_record_has_no_empty_field(driver: QueueDriver) -> None:
    for prediction_id in await driver.submit_many(2):  # one in a stream, one in its account's backlog
        assert all((await driver.redis.hgetall(keys.record(prediction_id))).values())


async def test_a_callers_trace_is_kept_and_returned_with_the_claim(driver: QueueDriver) -> None:
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "rojo=1"}
    claim = await driver.claimed(**trace)
    assert claim.record.trace == trace
    untraced = await driver.submit()
    assert not [name for name in await driver.redis.hkeys(keys.record(untraced)) if name.startswith(b"trace")]
    assert (await driver.record(untraced)).trace == {}


async def test_the_entry_carries_only_id_and_cost_and_no_key_expires(driver: QueueDriver) -> None:
    prediction_id, stream = await driver.submit(streams=[0], cost=2.5), keys.stream(driver.queue, "normal", 0)
    [(_, fields)] = await driver.redis.xrange(stream)
    assert fields == {b"id": prediction_id.encode(), b"cost": b"2.5"}
    for key in (keys.record(prediction_id), keys.input_data(prediction_id), keys.events(prediction_id), stream):
        assert await driver.lifetime_s(key) == -1


async def test_the_callers_bytes_come_back_unchanged(driver: QueueDriver) -> None:
    data = b'{"logs":[],"n":1.0,"big":12345678901234567890,"z":"\x00\xff"}'
    claim = await driver.claimed(data=data)
    assert bytes(claim.input) == data


async def test_the_same_id_twice_is_accepted_once(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    async with unchanged(driver.redis):
        driver.pass_time(5)
        await driver.submit(prediction_id, data=b"other")


async def test_a_repeated_id_returns_its_first_creation_time(driver: QueueDriver) -> None:
    fields = {"queue": driver.queue, "account": ACCOUNT, "model": MODEL, "version": "v", "shard": (0,)}
    prediction_id = driver.new_id()
    first = await enqueue(driver.scripts, prediction_id, **fields, now_ms=driver.now_ms)
    again = await enqueue(driver.scripts, prediction_id, **fields, now_ms=driver.now_ms + 9)
    assert first.created_ms == driver.now_ms
    assert again == Accepted(prediction_id, created_ms=driver.now_ms)


async def test_an_idempotency_key_stands_for_its_first_prediction_for_a_day(driver: QueueDriver) -> None:
    first = await driver.submit(idempotency=("digest", "body1"))
    assert await driver.lifetime_s(keys.idempotency(account=ACCOUNT, model=MODEL, digest="digest")) == 24 * 3600
    async with unchanged(driver.redis):
        assert await driver.submit(idempotency=("digest", "body1")) == first
        with pytest.raises(IdempotencyMismatch):
            await driver.submit(idempotency=("digest", "body2"))
    assert await driver.submit(account="theirs", idempotency=("digest", "body1")) != first


async def test_an_idempotency_key_is_free_once_its_prediction_is_gone(driver: QueueDriver) -> None:
    first = await driver.submit(idempotency=("digest", "body"))
    await driver.finish(await driver.claim_one())
    for key in (keys.record(first), keys.input_data(first), keys.events(first)):
        await driver.redis.delete(key)
    second = await driver.submit(idempotency=("digest", "body2"))
    assert second != first
    assert await driver.submit(idempotency=("digest", "body2")) == second


async def test_enqueue_picks_the_stream_of_the_shard_with_least_waiting(driver: QueueDriver) -> None:
    await driver.have_slots(32)
    first = await driver.submit(account="one", streams=[7, 2])
    assert await driver.entries() == {7: [first]}, "the first preference wins a tie"
    for name in ("one", "two"):
        await driver.submit(account=name, streams=[4])
    quiet = await driver.submit(streams=[4, 9])
    assert (await driver.entries())[9] == [quiet]


async def test_claimed_predictions_do_not_count_as_waiting(driver: QueueDriver) -> None:
    await driver.have_slots(32)
    await driver.submit_many(3, streams=[4])
    await driver.claim(3)
    await driver.submit(streams=[9])
    placed = await driver.submit(streams=[9, 4])
    assert placed in (await driver.entries())[4], "three run in it, but none waits"


async def test_a_shard_from_before_a_resize_maps_to_existing_streams(driver: QueueDriver) -> None:
    await driver.scripts.resize(driver.queue, streams=4)
    prediction_id = await driver.submit(streams=[14])
    assert await driver.entries() == {2: [prediction_id]}


async def test_deadline_and_start_deadline_count_from_the_servers_time(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(lifetime_ms=60_000, deadline_status="aborted", start_by_ms=5_000)
    record = await driver.record(prediction_id)
    assert (record.deadline, record.deadline_status) == (driver.now_ms + 60_000, "aborted")
    assert await driver.field(prediction_id, "start_by") == str(driver.now_ms + 5_000)
    assert await driver.members(keys.deadline(driver.queue)) == {prediction_id: driver.now_ms + 5_000}


async def test_a_silent_wakeup_list_gets_one_wakeup(driver: QueueDriver) -> None:
    await driver.submit_many(3)
    assert await driver.bell() == 1
    assert 0 < await driver.lifetime_s(keys.bell(driver.queue)) <= 60


async def test_enqueue_uses_the_servers_time_by_default(driver: QueueDriver) -> None:
    prediction_id = driver.new_id()
    driver.now_ms = None
    await driver.submit(prediction_id)
    seconds, micros = await driver.redis.time()
    now_ms = seconds * 1000 + micros // 1000
    assert now_ms - 60_000 < (await driver.record(prediction_id)).created <= now_ms


async def test_a_lane_that_no_claim_reads_is_refused(driver: QueueDriver) -> None:
    with pytest.raises(ValueError, match="unknown lane"):
        await driver.submit(lane="urgent")
