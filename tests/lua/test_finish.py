"""finish writes the terminal record once, for the holder of the claim."""

import pytest

from director.broker import keys
from director.core.ids import partition_of
from director.core.schema import Claim
from director.core.states import Status
from tests.support.queue_driver import QueueDriver

HOUR_S, WEEK_S = 3600, 7 * 86_400


async def test_finish_writes_the_end_and_removes_the_claim(driver: QueueDriver) -> None:
    claim = await driver.claimed(lifetime_ms=60_000)
    await driver.begin(claim)
    driver.pass_time(3)
    assert await driver.finish(claim, output=b"[1]", logs="done\n", metrics=b'{"n":1}', error="", code="")
    record = await driver.record(claim.id)
    assert (record.status, record.completed) == ("succeeded", driver.now_ms)
    assert (record.token, record.metrics) == ("", '{"n":1}')
    assert await driver.entries() == {}
    assert await driver.pending() == {}
    for index in (keys.live, keys.lease, keys.deadline, keys.delayed, keys.dead):
        assert await driver.members(index(driver.queue)) == {}
    assert await driver.kinds(claim.id) == ["created", "started", "completed"]


async def test_a_terminal_record_keeps_nothing_of_its_place_and_claim(driver: QueueDriver) -> None:
    await driver.submit_many(2, waiter="api-1")
    first, second = await driver.claim(2)  # only the second was charged: it came from its account's backlog
    await driver.cancel(second.id)
    had = set(await driver.redis.hkeys(keys.record(second.id)))
    await driver.finish(second, Status.CANCELED)
    kept = set(await driver.redis.hkeys(keys.record(second.id)))
    assert had - kept == {b"token", b"mid", b"stream", b"shard", b"arrival", b"charged", b"cancel", b"waiter"}
    assert (await driver.record(first.id)).token == first.token


async def test_time_after_the_run_occupies_no_slot(driver: QueueDriver) -> None:
    claim = await driver.claimed(metered=True)
    await driver.begin(claim)
    driver.pass_time(5)
    assert await driver.finish(claim, ran_ms=5_000, over_ms=3_000)
    assert (await driver.stats()).service_ms == 2_000
    assert list((await driver.members(keys.unspent(partition_of(claim.id)))).values()) == [2_000]
    await driver.redis.delete(keys.unspent(partition_of(claim.id)))
    record = await driver.record(claim.id)
    assert record.completed == driver.now_ms


@pytest.mark.parametrize(
    ("endpoint", "output", "events_s"),
    [("chat", b"[1]", 60), ("chat", b"", HOUR_S), ("", b"[1]", HOUR_S)],
    ids=["call", "call without answer", "plain"],
)
async def test_chunks_of_a_call_go_a_minute_after_its_answer(
    driver: QueueDriver, endpoint: str, output: bytes, events_s: int
) -> None:
    claim = await driver.claimed(endpoint=endpoint)
    seq = await driver.begin(claim, ("output", b"1"))
    assert await driver.finish(claim, output=output, seq=seq)
    ttl_ms = await driver.redis.pttl(keys.events(claim.id))
    assert (events_s - 30) * 1000 < ttl_ms <= events_s * 1000
    if output:
        assert await driver.redis.pttl(keys.output_data(claim.id)) > (HOUR_S - 30) * 1000


async def test_unwritten_events_come_before_the_end(driver: QueueDriver, claim: Claim) -> None:
    await driver.finish(claim, ran_ms=40, events=[("started", b""), ("output", b"1"), ("logs", b'"x"')])
    assert await driver.kinds(claim.id) == ["created", "started", "output", "logs", "completed"]
    record = await driver.record(claim.id)
    assert (record.started, record.seq) == (driver.now_ms - 40, 5)


async def test_events_hidden_by_a_lost_reply_are_not_written_twice(driver: QueueDriver, claim: Claim) -> None:
    await driver.begin(claim, ("output", b"1"))
    await driver.finish(claim, events=[("started", b""), ("output", b"1"), ("output", b"2")])
    assert await driver.kinds(claim.id) == ["created", "started", "output", "output", "completed"]


async def test_numbers_continue_without_a_gap_after_the_server_lost_events(driver: QueueDriver, claim: Claim) -> None:
    await driver.finish(claim, seq=5, events=[("output", b"1")])
    assert await driver.kinds(claim.id) == ["created", "output", "completed"]


async def test_a_refused_start_leaves_no_start_time_and_no_output(driver: QueueDriver, claim: Claim) -> None:
    await driver.finish(claim, Status.FAILED, error="no", code="input_refused", ran_ms=None)
    record = await driver.record(claim.id)
    assert (record.started, record.error, record.code) == (None, "no", "input_refused")
    assert await driver.kinds(claim.id) == ["created", "completed"]
    assert await driver.redis.exists(keys.output_data(claim.id)) == 0


async def test_the_webhook_is_owed_after_the_directors_delivery_time(driver: QueueDriver) -> None:
    claim = await driver.claimed(webhook="https://example.com", webhook_events="start,completed")
    await driver.finish(claim, grace_s=30)
    assert await driver.members(keys.owed(partition_of(claim.id))) == {claim.id: driver.now_ms + 30_000}
    await driver.deliver(claim.id)  # what is owed has no lifetime


@pytest.mark.parametrize("wish", [{}, {"webhook": "https://example.com", "webhook_events": "start,output"}])
async def test_no_webhook_is_owed_without_a_request_for_the_end(driver: QueueDriver, wish: dict[str, str]) -> None:
    claim = await driver.claimed(**wish)
    await driver.finish(claim)
    assert await driver.members(keys.owed(partition_of(claim.id))) == {}
