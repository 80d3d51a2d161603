"""Test the webhooks of a running prediction with a receiver per test."""

import json
from typing import Any

import pytest
from replicate.webhook import Webhooks, WebhookSigningSecret

from director.broker import keys
from director.core.clock import SystemClock
from director.core.ids import partition_of
from director.store.accounts import Accounts
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live
from tests.support.queue_driver import ACCOUNT
from tests.support.sink import Answer, Received, Sink, sink

pytestmark = [pytest.mark.anyio, pytest.mark.cog]

ALL = "start,output,logs,completed"


def body(received: Received) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(received.body)
    return told


async def completed(receiver: Sink) -> dict[str, Any]:
    """Return the terminal webhook, which is the last one."""
    await eventually(
        lambda: receiver.received and body(receiver.received[-1])["completed_at"], "the terminal webhook came"
    )
    return body(receiver.received[-1])


async def owed(redis: Any, prediction_id: Any) -> float | None:
    score: float | None = await redis.zscore(keys.owed(partition_of(prediction_id)), prediction_id)
    return score


async def test_start_comes_before_output_and_output_before_completed(caller: Caller, live: Live, gate: Gate) -> None:
    async with sink() as receiver, live.director(webhook_allow="loopback", webhook_interval_s=0):
        asked = await caller.submit(n=2, gate=str(gate), webhook=receiver.url, events=ALL)
        await eventually(
            lambda: receiver.received and body(receiver.received[-1])["output"],
            "output is told",
            until=lambda output: output == ["a0", "a1"],
        )
        gate.open()
        last = await completed(receiver)
        ended = await caller.ended(asked)
    told = [body(each) for each in receiver.received]
    assert last == ended
    assert [each["status"] for each in told] == ["processing"] * (len(told) - 1) + ["succeeded"]
    assert {each["started_at"] for each in told} == {ended["started_at"]}
    lengths = [len(each["output"] or []) for each in told]
    assert lengths == sorted(lengths)
    ids = [each.headers["webhook-id"] for each in receiver.received]
    assert len(set(ids)) == len(ids)
    assert ids[0] == f"msg_{asked}_start_1_1"
    assert ids[-1] == f"msg_{asked}_completed"


@pytest.mark.parametrize(("events", "expected"), [("completed", 1), ("start,completed", 2), ("start", 1)])
async def test_caller_gets_only_the_requested_events(caller: Caller, live: Live, events: str, expected: int) -> None:
    async with sink() as receiver:
        async with live.director(webhook_allow="loopback", webhook_interval_s=0) as director:
            asked = await caller.submit(n=3, webhook=receiver.url, events=events)
            await caller.ended(asked)
            await eventually(lambda: director._consumer and not director._consumer._runs, "all is told")
        statuses = [body(each)["status"] for each in receiver.received]
    assert len(statuses) == expected
    assert statuses == (["processing"] if "start" in events else []) + (["succeeded"] if "completed" in events else [])
    assert await owed(caller.redis, asked) is None


async def test_many_outputs_are_few_webhooks_and_the_last_has_everything(caller: Caller, live: Live) -> None:
    async with sink() as receiver, live.director(webhook_allow="loopback"):
        await caller.submit(n=500, webhook=receiver.url, events=ALL)
        last = await completed(receiver)
    assert last["output"] == [f"a{number}" for number in range(500)]
    assert 2 <= len(receiver.received) <= 5


async def test_official_client_accepts_the_signature_of_every_webhook(caller: Caller, live: Live) -> None:
    async with sink() as receiver, live.director(webhook_allow="loopback"):
        await caller.submit(n=1, webhook=receiver.url, events=ALL)
        await completed(receiver)
    [secret] = await Accounts(caller.redis).webhook_secrets(ACCOUNT)
    for each in receiver.received:
        Webhooks.validate(headers=dict(each.headers), body=each.body.decode(), secret=WebhookSigningSecret(key=secret))


async def test_dead_receiver_blocks_neither_the_slot_nor_other_receivers(caller: Caller, live: Live) -> None:
    async with sink() as dead, live.director(webhook_allow="loopback"):
        dead.answer = Answer(delay_s=60)
        first = await caller.submit(n=1, webhook=dead.url, events=ALL)
        assert (await caller.ended(first))["status"] == "succeeded"
        assert (await caller.ended(await caller.submit(n=1)))["status"] == "succeeded"
        assert [body(each)["status"] for each in dead.received] == ["processing"]  # the receiver still holds it


async def test_failed_terminal_webhook_stays_owed_until_its_next_attempt(caller: Caller, live: Live) -> None:
    async with sink() as receiver, live.director(webhook_allow="loopback"):
        receiver.answer = Answer(status=500)
        before = SystemClock().now_ms()
        asked = await caller.submit(n=1, webhook=receiver.url, events="completed")
        record = await eventually(lambda: caller.record(asked), "it is noted", until=lambda record: record.told)
        after = SystemClock().now_ms()
    assert (record.status, record.told, record.tellings) == ("succeeded", "failed", 1)
    due = await owed(caller.redis, asked)
    assert due is not None
    assert before + 1800 <= due <= after + 2200  # the first backoff: two seconds, plus or minus a tenth


async def test_forbidden_receiver_is_recorded_as_refused_and_never_reached(caller: Caller, live: Live) -> None:
    async with sink() as receiver, live.director():
        asked = await caller.submit(n=1, webhook=receiver.url, events=ALL)
        assert (await caller.ended(asked))["status"] == "succeeded"
        record = await eventually(lambda: caller.record(asked), "it is noted", until=lambda record: record.told)
    assert record.told == "refused"
    [*_, told] = await caller.redis.lrange(keys.events(record.id), 0, -1)
    assert told.endswith(b" private_address")
    assert await owed(caller.redis, asked) is None
    assert receiver.received == []


async def test_released_prediction_sends_no_terminal_webhook(caller: Caller, live: Live, gate: Gate) -> None:
    async with sink() as receiver:
        async with live.director(webhook_allow="loopback", drain_s=0) as director:
            await caller.running(n=1, gate=str(gate), webhook=receiver.url, events="start,completed")
            await receiver.arrived(1)
            await director.drain()
        gate.open()
        async with live.director(webhook_allow="loopback"):
            await completed(receiver)
    assert [body(each)["status"] for each in receiver.received] == ["processing", "processing", "succeeded"]
