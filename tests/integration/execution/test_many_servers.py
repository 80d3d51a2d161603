"""Test several servers of one model when one is down, broken, or different from its settings."""

import os
import signal
from pathlib import Path

import pytest

from director.servers.fleet import PAUSES
from director.servers.runners.runner import HealthStatus
from tests.support.cog import write_model
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live, supervised_cog
from tests.support.scripted_cog import HEALTHY, Exchange, Script, answer, scripted_cog

pytestmark = pytest.mark.cog

SLOW = """
    import asyncio
    from cog import BasePredictor

    class Predictor(BasePredictor):
        async def predict(self, text: str = "a") -> str:
            await asyncio.sleep(0.3)  # a model that takes its time
            return text
"""


async def test_dead_server_does_not_stop_the_other_and_is_used_again(
    caller: Caller, live: Live, folder: Path, cog_url: str, gate: Gate
) -> None:
    async with supervised_cog(folder) as cog, live.director(cog.url, cog_url) as director:
        mortal, other = director.servers.all
        await eventually(lambda: mortal.can_run and other.can_run, "both are ready")
        held = [await caller.submit(n=1, gate=str(gate)) for _ in range(2)]
        for each in held:  # a prediction that has not begun is released unspent
            await caller.shows(each, status="processing")
        os.killpg(cog.server.pid, signal.SIGKILL)
        await eventually(lambda: mortal.busy, "its run is known to be lost", until=lambda busy: busy == 0)
        assert (other.can_run, other.busy) == (True, 1)
        await eventually(lambda: mortal.can_run, "it is back")
        gate.open()
        async with live.keeper():
            assert [(await caller.ended(each))["status"] for each in held] == ["succeeded", "succeeded"]
        assert sorted([(await caller.record(each)).attempt for each in held]) == [1, 2]


async def test_server_that_fails_every_run_rests_while_the_other_works(
    caller: Caller, live: Live, cog_url: str
) -> None:
    async with scripted_cog() as broken:
        asked = [caller.new_id() for _ in range(12)]
        for each in asked:
            broken.on("PUT", f"/predictions/{each}", answer(200, {"status": "failed", "error": "CUDA error"}))
        async with live.director(broken.url, cog_url, max_failures=3, count_model_failures=True) as director:
            await eventually(lambda: all(each.can_run for each in director.servers.all), "both are ready")
            ends = []
            for each in asked:
                await caller.submit(each, n=1)
                ends.append((await caller.ended(each))["status"])
            [state] = [each.state for each in director.servers.all if each.runner.url == broken.url]
            assert state == "resting", "also while it waits for its trial: the operator sees it"
        assert ends.count("failed") == 3
        assert ends.count("succeeded") == 9
        assert not broken.asked("POST", "/shutdown"), "it is ready"


@pytest.mark.faults
async def test_ready_server_that_loses_every_run_rests_and_is_not_restarted(caller: Caller, live: Live) -> None:
    async def hang_up(_: Exchange) -> None:
        """Close the connection without an answer."""

    # more attempts than losses: the first one may have all three of them before the others are there
    async with scripted_cog() as cog, live.keeper(), live.director(cog.url, max_failures=3, attempts=9) as director:
        asked = [caller.new_id() for _ in range(3)]
        for each in asked:
            cog.on("PUT", f"/predictions/{each}", Script(hang_up))
            await caller.submit(each)
        [one] = director.servers.all
        await eventually(lambda: one.trust.failures >= 3, "three runs were lost", limit_s=30)
        assert one.state == "resting"
        for each in asked:
            cog.on("PUT", f"/predictions/{each}", answer(200, {"status": "succeeded", "output": ["x"]}))
        assert {(await caller.ended(each))["status"] for each in asked} == {"succeeded"}
        assert not cog.asked("POST", "/shutdown"), "it was ready each time"


async def test_errors_of_the_model_delay_no_run_and_restart_no_server(caller: Caller, live: Live) -> None:
    async with scripted_cog() as raising:
        asked = [caller.new_id() for _ in range(12)]
        for each in asked:
            raising.on("PUT", f"/predictions/{each}", answer(200, {"status": "failed", "error": "CUDA error"}))
        async with live.director(raising.url) as director:
            for each in asked:
                await caller.submit(each)
            assert {(await caller.ended(each))["code"] for each in asked} == {"model_failed"}
            assert director.servers.all[0].can_run
        assert not raising.asked("POST", "/shutdown")


async def test_failing_inputs_of_one_account_delay_no_other(caller: Caller, live: Live, cog_url: str) -> None:
    other = Caller(caller.redis, caller.scripts, account="other")
    async with live.director(max_failures=2, count_model_failures=True) as director:
        await caller.ended(await caller.submit(n=1))
        await other.ended(await other.submit(n=1))
        failing = [await caller.submit(then="raise") for _ in range(6)]
        assert {(await caller.ended(each))["code"] for each in failing} == {"model_failed"}
        assert director.servers.all[0].can_run
        assert (await other.ended(await other.submit(n=1)))["status"] == "succeeded"


async def test_server_that_rejects_the_director_is_not_ready_and_costs_nothing(caller: Caller, live: Live) -> None:
    async with scripted_cog() as cog:
        asked = [caller.new_id() for _ in range(3)]
        paths = [f"/predictions/{each}" for each in asked]
        for path in paths:
            cog.on("PUT", path, answer(401, {"error": "key sk-123 is of the past"}))
        async with live.keeper(), live.director(cog.url, max_failures=0) as director:
            for each in asked:
                await caller.submit(each)
            await eventually(
                director.missing,
                "it is not ready",
                until=lambda missing: missing.startswith("server_auth: The model server answered 401"),
            )
            latest = await caller.submit()
            await eventually(
                lambda: caller.get(latest),
                "who waits is told why",
                until=lambda shown: shown["queue"]["reason"] == "server_auth",
            )
            assert "sk-123" not in str(await director.missing())
            for path in [*paths, f"/predictions/{latest}"]:
                cog.on("PUT", path, answer(200, {"status": "succeeded", "output": ["x"]}))
            assert {(await caller.ended(each))["status"] for each in asked} == {"succeeded"}
        records = [await caller.record(each) for each in asked]
        assert {record.attempt for record in records} == {1}
        assert sum(record.claims for record in records) > len(asked), "one was given back at least once"
        assert not cog.asked("POST", "/shutdown")


@pytest.mark.faults
async def test_server_that_refuses_everything_uses_up_no_claims_or_attempts(caller: Caller, live: Live) -> None:
    async with scripted_cog() as cog:
        asked = caller.new_id()
        refusal = answer(503, {"error": "elsewhere"})
        done = answer(200, {"status": "succeeded", "output": ["x"]})
        cog.on("PUT", f"/predictions/{asked}", refusal, refusal, done)
        async with live.keeper(), live.director(cog.url, max_failures=1) as director:
            await caller.submit(asked)
            await eventually(lambda: director.servers.all[0].is_resting, "it rests")
            missing = await director.missing()
            assert missing == "resting: 1 runs in a row failed on it"
            assert (await caller.ended(asked))["status"] == "succeeded"
        record = await caller.record(asked)
        assert (record.attempt, record.claims) == (1, 3)
        assert not cog.asked("POST", "/shutdown")


@pytest.mark.faults
async def test_overstated_slots_are_corrected_without_a_restart_of_the_server(
    caller: Caller, live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.servers.runners.cog.SLOT_PATIENCE_S", 0.1)
    folder = write_model(tmp_path / "slow", SLOW)
    async with (
        supervised_cog(folder, slots=2) as cog,
        live.keeper(),
        live.director(cog.url, concurrent_predictions=4) as director,
    ):
        await eventually(lambda: director.servers.any_ready(), "it is ready")
        asked = [await caller.submit(text="a") for _ in range(12)]
        assert {(await caller.ended(each))["status"] for each in asked} == {"succeeded"}
        await eventually(lambda: director.servers.standing.slots, "they are counted right", until=(2).__eq__)
        assert director.figures["fewer_slots"] == {cog.url: 2}
        assert cog.starts == 1
        assert {(await caller.record(each)).attempt for each in asked} == {1}


async def test_server_kept_busy_by_a_foreign_client_is_noticed_while_idle(
    caller: Caller, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.servers.fleet.STRANGER_S", 0.01)
    monkeypatch.setitem(PAUSES, HealthStatus.BUSY, 0.02)
    async with scripted_cog() as cog:
        cog.on("GET", "/health-check", answer(200, {**HEALTHY, "status": "BUSY"}))
        async with live.director(cog.url):
            await eventually(lambda: cog.asked("POST", "/shutdown"), "it is asked to end")


@pytest.mark.faults
async def test_failed_setup_is_repeated_where_the_setting_asks_for_it(live: Live, folder: Path) -> None:
    async with (
        supervised_cog(folder, stub="predict.py:Broken", until="SETUP_FAILED") as cog,
        live.director(cog.url, setup_retry_s=0.05),
    ):
        await eventually(lambda: cog.starts == 2, "it was restarted", limit_s=60)
