"""advance writes the start of a run and its events, in order and once."""

from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from director.broker import keys
from director.broker.replies import Advanced, parse_news
from director.core.schema import Claim, Event
from tests.support.keyspace import unchanged
from tests.support.queue_driver import QueueDriver


async def test_a_started_run_is_written_with_its_time(driver: QueueDriver, claim: Claim) -> None:
    driver.pass_time(2)
    answer = await driver.scripts.advance(
        claim.id, token=claim.token, seq=1, ran_ms=500, events=[("started", b"")], now_ms=driver.now_ms
    )
    assert answer == Advanced("held", 2, driver.now_ms - 500)
    record = await driver.record(claim.id)
    assert (record.status, record.started, record.seq) == ("processing", driver.now_ms - 500, 2)
    assert await driver.kinds(claim.id) == ["created", "started"]


async def test_events_are_numbered_without_gaps_and_written_once(driver: QueueDriver, claim: Claim) -> None:
    assert await driver.begin(claim, ("output", b"1"), ("logs", b'"x"')) == 4
    async with unchanged(driver.redis):
        assert await driver.begin(claim, ("output", b"1"), ("logs", b'"x"')) == 4
    entries = await driver.redis.lrange(keys.events(claim.id), 0, -1)
    assert len(entries) == (await driver.record(claim.id)).seq == 4
    assert entries[2] == f"output {driver.now_ms} 1".encode()


async def test_events_before_the_start_leave_the_status_starting(driver: QueueDriver, claim: Claim) -> None:
    answer = await driver.scripts.advance(claim.id, token=claim.token, seq=1, ran_ms=None, events=[("logs", b'"x"')])
    assert answer == Advanced("held", 2, None)
    assert (await driver.record(claim.id)).status == "starting"


@pytest.fixture
async def said(driver: QueueDriver, claim: Claim) -> AsyncGenerator[Callable[[], Awaitable[bytes]]]:
    """Return a function that waits for the next message about the claim."""
    async with driver.redis.pubsub(ignore_subscribe_messages=True) as listener:
        await listener.subscribe(keys.channel(claim.id))
        await listener.get_message(timeout=5)  # the answer to subscribe

        async def hear() -> bytes:
            message: bytes = (await listener.get_message(timeout=5))["data"]
            return message

        yield hear


LARGE = b'"' + b"x" * 2048 + b'"'


@pytest.mark.parametrize(("text", "told"), [(b'"a b"', b'2 logs 0 "a b"'), (LARGE, b"2")])
async def test_one_small_event_is_published_and_a_large_one_only_by_number(
    driver: QueueDriver, claim: Claim, said: Callable[[], Awaitable[bytes]], text: bytes, told: bytes
) -> None:
    for _ in range(2):  # the second is a retry after a lost reply, and writes nothing
        await driver.scripts.advance(claim.id, token=claim.token, seq=1, ran_ms=0, events=[("logs", text)], now_ms=0)
    assert [await said(), await said()] == [told, b"2"]


async def test_several_small_events_are_published_together(
    driver: QueueDriver, claim: Claim, said: Callable[[], Awaitable[bytes]]
) -> None:
    events = [("started", b""), ("output", b'{"a": "b\\n c"}'), ("logs", b'"d"')]
    await driver.scripts.advance(claim.id, token=claim.token, seq=1, ran_ms=0, events=events, now_ms=0)
    message = await said()
    assert parse_news(message) == [Event(2 + at, kind, 0, data) for at, (kind, data) in enumerate(events)]
    _, _, entry = message.partition(b" ")
    assert not entry, "release 0.3.0 takes it for a number, and reads the log"
    large = [("output", b"1"), ("output", LARGE)]
    await driver.scripts.advance(claim.id, token=claim.token, seq=4, ran_ms=0, events=large, now_ms=0)
    assert await said() == b"6"


@pytest.mark.parametrize("message", [b"7 output 1 a\0b", b"x y", b"1 \xff"])
def test_message_that_cannot_be_read_sends_its_reader_to_the_log(message: bytes) -> None:
    assert parse_news(message) == []


@pytest.mark.parametrize(
    ("once_shown", "events", "shown"),
    [
        (True, [("output", b"1")], "1"),
        (True, [("logs", b'"x"'), ("output", b"1"), ("metric", b"{}")], "1"),
        (True, [("logs", b'"output"'), ("role", b"{}")], ""),
        (False, [("output", b"1")], ""),
    ],
)
async def test_output_is_noted_where_it_may_be_shown_once(
    driver: QueueDriver, once_shown: bool, events: list[tuple[str, bytes]], shown: str
) -> None:
    claim = await driver.claimed(once_shown=once_shown)
    await driver.scripts.advance(claim.id, token="stale", seq=1, ran_ms=0, events=[("output", b"1")])
    assert await driver.field(claim.id, "shown") == "", "a stale claim"
    await driver.begin(claim, *events)
    assert await driver.field(claim.id, "shown") == shown
    await driver.begin(claim, *events, ("logs", b'"more"'))
    assert await driver.field(claim.id, "shown") == shown, "and stays"


async def test_advance_returns_a_requested_cancel(driver: QueueDriver, claim: Claim) -> None:
    await driver.cancel(claim.id)
    answer = await driver.scripts.advance(claim.id, token=claim.token, seq=1, ran_ms=0, events=[])
    assert (answer.hold, answer.seq) == ("user", 1)


async def test_a_retry_after_a_lost_reply_can_add_more_events(driver: QueueDriver, claim: Claim) -> None:
    await driver.begin(claim, ("output", b"1"))
    assert await driver.begin(claim, ("output", b"1"), ("output", b"2")) == 4
    assert await driver.kinds(claim.id) == ["created", "started", "output", "output"]


async def test_numbers_continue_without_a_gap_after_the_server_lost_events(driver: QueueDriver, claim: Claim) -> None:
    answer = await driver.scripts.advance(claim.id, token=claim.token, seq=5, ran_ms=0, events=[("logs", b'"x"')])
    assert answer.seq == 2, "numbered on from what the server has, without a gap"
    assert await driver.kinds(claim.id) == ["created", "logs"]


async def test_the_model_servers_run_id_stays_until_its_holder_changes_it(driver: QueueDriver, claim: Claim) -> None:
    for token, remote, kept in (("another", "a:0", ""), (claim.token, "a:1", "a:1"), (claim.token, "", "a:1")):
        await driver.scripts.advance(claim.id, token=token, seq=1, ran_ms=0, events=[], remote=remote)
        assert (await driver.record(claim.id)).remote == kept
    await driver.scripts.advance(claim.id, token=claim.token, seq=1, ran_ms=0, events=[], remote="a:2")
    assert (await driver.record(claim.id)).remote == "a:2"


@pytest.mark.parametrize(("how", "kept"), [("drained", "a:1"), ("failed", ""), ("silent", "a:1"), ("revived", "")])
async def test_the_next_claim_follows_the_run_unless_it_failed(driver: QueueDriver, how: str, kept: str) -> None:
    claim = await driver.claimed()
    await driver.scripts.advance(claim.id, token=claim.token, seq=1, ran_ms=0, events=[], remote="a:1")
    match how:
        case "drained" | "failed":
            await driver.release(claim, spent=how == "failed")
        case "silent":
            driver.pass_time(60)
            await driver.reap()
        case _:
            for _ in range(3):
                driver.pass_time(600)
                await driver.reap()
                driver.pass_time(600)
                await driver.promote()
                await driver.claim()
            assert await driver.revive(claim.id)
    if how != "revived":
        assert (await driver.claim_one()).record.remote == kept
    assert (await driver.record(claim.id)).remote == kept
