import asyncio
from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

from director.core.errors import BackendUnavailable
from director.servers.fleet import ACQUIT_S, END_AGAIN_S, LATER_S, SLOW_START_S, STRANGER_S, UNHEALTHY_S, Watch
from director.servers.runners.runner import Capabilities, Ended, Health, HealthStatus, Outcome, Setup
from director.servers.servers import Server, Servers, Trust
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.scripted_runner import ScriptedRunner

READY = Health(status=HealthStatus.READY, since="first", server="coglet 1")
DEFUNCT = Health(status=HealthStatus.DEFUNCT, since="first")
AWAY = Health(status=HealthStatus.UNREACHABLE)
ILL = Health(status=HealthStatus.UNHEALTHY, since="first")
FAILED = Health(status=HealthStatus.SETUP_FAILED, since="first")
BUSY = replace(READY, status=HealthStatus.BUSY)


class Watched:
    """A server under watch."""

    def __init__(self, slots: int = 1) -> None:
        self.clock = FakeClock()
        self.runner = ScriptedRunner()
        self.server = Server(self.runner, slots)
        self.servers = Servers([self.server])
        self.registered: list[str] = []
        self.noted: list[tuple[str, bool]] = []
        self.is_known = True
        self.redis_is_away = False
        self.refusal = ""
        self.watch = Watch(self.server, self.servers, self.clock, self._register, self._note_setup)

    async def _register(self, server: Server, health: Health) -> str:
        assert not server.can_run or self.registered  # before it is given work
        if self.redis_is_away:
            raise BackendUnavailable("away")
        self.registered.append(health.server)
        return self.refusal

    async def _note_setup(self, server: Server, health: Health) -> bool:
        if self.redis_is_away:
            raise BackendUnavailable("away")
        self.noted.append((health.since, health.can_run))
        return self.is_known

    async def look(self, health: Health) -> Health:
        self.runner.now = health
        return await self.watch.run_once()

    async def doubt(self) -> None:
        """A run on it does not stop."""
        [permit] = await self.servers.permits.wait(1)
        self.servers.doubt(permit)
        self.servers.permits.release(permit)

    async def lose(self, account: str = "") -> None:
        """A run on it is lost."""
        [permit] = await self.servers.permits.wait()
        self.servers.judge_end(permit, Ended(outcome=Outcome.LOST, server_is_dead=True), unasked=True, account=account)
        self.servers.permits.release(permit)


@pytest.fixture
async def watched() -> Watched:
    return Watched()


@pytest.fixture
async def wide() -> Watched:
    """A server that is ready while one of its runs hangs."""
    return Watched(slots=2)


async def test_a_server_is_registered_once_for_each_of_its_starts(watched: Watched) -> None:
    await watched.look(replace(READY, status=HealthStatus.STARTING))
    assert not watched.servers.any_ready()
    await watched.look(READY)
    await watched.look(BUSY)
    assert watched.servers.any_ready()
    await watched.look(replace(READY, since="second", server="coglet 2"))
    assert watched.registered == ["coglet 1", "coglet 2"]


async def test_failed_registration_is_repeated_before_any_work(watched: Watched) -> None:
    watched.redis_is_away = True
    with pytest.raises(BackendUnavailable):
        await watched.look(READY)
    assert not watched.servers.any_ready()
    watched.redis_is_away = False
    await watched.look(READY)
    assert watched.registered == ["coglet 1"]
    assert watched.servers.any_ready()


async def test_watch_goes_on_after_a_fault(watched: Watched, caplog: Any) -> None:
    watched.runner.health = health = AsyncMock(side_effect=[UnicodeError("label too long"), READY, READY])  # type: ignore[method-assign]
    watching = asyncio.create_task(watched.watch.run())
    await eventually(lambda: health.await_count, "looked once", until=(1).__eq__)
    watched.clock.pass_time(LATER_S)
    await eventually(watched.servers.any_ready, "ready")
    assert "looking at a model server broke" in caplog.messages
    watching.cancel()


async def test_ready_server_is_not_restarted_for_the_runs_it_lost(watched: Watched) -> None:
    watched.server.trust = Trust(5)
    for _ in range(5):
        await watched.look(READY)
        await watched.lose()
        assert not watched.servers.any_ready(), "it is asked first"
        await watched.look(READY)
        watched.clock.pass_time(ACQUIT_S)
        await watched.look(READY)
    assert (watched.runner.shutdowns, watched.server.doubt.is_set()) == (0, False)
    assert watched.server.state == "resting", "it rests instead"


@pytest.mark.parametrize("restarts", [True, False])
async def test_account_whose_runs_break_connections_makes_no_server_rest(watched: Watched, restarts: bool) -> None:
    """A server that cannot be asked to end has a new start with each connection that breaks."""
    watched.server.trust = Trust(3)
    watched.runner.capabilities = Capabilities(restarts=restarts)
    since = 0

    async def break_connection(account: str) -> None:
        nonlocal since
        await watched.lose(account)
        since += not restarts
        await watched.look(replace(READY, since=f"{since}"))
        watched.clock.pass_time(ACQUIT_S)
        await watched.look(replace(READY, since=f"{since}"))

    await watched.look(replace(READY, since="0"))
    await break_connection("other")
    for _ in range(10):
        await break_connection("poison")
    assert (watched.server.trust.failures, watched.server.is_resting) == (2, False)
    await break_connection("other")
    assert watched.server.is_resting


async def test_lost_server_that_ends_a_little_later_gets_no_work_meanwhile(watched: Watched) -> None:
    await watched.look(READY)
    await watched.lose()
    watched.clock.pass_time(ACQUIT_S / 2)
    for health in (READY, AWAY):
        await watched.look(health)
        assert not watched.servers.any_ready()
    await watched.look(replace(READY, since="second"))
    assert watched.servers.any_ready()
    assert watched.runner.shutdowns == 0


async def test_server_that_stays_busy_with_nothing_of_ours_is_restarted(watched: Watched) -> None:
    await watched.look(READY)
    await watched.lose()
    await watched.look(BUSY)
    watched.clock.pass_time(STRANGER_S - 0.1)
    await watched.look(BUSY)
    assert (watched.runner.shutdowns, watched.servers.any_ready()) == (0, False)
    watched.clock.pass_time(0.1)
    await watched.look(BUSY)
    assert watched.runner.shutdowns == 1


async def test_server_found_busy_with_a_stranger_is_restarted_at_once(watched: Watched) -> None:
    for _ in range(2):
        await watched.look(BUSY)
        watched.clock.pass_time(STRANGER_S)
    assert watched.runner.shutdowns == 1


async def test_ready_server_of_one_slot_has_no_run_that_hangs(watched: Watched) -> None:
    await watched.look(READY)
    await watched.doubt()
    await watched.look(AWAY)
    watched.clock.pass_time(UNHEALTHY_S)
    await watched.look(READY)
    assert watched.servers.any_ready()
    assert watched.runner.shutdowns == 0


async def test_busy_server_with_a_run_that_hangs_is_restarted_at_once(watched: Watched) -> None:
    await watched.look(READY)
    await watched.doubt()
    await watched.look(BUSY)
    assert watched.runner.shutdowns == 1


async def test_server_that_did_not_end_and_is_ready_gets_work(watched: Watched) -> None:
    await watched.look(READY)
    await watched.lose()
    watched.clock.pass_time(STRANGER_S)
    for _ in range(2):
        await watched.look(BUSY)
        watched.clock.pass_time(END_AGAIN_S)
    await watched.look(READY)
    assert watched.servers.any_ready()
    assert watched.runner.shutdowns == 1


async def test_server_that_refuses_our_key_is_not_restarted(watched: Watched) -> None:
    for _ in range(3):
        await watched.look(replace(ILL, is_locked=True))
        watched.clock.pass_time(10 * UNHEALTHY_S)
    assert watched.runner.shutdowns == 0


async def test_hanging_server_gets_no_work_until_its_restart(wide: Watched) -> None:
    await wide.look(READY)
    await wide.doubt()
    assert (await wide.look(READY)).status is HealthStatus.DEFUNCT
    assert wide.runner.shutdowns == 1
    for health in (READY, AWAY, READY):  # it takes its time, and is not to be trusted before it is another one
        await wide.look(health)
        assert not wide.servers.any_ready()
    await wide.look(replace(READY, since="second"))
    assert wide.servers.any_ready()
    assert wide.runner.shutdowns == 1


async def test_doubted_server_is_not_ended_during_another_run(wide: Watched) -> None:
    await wide.look(READY)
    await wide.doubt()
    wide.server.busy = 1
    await wide.look(READY)
    assert wide.runner.shutdowns == 0
    wide.server.busy = 0
    await wide.look(READY)
    assert wide.runner.shutdowns == 1


class Enduring(ScriptedRunner):
    """A runner that cannot be asked to end. Each request counts as a new start."""

    capabilities = Capabilities()

    async def shutdown(self) -> bool:
        await super().shutdown()
        self.now = replace(READY, since=f"wish {self.shutdowns}")
        return False


async def test_server_without_restart_gets_work_again_beside_other_runs(watched: Watched) -> None:
    watched.server.runner = watched.runner = Enduring()
    await watched.look(READY)
    await watched.doubt()
    watched.server.busy = 1  # for an hour
    await watched.watch.run_once()
    await watched.watch.run_once()
    assert watched.servers.any_ready()
    assert watched.runner.shutdowns == 1


async def test_restarted_server_is_not_ended_again(watched: Watched) -> None:
    await watched.look(READY)
    await watched.doubt()
    await watched.look(replace(READY, since="second"))
    assert watched.runner.shutdowns == 0
    assert watched.servers.any_ready()


async def test_server_busy_with_our_runs_is_not_restarted(watched: Watched) -> None:
    await watched.look(READY)
    for _ in range(3):
        [permit] = await watched.servers.permits.wait()
        watched.servers.permits.start(permit)
        await watched.look(BUSY)
        watched.servers.permits.release(permit)
        await watched.look(BUSY)
        watched.clock.pass_time(STRANGER_S)
    assert watched.runner.shutdowns == 0


async def test_server_without_a_start_time_leaves_doubt_once_away(wide: Watched) -> None:
    nameless = replace(READY, since="")
    await wide.look(nameless)
    await wide.doubt()
    await wide.look(nameless)
    assert wide.runner.shutdowns == 1
    await wide.look(AWAY)
    await wide.look(nameless)
    assert wide.servers.any_ready()
    assert wide.runner.shutdowns == 1


CHANGED = "the health of a model server changed"


async def test_failed_setup_is_logged_once_with_its_logs(watched: Watched, caplog: Any) -> None:
    failed = replace(FAILED, setup=Setup(logs="Traceback …"))
    await watched.look(failed)
    await watched.look(failed)
    [said] = [record for record in caplog.records if record.message == CHANGED]
    assert watched.server.health == failed
    assert said.setup_logs == "Traceback …"


# Health: does the server get work, is it asked to end, the standing that callers see, the level of the log
SEEN = {
    HealthStatus.STARTING: (False, False, "starting", "INFO"),
    HealthStatus.READY: (True, False, "ready", "INFO"),
    HealthStatus.BUSY: (True, False, "ready", "INFO"),
    HealthStatus.SETUP_FAILED: (False, False, "setup_failed", "ERROR"),
    HealthStatus.UNHEALTHY: (False, False, "starting", "WARNING"),
    HealthStatus.DEFUNCT: (False, True, "starting", "ERROR"),
    HealthStatus.UNREACHABLE: (False, False, "starting", "WARNING"),
}


@pytest.mark.parametrize("status", HealthStatus)
async def test_each_health_status_has_its_own_consequences(watched: Watched, caplog: Any, status: HealthStatus) -> None:
    caplog.set_level("INFO", "director.servers.fleet")
    await watched.look(Health(status=status, detail="so it says", since="first"))
    works, ends, standing, level = SEEN[status]
    assert (watched.servers.any_ready(), bool(watched.runner.shutdowns)) == (works, ends)
    assert watched.servers.standing.state == standing
    assert watched.server.trouble == ("" if works else f"{status}: so it says")
    [said] = [each for each in caplog.records if each.message == CHANGED]
    assert (said.levelname, said.status, said.detail) == (level, status, "so it says")
    assert watched.noted == [], "it reported no setup"


async def test_each_setup_is_noted_once_at_its_end(watched: Watched) -> None:
    first = replace(READY, setup=Setup())
    await watched.look(replace(first, status=HealthStatus.STARTING))
    assert watched.noted == []
    for status in (HealthStatus.READY, HealthStatus.BUSY, HealthStatus.UNHEALTHY, HealthStatus.READY):
        await watched.look(replace(first, status=status))
    await watched.look(replace(first, since="second", status=HealthStatus.SETUP_FAILED))
    assert watched.noted == [("first", True), ("second", False)]


async def test_setup_is_noted_until_written_without_delaying_work(watched: Watched) -> None:
    failed = Health(status=HealthStatus.SETUP_FAILED, since="first", setup=Setup())
    watched.redis_is_away = True
    await watched.look(failed)
    watched.redis_is_away = watched.is_known = False
    await watched.look(failed)
    watched.is_known = True
    await watched.look(failed)
    await watched.look(failed)
    assert watched.noted == [("first", False)] * 2


# The looks at a server, each with the seconds after it, and how often it is asked to end
ENDS = {
    "dead worker": ([(READY, 0), *[(DEFUNCT, 1)] * 3], 1),
    "dead worker long after the request": ([(READY, 0), (DEFUNCT, 1), (DEFUNCT, END_AGAIN_S), (DEFUNCT, 0)], 2),
    "failed setup": ([(FAILED, 86_400)] * 3, 0),
    "unhealthy for a moment": ([(READY, 0), (ILL, UNHEALTHY_S - 1), (ILL, 0)], 0),
    "unhealthy for long": ([(READY, 0), (ILL, UNHEALTHY_S + 1), (ILL, 0)], 1),
}


@pytest.mark.parametrize(("looks", "shutdowns"), ENDS.values(), ids=list(ENDS))
async def test_unwell_server_is_asked_to_end(
    watched: Watched, looks: list[tuple[Health, float]], shutdowns: int
) -> None:
    for health, seconds in looks:
        await watched.look(health)
        watched.clock.pass_time(seconds)
    assert watched.runner.shutdowns == shutdowns
    assert not watched.servers.any_ready()


async def test_server_that_did_not_answer_is_asked_again_to_end(watched: Watched) -> None:
    watched.runner.hears_shutdown = False
    await watched.look(DEFUNCT)
    await watched.look(DEFUNCT)
    assert watched.runner.shutdowns == 2


async def test_server_that_cannot_restart_is_not_asked_to_end(watched: Watched) -> None:
    watched.runner.capabilities = Capabilities(restarts=False)
    for _ in range(3):
        await watched.look(ILL)
        watched.clock.pass_time(10 * UNHEALTHY_S)
    assert watched.runner.shutdowns == 0


async def test_server_that_is_not_accepted_gets_no_work_until_it_is(watched: Watched) -> None:
    watched.refusal = "it is another version"
    health = await watched.look(READY)
    assert (health.status, health.detail) == (HealthStatus.UNHEALTHY, "it is another version")
    assert not watched.servers.any_ready()
    watched.refusal = ""
    await watched.look(READY)
    assert watched.servers.any_ready()


async def test_long_start_is_logged_once_with_its_likely_cause(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> int:
        return [record.message for record in caplog.records].count("a model server has been starting for long")

    starting = replace(READY, status=HealthStatus.STARTING)
    await watched.look(starting)
    watched.clock.pass_time(SLOW_START_S - 1)
    await watched.look(starting)
    assert told() == 0
    for _ in range(3):
        watched.clock.pass_time(SLOW_START_S)
        await watched.look(starting)
    assert told() == 1
    assert "PATH must have cog" in next(vars(record)["likely"] for record in caplog.records if "likely" in vars(record))
