"""Test the gate of a server whose model is put to rest and loaded: a swap costs no run, no attempt and no trust."""

import asyncio

from msgspec.structs import replace

from director.broker.replies import Swap
from director.servers.fleet import Watch
from director.servers.runners.runner import Health, HealthStatus
from director.servers.servers import Permit, Server, Servers
from tests.support.clock import FakeClock
from tests.support.eventually import eventually, turns
from tests.support.scripted_runner import ScriptedRunner

READY = Health(status=HealthStatus.READY, since="first")
AWAY = Health(status=HealthStatus.UNREACHABLE)
FAILED = Health(status=HealthStatus.SETUP_FAILED, since="second")
SWAP = Swap(reason="waiting_for_device", eta_s=3, late_s=5, slots=2)


class Swapped:
    """A ready server with two slots, under watch."""

    def __init__(self, *, run_s: float = 0.1) -> None:
        self.runner = ScriptedRunner()
        self.server = Server(self.runner, 2, health=READY, since="first", run_s=run_s)
        self.servers = Servers([self.server])
        self.registered = 0
        self.watch = Watch(self.server, self.servers, FakeClock(), self._register, self._note_setup)

    async def _register(self, server: Server, health: Health) -> str:
        self.registered += 1
        return ""

    async def _note_setup(self, server: Server, health: Health) -> bool:
        return True

    async def look(self, health: Health) -> Health:
        self.runner.now = health
        return await self.watch.run_once()


async def test_closing_gate_gives_no_permits_and_lets_runs_end() -> None:
    swapped = Swapped()
    permit, other = swapped.servers.permits.take()
    [ahead] = swapped.servers.permits.take_ahead()
    swapped.servers.set_gate(swapped.server, "draining")
    assert not swapped.servers.permits.take()
    assert not swapped.servers.permits.take_ahead()
    swapped.servers.permits.release(permit)
    assert ahead.has_slot, "it has a claim already, so it runs"
    assert not swapped.servers.permits.take()
    swapped.servers.permits.release(other)
    assert not swapped.server.is_drained
    swapped.servers.permits.release(ahead)
    assert swapped.server.is_drained


async def test_permit_that_was_taken_before_holds_up_the_drain() -> None:
    swapped = Swapped()
    permits = swapped.servers.permits.take()
    swapped.servers.set_gate(swapped.server, "draining")
    assert not swapped.server.is_drained, "its claim call may be under way"
    swapped.servers.permits.release(*permits)
    assert swapped.server.is_drained


async def test_health_behind_the_gate_is_no_failure() -> None:
    swapped = Swapped()
    for state in ("draining", "loading"):
        swapped.servers.set_gate(swapped.server, state)  # type: ignore[arg-type]
        for health in (replace(AWAY, status=HealthStatus.STARTING), AWAY, FAILED, AWAY, FAILED):
            await swapped.look(health)
        assert swapped.server.failed_starts == 0
        assert swapped.servers.standing.state == "starting"
        assert not swapped.server.is_locked


async def test_model_that_failed_to_load_twice_counts_as_failed() -> None:
    swapped = Swapped()
    swapped.servers.set_gate(swapped.server, "at_rest")
    swapped.server.failed_starts = 2
    assert swapped.servers.standing.state == "setup_failed"


async def test_ready_server_gets_work_once_its_gate_is_open() -> None:
    swapped = Swapped()
    swapped.servers.set_gate(swapped.server, "at_rest")
    waiting: asyncio.Task[list[Permit]] = asyncio.create_task(swapped.servers.permits.wait())
    swapped.servers.set_gate(swapped.server, "loading")
    await swapped.look(READY)
    assert swapped.server.health.can_run
    assert not waiting.done()
    assert swapped.servers.standing.slots == 0
    swapped.servers.set_gate(swapped.server, "open")
    assert len(await asyncio.wait_for(waiting, 5)) == 2
    assert swapped.servers.standing.slots == 2


async def test_each_load_is_registered_again_and_an_opened_gate_is_not() -> None:
    swapped = Swapped()
    await swapped.look(READY)
    for _ in range(2):
        swapped.servers.set_gate(swapped.server, "at_rest")
        swapped.servers.set_gate(swapped.server, "loading")
        await swapped.look(READY)
        swapped.servers.set_gate(swapped.server, "open")
        await swapped.look(READY)
    assert swapped.registered == 3


async def test_health_of_the_time_before_a_load_is_dropped() -> None:
    swapped = Swapped()
    swapped.servers.set_gate(swapped.server, "draining")
    answer = asyncio.get_running_loop().create_future()
    swapped.runner.health = lambda: answer  # type: ignore[method-assign, assignment]
    looking = asyncio.create_task(swapped.watch.run_once())
    await turns()
    swapped.servers.set_gate(swapped.server, "at_rest")
    swapped.servers.set_gate(swapped.server, "loading")
    answer.set_result(replace(READY, since="before"))
    await looking
    assert not swapped.server.health.can_run
    assert swapped.server.since != "before"


async def test_server_at_rest_is_asked_nothing() -> None:
    swapped = Swapped()
    swapped.servers.set_gate(swapped.server, "at_rest")
    looks = 0

    async def health() -> Health:
        nonlocal looks
        looks += 1
        return READY

    swapped.runner.health = health  # type: ignore[method-assign]
    watching = asyncio.create_task(swapped.watch.run())
    await turns(20)
    assert not looks
    swapped.servers.set_gate(swapped.server, "loading")
    await eventually(lambda: swapped.server.health.can_run, "it is watched while it loads")
    watching.cancel()


async def test_what_is_waited_for_is_news_while_the_gate_is_closed() -> None:
    swapped, news = Swapped(), []
    swapped.servers.set_gate(swapped.server, "at_rest")
    swapped.servers.on_news = lambda: news.append(swapped.servers.standing)
    swapped.servers.expect(swapped.server, SWAP)
    swapped.servers.expect(swapped.server, SWAP)
    assert [standing.swap for standing in news] == [SWAP]
    swapped.servers.set_gate(swapped.server, "loading")
    await swapped.look(READY)
    swapped.servers.set_gate(swapped.server, "open")
    assert swapped.servers.standing.swap is None


async def test_model_that_is_put_to_rest_serves_until_its_load_fails() -> None:
    swapped = Swapped()
    swapped.servers.set_gate(swapped.server, "at_rest")
    assert not swapped.servers.is_serving, "this gate was to stay open"
    swapped.server.gate.may_close = True
    assert swapped.servers.is_serving
    swapped.server.failed_starts = 2
    assert not swapped.servers.is_serving
