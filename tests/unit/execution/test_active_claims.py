import asyncio
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from director.core.ids import PredictionId, QueueName
from director.core.schema import Claim
from director.execution.active_claims import (
    CANCEL_AGAIN_S,
    CANCEL_ANSWER_S,
    DRAIN_WAIT_S,
    ActiveClaim,
    ActiveClaims,
    Cut,
)
from director.execution.director import HAND_BACK_S, TELL_S
from director.execution.tracker import Limits, Stop, Tracker
from director.local import models
from director.servers.runners.cog import LET_GO_PATIENCE_S
from director.servers.runners.runner import Accepted, Began, Capabilities, RunRequest
from director.store.directors import RunFound
from tests.support.clock import FakeClock
from tests.support.eventually import eventually, turns
from tests.support.scripted_runner import ScriptedRunner
from tests.unit.execution.test_tracker import RECORD

CLAIM = Claim(replace(RECORD, token="nonce-1"), Raw(b"{}"))


class Run:
    """One claim that is held, and a task that follows its run."""

    def __init__(self, *, began: bool = True, runner: ScriptedRunner | None = None) -> None:
        self.clock = FakeClock()
        self.runner = runner or ScriptedRunner()
        self.tracker = Tracker(CLAIM.record, Limits())
        if began:
            self.tracker.apply(Began(), 0.0)
        self.held = ActiveClaim(CLAIM, self.tracker, self.runner, self.clock)
        self.following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        await self.held.follow(self._read())

    async def _read(self) -> None:
        async for event in self.runner.run(RunRequest(id=CLAIM.id, input=CLAIM.input)):
            self.tracker.apply(event, self.clock.monotonic())

    async def canceled(self, times: int) -> None:
        await eventually(lambda: self.runner.cancels, "cancels", until=times.__eq__)

    async def end(self) -> None:
        self.runner.goes_on.set()
        await self.over()

    async def over(self) -> None:
        await asyncio.wait_for(self.following, 5)


class Hanging(ScriptedRunner):
    async def cancel(self, prediction_id: str) -> bool:
        await super().cancel(prediction_id)
        await asyncio.Event().wait()
        return True


async def started(**given: Any) -> Run:
    run = Run(**given)
    await run.runner.started.wait()
    return run


async def test_run_is_asked_to_stop_until_it_ends_and_not_after() -> None:
    run = await started()
    run.held.stop(Stop.USER)
    for times, pause in enumerate((*CANCEL_AGAIN_S, 1.0), 1):
        await run.canceled(times)
        run.clock.pass_time(pause)
    await run.canceled(len(CANCEL_AGAIN_S) + 2)
    await run.end()
    asked = run.runner.cancels
    run.held.stop(Stop.DEADLINE)
    run.clock.pass_time(10)
    await turns()
    assert run.runner.cancels == asked
    assert run.tracker.ended


async def test_a_second_reason_to_stop_asks_no_louder() -> None:
    run = await started()
    run.held.stop(Stop.DRAIN)
    run.held.stop(Stop.USER)
    await run.canceled(1)
    await run.end()
    assert run.runner.cancels == 1
    assert run.tracker.stopped is Stop.USER


@pytest.mark.parametrize("is_rude", [True, False], ids=["rude", "silent"])
async def test_failed_cancel_does_not_prevent_the_next(monkeypatch: pytest.MonkeyPatch, is_rude: bool) -> None:
    monkeypatch.setattr("director.execution.active_claims.CANCEL_ANSWER_S", 0.01)
    run = await started(runner=Hanging())
    run.runner.is_rude = is_rude
    run.held.stop(Stop.USER)

    def asked() -> int:
        run.clock.pass_time(0.1)
        return run.runner.cancels

    await eventually(asked, "it is asked again and again", until=(3).__eq__)
    await run.end()


@pytest.mark.parametrize("before", [None, Stop.USER, Stop.DEADLINE, Stop.RUN_LIMIT])
async def test_drain_gives_up_sooner_on_a_run_that_ignores_its_cancel(before: Stop | None) -> None:
    run = await started()
    if before is not None:
        run.held.stop(before)
    run.held.stop(Stop.DRAIN)
    await run.canceled(1)
    run.held.stop(Stop.USER)  # wins no time
    run.clock.pass_time(DRAIN_WAIT_S)
    await run.over()
    assert run.held.cut is Cut.STUCK


class Resuming(ScriptedRunner):
    """Its runs can be followed by another director, once they are accepted."""

    capabilities = Capabilities(resumes=True)


async def test_drain_waits_for_the_remote_id_of_a_resumable_run() -> None:
    run = await started(runner=Resuming())
    run.held.stop(Stop.DRAIN)
    await turns()
    run.tracker.apply(Accepted("remote"), 0.0)
    await turns()
    run.clock.pass_time(CANCEL_AGAIN_S[0])
    await run.over()
    assert (run.runner.cancels, run.held.cut) == (0, Cut.LEFT)


def test_a_drain_has_time_left_to_hand_back_what_it_gave_up() -> None:
    assert DRAIN_WAIT_S + CANCEL_ANSWER_S + max(CANCEL_AGAIN_S) + LET_GO_PATIENCE_S < HAND_BACK_S
    assert models.HAND_BACK_S > HAND_BACK_S + TELL_S  # before `up` kills it


async def test_follower_of_a_lost_claim_continues_and_can_be_canceled() -> None:
    run = await started()
    run.held.lose()
    await run.over()
    assert (run.following.cancelled(), run.following.cancelling()) == (False, 0)
    run = await started()
    run.held.lose()
    run.following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run.over()
    assert run.following.cancelled()


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "not begun"])
async def test_run_without_a_claim_or_a_start_is_released_without_a_cancel(is_lost: bool) -> None:
    run = await started(began=is_lost)
    if is_lost:
        run.held.lose()
    run.held.stop(Stop.USER)
    await run.over()
    assert run.held.cut is (None if is_lost else Cut.NEVER_BEGAN)
    assert run.runner.let_go.is_set()
    assert run.runner.cancels == 0


async def test_a_claim_that_is_lost_before_its_run_starts_starts_none() -> None:
    run = Run()
    run.held.lose()
    await run.over()
    assert not run.runner.started.is_set()


async def test_a_claim_is_found_by_its_token_while_it_is_held() -> None:
    run, claims = Run(), ActiveClaims()
    claims.add(run.held)
    assert claims.of_queue(CLAIM.record.queue) == [(CLAIM.id, "nonce-1")]
    assert claims.of_queue(QueueName("acme/echo:b2b2b2b2b2b2")) == []
    assert claims.find(CLAIM.id, "nonce-1") is run.held
    assert claims.find(CLAIM.id, "nonce-2") is None
    run.held.lose()
    assert claims.of_queue(CLAIM.record.queue) == []  # there is nothing to extend any more
    claims.remove(run.held)
    assert claims.find(CLAIM.id, "nonce-1") is None
    await run.over()


async def test_newer_claim_of_a_prediction_replaces_the_older() -> None:
    older, newer, claims = Run(), Run(), ActiveClaims()
    await older.runner.started.wait()
    newer.held.claim = Claim(replace(CLAIM.record, token="nonce-2"), CLAIM.input)
    claims.add(older.held)
    claims.add(newer.held)
    await older.over()
    assert (older.held.is_lost, newer.held.is_lost) == (True, False)
    assert older.runner.let_go.is_set()
    claims.remove(older.held)
    assert claims.of_queue(CLAIM.record.queue) == [(CLAIM.id, "nonce-2")]
    claims.remove(newer.held)
    assert len(claims) == 0
    for run in (older, newer):
        run.held.lose()
        await run.over()


async def test_fault_while_a_run_is_released_hides_no_cancel() -> None:
    """Else the claim would go on, and who waits for it with it: for as long as Redis is away."""

    async def fails() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("while it hangs up")

    for is_lost, is_canceled in ((False, True), (True, True), (True, False)):
        held = ActiveClaim(CLAIM, Tracker(CLAIM.record, Limits()), ScriptedRunner(), FakeClock())
        following = asyncio.create_task(held.follow(fails()))
        await turns()
        if is_lost:
            held.lose()
        if is_canceled:
            following.cancel()
        await asyncio.wait({following})
        assert following.cancelled() is is_canceled, (is_lost, is_canceled)
        assert following.cancelling() == is_canceled
        if not is_canceled:
            assert isinstance(following.exception(), RuntimeError)


async def test_claim_lost_at_the_moment_of_its_answer_interrupts_nothing_later() -> None:
    answer = asyncio.get_running_loop().create_future()

    async def read() -> None:
        await answer

    async def follow() -> str:
        await held.follow(read())
        await turns()
        return "went on"

    held = ActiveClaim(CLAIM, Tracker(CLAIM.record, Limits()), ScriptedRunner(), FakeClock())
    following = asyncio.create_task(follow())
    await turns()
    answer.set_result(None)
    held.lose()
    held.lose()
    assert await following == "went on"
    assert following.cancelling() == 0


async def test_oldest_run_of_a_queue_is_the_one_that_began_first() -> None:
    claims, waits, first, second = ActiveClaims(), await started(began=False), await started(), await started()
    for number, run in enumerate((waits, first, second)):
        run.held.claim = replace(CLAIM, record=replace(CLAIM.record, id=PredictionId(f"run-{number}")))
        run.held.limit(60)
        claims.add(run.held)
    second.clock.pass_time(20)
    first.clock.pass_time(30)
    queue = CLAIM.record.queue
    assert claims.oldest(queue, now_ms=100_000) == RunFound(id=PredictionId("run-1"), since_ms=70_000, limit_s=60)
    assert claims.oldest(QueueName("acme/other:0123456789ab"), now_ms=100_000) is None
    await first.end()
    assert claims.oldest(queue, now_ms=100_000) == RunFound(id=PredictionId("run-2"), since_ms=80_000, limit_s=60)
    await second.end()
    assert claims.oldest(queue, now_ms=100_000) is None
    await waits.end()
