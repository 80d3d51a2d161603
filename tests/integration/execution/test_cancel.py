"""Test how a run is stopped: by its caller, by its deadline, and when the wakeup is lost."""

from typing import Any

import anyio
import pytest

from director.servers.runners.cog import CogRunner
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live
from tests.support.scripted_cog import Exchange, answer, frame, scripted_cog, stream

pytestmark = [pytest.mark.anyio, pytest.mark.cog]


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


async def test_waiting_prediction_is_canceled_without_a_run(caller: Caller, live: Live, gate: Gate) -> None:
    async with live.director():
        running = await caller.running(n=1, gate=str(gate))
        waiting = await caller.submit(n=1)
        assert await caller.cancel(waiting) == "canceled"
        gate.open()
        assert (await caller.ended(running))["status"] == "succeeded"
        assert (await caller.ended(await caller.submit(n=1)))["status"] == "succeeded"
    ended = await caller.get(waiting)
    assert (ended["status"], ended["started_at"]) == ("canceled", None)


@pytest.mark.parametrize("late", ["", "aborted"])
async def test_deadline_during_the_run_cancels_it(caller: Caller, live: Live, gate: Gate, late: str) -> None:
    async with live.director(lease_s=0.9):
        asked = await caller.submit(n=1, gate=str(gate), lifetime_ms=1000, late=late)
        ended = await caller.ended(asked)
        assert (ended["status"], ended["error"]) == ("canceled", None)
        assert ended["started_at"] is not None
        assert (await caller.ended(await caller.submit(n=1)))["status"] == "succeeded"


async def test_deadline_before_the_run_ends_it_as_waiting(caller: Caller, live: Live) -> None:
    ends: list[dict[str, Any]] = []
    # the director never has a free slot
    async with scripted_cog() as cog, live.director(cog.url, lease_s=0.3):
        for late in ("", "aborted"):
            asked = await caller.submit(lifetime_ms=300, late=late)
            ends.append(await caller.ended(asked))
    assert [(end["status"], end.get("code"), end["started_at"]) for end in ends] == [
        ("failed", "deadline_exceeded", None),
        ("aborted", None, None),
    ]
