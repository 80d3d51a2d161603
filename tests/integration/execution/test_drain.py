"""Test how runs are stopped: by their caller, by their deadline, and by a SIGTERM that drains the director."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest

from director.broker import keys
from director.broker.news import Wakeup
from director.broker.scripts import Scripts
from director.core.ids import partition_of
from director.servers.runners.cog import CogRunner
from tests.support.cog import cog_process
from tests.support.eventually import LIMIT_S, eventually
from tests.support.live_director import Caller, Gate, Live, Tally, supervised_cog
from tests.support.scripted_cog import Exchange, answer, frame, scripted_cog, stream
from tests.support.sink import Answer, sink

pytestmark = pytest.mark.cog


async def test_drain_finishes_runs_and_claims_nothing_more(caller: Caller, live: Live, gate: Gate) -> None:
    async with live.process() as director:
        running = await caller.running(n=1, gate=str(gate))
        waiting = await caller.submit(n=1)
        director.send(signal.SIGTERM)
        await director.says("draining")
        gate.open()
        assert await director.exit_code() == 0
        assert director.said("director ended")
    assert (await caller.ended(running))["status"] == "succeeded"
    record = await caller.record(waiting)
    assert (record.status, record.claims) == ("starting", 0)


@pytest.mark.faults
async def test_server_that_ignores_sigterm_is_asked_to_end_when_idle(
    caller: Caller, live: Live, folder: Path, gate: Gate
) -> None:
    async with cog_process(folder) as cog, live.process(cog.url, end_servers=True) as director:
        running = await caller.running(n=1, gate=str(gate))
        director.send(signal.SIGTERM)
        await director.says("draining")
        assert not cog.exited()
        gate.open()
        assert await director.exit_code() == 0
        await eventually(cog.exited, "Cog ended", limit_s=20)
    assert (await caller.ended(running))["status"] == "succeeded"


@pytest.mark.faults
async def test_run_beyond_the_drain_time_is_released_and_run_elsewhere(
    caller: Caller, live: Live, gate: Gate, tally: Tally
) -> None:
    async with live.process(drain_s=0) as director:
        asked = await caller.submit(n=1, gate=str(gate), count=str(tally))
        await caller.shows(asked, output=["a0"])
        director.send(signal.SIGTERM)
        assert await director.exit_code() == 0
        given_back = director.said("claim given back")
        assert [(each["spent"], each["became"]) for each in given_back] == [(False, "waiting")]
    handed = await caller.get(asked)
    assert (handed["status"], handed["output"], handed["started_at"]) == ("starting", None, None)
    assert (await caller.record(asked)).attempt == 0
    gate.open()
    async with live.director():
        assert (await caller.ended(asked))["output"] == ["a0"]
    assert (await caller.record(asked)).attempt == 1
    assert tally.runs == 2


async def test_drained_run_ends_where_retries_are_forbidden(
    caller: Caller, live: Live, gate: Gate, tally: Tally
) -> None:
    async with live.process(drain_s=0, on_lost="fail") as director:
        asked = await caller.submit(n=1, gate=str(gate), count=str(tally))
        await caller.shows(asked, output=["a0"])
        waiting = await caller.submit(n=1, count=str(tally))
        director.send(signal.SIGTERM)
        assert await director.exit_code() == 0
        [given_back] = director.said("claim given back")
        assert (given_back["code"], given_back["became"]) == ("drained", "dead")
    ended = await caller.ended(asked)
    assert (ended["status"], ended["code"]) == ("failed", "drained")
    assert ended["error"] == "The run had begun when its director was drained, and it may not run again."
    assert await caller.dead() == [asked]
    gate.open()
    async with live.director(on_lost="fail"):
        assert (await caller.ended(waiting))["status"] == "succeeded"
    assert tally.runs == 2, "each once"


@pytest.mark.faults
async def test_run_that_ignores_its_cancel_is_released_unspent(
    caller: Caller, live: Live, folder: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.execution.active_claims.DRAIN_WAIT_S", 0.2)
    async with supervised_cog(folder) as cog, live.director(cog.url, drain_s=0) as director:
        asked = await caller.submit(n=1, gate=str(gate), then="stubborn")
        await caller.shows(asked, output=["a0"])
        assert await director.missing() == ""
        await director.drain()
        assert await director.missing() == "draining"
        assert len(director.claims) == 0
        record = await caller.record(asked)
        assert (record.status, record.attempt, record.claims) == ("starting", 0, 1)
        gate.open()


@pytest.mark.faults
async def test_second_signal_exits_at_once_and_leaves_the_claim_leased(caller: Caller, live: Live, gate: Gate) -> None:
    async with live.process(drain_s=3600) as director:
        asked = await caller.submit(n=1, gate=str(gate))
        await caller.shows(asked, output=["a0"])
        director.send(signal.SIGINT)
        await director.says("draining")
        director.send(signal.SIGINT)
        assert await director.exit_code() == 0
        assert director.said("drain cut short")
        assert not director.said("claim given back")
    record = await caller.record(asked)
    assert (record.status, record.attempt) == ("processing", 1)
    assert await caller.redis.zrange(keys.lease(caller.queue), 0, -1) == [asked.encode()]


async def test_claim_in_flight_at_the_start_of_a_drain_still_runs(
    caller: Caller, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed, answered = _slow_claims(monkeypatch)
    async with live.director() as director:
        asked = await caller.submit(n=1)
        await asyncio.wait_for(claimed.wait(), LIMIT_S)
        draining = asyncio.create_task(director.drain())
        await eventually(lambda: director._claiming and director._claiming.consumer._loop.is_stopping, "it drains")
        answered.set()
        await draining
        assert (await caller.get(asked))["status"] == "succeeded"
        assert len(director.claims) == 0


async def test_claim_that_arrives_after_the_drain_time_is_released_unstarted(
    caller: Caller, live: Live, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed, answered = _slow_claims(monkeypatch)
    async with live.director(drain_s=0) as director:
        asked = await caller.submit(n=1, count=str(tally))
        await asyncio.wait_for(claimed.wait(), LIMIT_S)
        draining = asyncio.create_task(director.drain())
        await eventually(lambda: director.claims._stopped, "it hands back")
        answered.set()
        await draining
    record = await caller.record(asked)
    assert (record.status, record.attempt, record.holder) == ("starting", 0, director.name)
    assert tally.runs == 0
    assert await caller.kinds(asked) == ["created", "released"]


def _slow_claims(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Hold back the answer of the first claim that returns something until the second event is set.

    No claim waits behind the wakeup: a drain cuts that wait, and asks again for what the claim brought.
    """
    claimed, answered = asyncio.Event(), asyncio.Event()
    claim = Scripts.claim

    async def slow(scripts: Scripts, *args: Any, **options: Any) -> Any:
        claims = await claim(scripts, *args, **options)
        if claims and not claimed.is_set():
            claimed.set()
            await answered.wait()
        return claims

    monkeypatch.setattr(Scripts, "claim", slow)
    monkeypatch.setattr(Wakeup, "carries", False)
    return claimed, answered


@pytest.mark.faults
async def test_drain_does_not_wait_for_a_silent_receiver(caller: Caller, live: Live, cog_url: str) -> None:
    async with sink() as receiver, live.process(webhook_allow="loopback") as director:
        receiver.answer = Answer(delay_s=3600)
        asked = await caller.submit(n=1, webhook=receiver.url, webhook_events="completed")
        await caller.ended(asked)
        director.send(signal.SIGTERM)
        assert await director.exit_code() == 0
    owed = keys.owed(partition_of(asked))
    assert await caller.redis.zrange(owed, 0, -1) == [asked.encode()], "what was not told is left to the courier"
    await caller.redis.delete(owed)


async def test_cancel_stops_the_run_keeps_its_output_and_frees_the_slot(caller: Caller, live: Live, gate: Gate) -> None:
    async with live.director(lease_s=60):  # only the wakeup can deliver it, not a heartbeat
        asked = await caller.submit(n=2, gate=str(gate))
        await caller.shows(asked, output=["a0", "a1"])
        assert await caller.cancel(asked) == "asked"
        ended = await caller.ended(asked)
        assert (ended["status"], ended["error"], ended["output"]) == ("canceled", None, ["a0", "a1"])
        assert (await caller.ended(await caller.submit(n=1)))["status"] == "succeeded"
    await caller.nothing_is_left()


async def test_heartbeat_delivers_a_cancel_whose_wakeup_was_lost(
    caller: Caller, live: Live, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.execution.heartbeat.Heartbeat._listen", lambda _: anyio.sleep_forever())
    async with live.director(lease_s=0.9):
        asked = await caller.running(n=1, gate=str(gate))
        await caller.cancel(asked)
        assert (await caller.ended(asked))["status"] == "canceled"


async def test_cancel_that_the_server_missed_is_repeated(
    caller: Caller, live: Live, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    cancel = CogRunner.cancel

    async def deaf_at_first(self: CogRunner, prediction_id: str) -> bool:
        heard.append(prediction_id)
        return len(heard) > 2 and await cancel(self, prediction_id)

    async with live.director():
        asked = await caller.submit(n=1, gate=str(gate))
        await caller.shows(asked, output=["a0"])
        monkeypatch.setattr(CogRunner, "cancel", deaf_at_first)
        await caller.cancel(asked)
        assert (await caller.ended(asked))["status"] == "canceled"
    assert heard[:3] == [asked] * 3


async def test_canceled_run_that_succeeds_is_still_shown_as_canceled(caller: Caller, live: Live) -> None:
    asked = caller.new_id()
    canceled = anyio.Event()

    async def then(exchange: Exchange) -> None:
        await canceled.wait()
        last = frame("completed", {"id": asked, "status": "succeeded", "output": ["all of it"]})
        await exchange.write(b"%x\r\n%s\r\n" % (len(last), last))

    async with scripted_cog() as cog, live.director(cog.url):
        cog.on("POST", f"/predictions/{asked}/cancel", answer(404, b"{}"))
        cog.on("PUT", f"/predictions/{asked}", stream(frame("start", {}), then=then))
        await caller.submit(asked)
        await caller.shows(asked, status="processing")
        before = len(cog.asked("POST"))
        await caller.cancel(asked)
        await eventually(lambda: cog.asked("POST"), "it is asked to stop", until=lambda posts: len(posts) > before)
        canceled.set()
        assert (await caller.ended(asked))["status"] == "canceled"


@pytest.mark.parametrize("late", ["", "aborted"])
async def test_deadline_during_the_run_cancels_it(caller: Caller, live: Live, gate: Gate, late: str) -> None:
    async with live.director(lease_s=0.9):
        asked = await caller.running(n=1, gate=str(gate), lifetime_ms=3_600_000, deadline_status=late)
        await caller.redis.hset(keys.record(asked), "deadline", "1")  # type: ignore[misc]
        ended = await caller.ended(asked)
        assert (ended["status"], ended["error"]) == ("canceled", None)
        assert ended["started_at"] is not None
        assert (await caller.ended(await caller.submit(n=1)))["status"] == "succeeded"


async def test_deadline_before_the_run_ends_it_as_waiting(caller: Caller, live: Live) -> None:
    ends: list[dict[str, Any]] = []
    # the director never has a free slot
    async with scripted_cog() as cog, live.director(cog.url, lease_s=0.3):
        for late in ("", "aborted"):
            asked = await caller.submit(lifetime_ms=300, deadline_status=late)
            ends.append(await caller.ended(asked))
    assert [(end["status"], end.get("code"), end["started_at"]) for end in ends] == [
        ("failed", "deadline_exceeded", None),
        ("aborted", None, None),
    ]
