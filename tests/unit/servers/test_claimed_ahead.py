import asyncio
from typing import Any

import pytest

from director.core.schema import Claim
from director.execution.tracker import Stop
from director.servers.runners.runner import Ended, Health, HealthStatus, Outcome
from director.servers.servers import Server, Servers
from tests.support.eventually import eventually, turns
from tests.support.queue_driver import QueueDriver
from tests.support.scripted_runner import ScriptedRunner
from tests.unit.execution.test_executor import Bench, claimed
from tests.unit.execution.test_executor import bench as bench


class Waiting:
    """A claim that waits for the one slot of a server, which another run has."""

    def __init__(self, bench: Bench, claim: Claim) -> None:
        self.claim = claim
        self.runner = ScriptedRunner()
        self.server = Server(self.runner, 1, health=Health(status=HealthStatus.READY), run_s=0.1)
        self.servers = Servers([self.server])
        [self.before] = self.servers.permits.take()
        [self.permit] = self.servers.permits.take_ahead()
        self.run = asyncio.create_task(bench.executor(self.servers).execute(claim, self.permit))


async def test_claim_ahead_starts_once_the_slot_is_released(bench: Bench, driver: QueueDriver) -> None:
    waiting = Waiting(bench, await claimed(driver))
    await eventually(lambda: len(bench.claims), "held", until=(1).__eq__)
    await turns(10)
    assert not waiting.runner.started.is_set()
    waiting.servers.permits.release(waiting.before)
    await asyncio.wait_for(waiting.runner.started.wait(), 5)
    assert waiting.server.busy == 1
    waiting.runner.goes_on.set()
    await asyncio.wait_for(waiting.run, 5)
    assert waiting.server.busy == 0


async def test_permits_are_no_more_than_asked_for() -> None:
    runner = ScriptedRunner(Ended(outcome=Outcome.SUCCEEDED))
    permits = Servers([Server(runner, 8, health=Health(status=HealthStatus.READY), run_s=0.001)]).permits
    assert [permit.has_slot for permit in await permits.wait(4, ahead=True)] == [True] * 4
    assert [permit.has_slot for permit in await permits.wait(6, ahead=True)] == [True] * 4 + [False] * 2


async def test_slot_kept_past_its_permit_is_handed_on() -> None:
    server = Server(ScriptedRunner(), 1, health=Health(status=HealthStatus.READY), run_s=0.1)
    servers = Servers([server])
    [permit], [ahead] = servers.permits.take(), servers.permits.take_ahead()
    rest = asyncio.get_running_loop().create_future()
    servers.permits.start(permit)
    servers.judge_end(permit, Ended(outcome=Outcome.CANCELED, goes_on=rest), unasked=False)
    servers.permits.release(permit)
    assert not ahead.has_slot
    rest.set_result(None)
    assert await servers.permits.wait_for_slot(ahead)
    assert (server.busy, server.running) == (1, 0)


@pytest.mark.parametrize(
    ("why", "then"),
    [(Stop.USER, ("canceled", 1)), (Stop.DRAIN, ("starting", 0)), (None, ("starting", 1))],
    ids=["canceled", "drained", "lost"],
)
async def test_claim_that_ends_in_line_never_starts(
    bench: Bench, driver: QueueDriver, why: Stop | None, then: tuple[str, int]
) -> None:
    claim = await claimed(driver)
    waiting = Waiting(bench, claim)
    held = await eventually(lambda: bench.claims.find(claim.id, claim.token), "held")
    if why is None:
        held.lose()
    else:
        held.stop(why)
    await asyncio.wait_for(waiting.run, 5)
    record: Any = await driver.record(claim.id)
    assert (record.status, record.attempt) == then
    assert not waiting.runner.started.is_set()
    assert not waiting.server.waiting
    waiting.servers.permits.release(waiting.before)
    assert waiting.server.busy == 0


async def test_overlong_wait_releases_unspent(
    bench: Bench, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.servers.servers.SLOT_WITHIN_S", 0.01)
    claim = await claimed(driver)
    waiting = Waiting(bench, claim)
    await asyncio.wait_for(waiting.run, 5)
    record = await driver.record(claim.id)
    assert (record.status, record.attempt) == ("starting", 0)
    assert not waiting.runner.started.is_set()
    assert waiting.servers.permits.take_ahead() == []
