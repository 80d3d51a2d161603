import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from director.servers.runners.runner import Ended, Health, HealthStatus, Outcome
from director.servers.servers import LEAST_ALONE_S, Permit, Room, Server, Servers, Standing, Trust
from tests.support.clock import FakeClock
from tests.support.eventually import eventually, turns
from tests.support.scripted_runner import ScriptedRunner

READY = Health(status=HealthStatus.READY)


def server(
    slots: int, *, health: Health = READY, rests_after: int | None = None, places: int = 0, run_s: float = math.inf
) -> Server:
    server = Server(ScriptedRunner(), slots, health=health, since="first", places=places, run_s=run_s)
    if rests_after is not None:
        server.trust = Trust(rests_after, counts_failed=True)
    return server


def alone(slots: int, **options: Any) -> tuple[Server, Servers]:
    one = server(slots, **options)
    return one, Servers([one])


async def taken(servers: Servers) -> list[Permit]:
    return await asyncio.wait_for(servers.permits.wait(), 5)


@pytest.mark.parametrize("status", [status for status in HealthStatus if not Health(status=status).can_run])
async def test_a_server_that_is_not_ready_has_no_permits_until_it_is(status: HealthStatus) -> None:
    one, servers = alone(1, health=Health(status=status))
    waiting = asyncio.create_task(servers.permits.wait())
    servers.saw(one, replace(one.health, detail="seen again"))
    await turns()
    assert not waiting.done()
    assert not servers.any_ready()
    servers.saw(one, READY)
    assert [permit.server for permit in await asyncio.wait_for(waiting, 5)] == [one]


async def test_releasing_a_permit_twice_frees_one_slot() -> None:
    servers = Servers([server(1)])
    [permit] = await taken(servers)
    waiting = asyncio.create_task(servers.permits.wait())
    await turns()
    servers.permits.release(permit)
    servers.permits.release(permit)
    assert len(await asyncio.wait_for(waiting, 5)) == 1
    assert servers.permits.busy == 1


async def test_doubt_keeps_work_from_this_start_of_a_server() -> None:
    one, servers = alone(2)
    permit, other = await taken(servers)
    one.since = "second"
    servers.doubt(permit)
    assert servers.any_ready(), "the doubt is about an earlier start"
    one.since = "first"
    servers.doubt(permit)
    servers.permits.release(other)
    assert not servers.any_ready()
    assert one.free == 0


@pytest.mark.parametrize(
    ("statuses", "standing"),
    [
        ([HealthStatus.STARTING], Standing(0, "starting")),
        ([HealthStatus.UNREACHABLE], Standing(0, "starting")),
        ([HealthStatus.READY, HealthStatus.BUSY], Standing(4, "ready")),
        ([HealthStatus.READY, HealthStatus.SETUP_FAILED], Standing(2, "ready")),
        ([HealthStatus.SETUP_FAILED, HealthStatus.STARTING], Standing(0, "starting")),
        ([HealthStatus.SETUP_FAILED, HealthStatus.UNREACHABLE], Standing(0, "setup_failed")),
        ([], Standing(0, "starting")),
    ],
)
def test_standing_is_that_of_the_best_server(statuses: list[HealthStatus], standing: Standing) -> None:
    servers = Servers([server(2, health=Health(status=status)) for status in statuses])
    for each in servers.all[1:]:
        each.busy = 2
    assert servers.standing == standing


SETUP_FAILED = Health(status=HealthStatus.SETUP_FAILED)
STARTING = Health(status=HealthStatus.STARTING)
UNREACHABLE = Health(status=HealthStatus.UNREACHABLE)
LOOPS = {
    "its setup fails": ([SETUP_FAILED, UNREACHABLE, STARTING, SETUP_FAILED, STARTING], 2, "setup_failed"),
    "it is told by its start": ([replace(SETUP_FAILED, since=since) for since in "abc"], 3, "setup_failed"),
    "it dies while it starts": ([STARTING, UNREACHABLE, STARTING, UNREACHABLE], 2, "setup_failed"),
    "it failed once": ([SETUP_FAILED, SETUP_FAILED, STARTING], 1, "starting"),
    "it was ready meanwhile": ([SETUP_FAILED, STARTING, SETUP_FAILED, READY, UNREACHABLE], 0, "starting"),
    "it is not there yet": ([UNREACHABLE, UNREACHABLE], 0, "starting"),
}


@pytest.mark.parametrize(("looks", "failed", "state"), LOOPS.values(), ids=list(LOOPS))
def test_server_failing_start_after_start_counts_as_setup_failed(looks: list[Health], failed: int, state: str) -> None:
    one = Server(ScriptedRunner(), 1)
    servers = Servers([one])
    for look in looks:
        servers.saw(one, look)
    assert (one.failed_starts, servers.standing) == (failed, Standing(0, state))  # type: ignore[arg-type]


async def test_changed_waits_for_the_next_released_permit() -> None:
    servers = Servers([server(2)])
    first, second = await taken(servers)
    servers.permits.release(first)
    changing = asyncio.create_task(servers.permits.wait_for_change())
    await turns()
    assert not changing.done()
    servers.permits.release(second)
    await asyncio.wait_for(changing, 5)


def test_setup_wait_counts_only_time_without_a_ready_server() -> None:
    clock = FakeClock()
    one = server(1, health=Health(status=HealthStatus.STARTING))
    servers = Servers([one], clock.monotonic)
    clock.pass_time(10)
    servers.saw(one, READY)
    clock.pass_time(2)
    assert [servers.setup_wait_s(waited) for waited in (1, 5, 100)] == [0, 3, 10]
    servers.saw(one, Health(status=HealthStatus.UNREACHABLE))
    clock.pass_time(4)
    servers.saw(one, READY)
    assert [servers.setup_wait_s(waited) for waited in (1, 100)] == [1, 4]


NO_SLOT = Ended(outcome=Outcome.REFUSED, server_is_dead=True, has_no_slot=True)


async def full(servers: Servers, runs: int = 1) -> None:
    """Use every permit. The server has no slot for the last one, as this many runs find."""
    permits = await taken(servers)
    for permit in permits:
        servers.permits.start(permit)
    for refused in permits[-1:] * runs:
        servers.judge_end(refused, NO_SLOT, unasked=True)
    for permit in permits:
        servers.permits.release(permit)


async def test_server_soon_full_again_gets_fewer_slots(caplog: Any) -> None:
    servers = Servers([server(4)])
    await full(servers, runs=2)
    assert not servers.any_ready()
    servers.note_start(servers.all[0], "second")
    await full(servers)
    assert servers.standing == Standing(3, "ready")
    await full(servers)
    assert servers.standing == Standing(2, "ready")
    assert len(await taken(servers)) == 2
    said = [record for record in caplog.records if "DIRECTOR_CONCURRENT_PREDICTIONS" in record.message]
    assert [(each.told, each.slots) for each in said] == [(4, 3), (4, 2)]


async def test_foreign_run_in_the_only_slot_restarts_the_server_each_time() -> None:
    servers = Servers([server(1)])
    for since in ("second", "third"):
        await full(servers)
        assert not servers.any_ready()
        servers.note_start(servers.all[0], since)
        assert servers.any_ready()


async def test_failing_server_rests_and_returns_with_one_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("director.servers.servers.FIRST_S", 0.01)
    one, other = server(2, rests_after=2), server(1)
    servers = Servers([one, other])
    first, beside, second = await taken(servers)
    assert [first.server, beside.server, second.server] == [one, other, one]
    refuse(servers, first, second)
    assert not one.can_run
    assert one.trouble == "resting: 2 runs in a row failed on it"
    assert servers.any_ready(), "the other one goes on"
    [trial] = await taken(servers)
    assert trial.server is one
    servers.judge_end(trial, Ended(outcome=Outcome.SUCCEEDED), unasked=True)
    servers.permits.release(trial)
    assert [permit.server for permit in await taken(servers)] == [one, one]


def refuse(servers: Servers, *permits: Permit) -> None:
    for permit in permits:
        servers.judge_end(permit, Ended(outcome=Outcome.REFUSED), unasked=True)
        servers.permits.release(permit)


async def test_runs_that_fail_together_are_one_reason_to_rest(caplog: Any) -> None:
    one, servers = alone(64, rests_after=5)
    refuse(servers, *await taken(servers))
    one.is_resting = False  # it is back, and refuses once more
    refuse(servers, *await taken(servers))
    assert [record.rest_s for record in caplog.records if hasattr(record, "rest_s")] == [1, 2]


class Running(ScriptedRunner):
    def knows(self, remote: str) -> bool:
        return remote == "job 7"


async def test_taken_over_run_uses_a_slot_of_its_own_server() -> None:
    here, there = server(1), Server(Running(), 2, health=READY, since="third")
    servers = Servers([here, there])
    permit, other, _ = sorted(await taken(servers), key=lambda each: each.server is there)
    servers.permits.move(permit, "job 7")
    assert (permit.server, permit.since, permit.taken) == (there, "third", True)
    assert (here.busy, there.busy) == (0, 3), "it runs there, whether there is room for it or not"
    servers.permits.release(other)
    assert there.free == 0
    servers.permits.release(permit)
    assert (here.free, there.free) == (1, 1)


async def test_run_that_no_server_knows_keeps_its_permit() -> None:
    servers = Servers([server(1), Server(Running(), 1, health=READY)])
    [permit, _] = await taken(servers)
    for remote in ("", "job 8"):
        servers.permits.move(permit, remote)
        assert permit.server is servers.all[0]


async def test_stopped_run_does_not_count_against_its_server() -> None:
    one, servers = alone(1, rests_after=1)
    [permit] = await taken(servers)
    servers.judge_end(permit, Ended(outcome=Outcome.CANCELED), unasked=False)
    assert one.can_run


@given(
    slots=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    steps=st.lists(st.none() | st.integers(0, 20), max_size=40),
    run_s=st.sampled_from([0.1, 1.0]),
)
def test_no_order_of_takes_exceeds_the_slots(slots: list[int], steps: list[int | None], run_s: float) -> None:
    servers = Servers([server(each) for each in slots])
    for each in servers.all:
        each.run_s = run_s
    held: list[Permit] = []
    for step in steps:
        if step is None:
            held += servers.permits.take() + servers.permits.take_ahead()
        elif held:
            servers.permits.release(held.pop(step % len(held)))
        assert all(0 <= each.busy <= each.slots for each in servers.all)
        assert servers.permits.busy == sum(permit.has_slot for permit in held)
        assert all(each.free == 0 or not each.waiting for each in servers.all)


async def test_short_runs_get_permits_ahead_which_take_slots_in_order() -> None:
    one, servers = alone(8)
    running = await taken(servers)
    assert servers.permits.take_ahead() == []  # the run time is unknown yet
    one.run_s = 0.1
    first, second = servers.permits.take_ahead()
    assert servers.permits.take_ahead() == []
    assert (servers.permits.busy, first.has_slot, second.has_slot) == (8, False, False)
    servers.permits.release(running[0])
    assert (servers.permits.busy, first.has_slot, second.has_slot) == (8, True, False)
    servers.permits.release(second)  # it never had one
    servers.permits.release(running[1])
    assert servers.permits.busy == 7
    assert await servers.permits.wait_for_slot(first)


async def test_run_duration_is_measured_on_successful_runs() -> None:
    clock = FakeClock()
    servers = Servers([server(1)], clock.monotonic)
    [permit] = await taken(servers)
    servers.permits.start(permit)
    clock.pass_time(0.1)
    servers.judge_end(permit, Ended(outcome=Outcome.FAILED), unasked=True)
    assert servers.all[0].ahead == 0
    servers.judge_end(permit, Ended(outcome=Outcome.SUCCEEDED), unasked=True)
    assert servers.all[0].ahead == 1
    clock.pass_time(10)
    servers.judge_end(permit, Ended(outcome=Outcome.SUCCEEDED), unasked=True)
    assert servers.all[0].ahead == 0


async def test_waiting_permit_gets_its_slot_once_the_doubted_server_is_back() -> None:
    one, servers = alone(2, run_s=0.1)
    permit, other = await taken(servers)
    [waiting] = servers.permits.take_ahead()
    servers.doubt(permit)
    servers.permits.release(other)
    assert not waiting.has_slot
    assert one.ahead == 0
    servers.note_start(one, "second")
    servers.saw(one, READY)
    assert (waiting.has_slot, waiting.since) == (True, "second")


async def test_batch_frees_its_slot_with_its_last_place() -> None:
    one, servers = alone(2, places=3)
    permits = await taken(servers)
    first, second = permits[:3], permits[3:]
    assert [len({permit.batch for permit in each}) for each in (first, second, permits)] == [1, 1, 2]
    assert (one.busy, servers.standing.slots) == (2, 6)
    for permit in [*first[:2], first[0], *second]:
        servers.permits.release(permit)
    assert one.busy == 1
    servers.permits.release(first[2])
    assert one.busy == 0


async def test_server_on_trial_gets_one_run_and_no_batch() -> None:
    one = server(2, places=4, rests_after=1)
    one.trust.note(Outcome.FAILED, since="first")
    assert len(await taken(Servers([one]))) == 1


FAILED = Ended(outcome=Outcome.FAILED)
LOCKED = Ended(outcome=Outcome.REFUSED, is_locked=True, error="it answered 401")


async def run(servers: Servers, server: Server, ended: Ended, account: str) -> None:
    """One run on that server, of all permits there are."""
    permits = await taken(servers)
    permit = next(permit for permit in permits if permit.server is server)
    servers.permits.start(permit)
    servers.judge_end(permit, ended, unasked=True, account=account)
    for each in permits:
        servers.permits.release(each)


async def test_each_failure_counts_after_an_hour_with_one_account() -> None:
    clock = FakeClock()
    one = server(1, rests_after=3)
    servers = Servers([one], clock.monotonic)
    await run(servers, one, FAILED, "b")
    await run(servers, one, FAILED, "a")
    clock.pass_time(3600)
    await run(servers, one, FAILED, "a")
    assert not one.can_run


async def test_server_rests_if_an_account_fails_only_there() -> None:
    bad, good = server(1, rests_after=3), server(1)
    servers = Servers([bad, good])
    await run(servers, good, Ended(outcome=Outcome.SUCCEEDED), "b")
    for _ in range(3):
        assert bad.can_run
        await run(servers, bad, FAILED, "a")
        await run(servers, good, Ended(outcome=Outcome.SUCCEEDED), "a")
    assert not bad.can_run


async def test_locked_server_rests_at_once_and_says_why(caplog: Any) -> None:
    one, other = server(2, rests_after=0), server(1)
    servers = Servers([one, other])
    await run(servers, one, LOCKED, "a")
    assert one.trouble == "server_auth: it answered 401"
    assert servers.standing == Standing(1, "ready"), "the other one goes on"
    await run(servers, other, LOCKED, "a")
    assert servers.standing == Standing(0, "server_auth")
    [said, _] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert (said.code, said.why) == ("server_auth", "it answered 401")


def test_locked_health_check_shows_unless_another_server_starts() -> None:
    locked = replace(READY, status=HealthStatus.UNHEALTHY, detail="it answered 403", is_locked=True)
    one = server(1, health=locked)
    assert one.trouble == "server_auth: it answered 403"
    assert Servers([one]).standing == Standing(0, "server_auth")
    assert Servers([one, server(1, health=Health(status=HealthStatus.STARTING))]).standing == Standing(0, "starting")


async def test_run_that_was_lost_waits_to_be_alone_and_keeps_others_out() -> None:
    one, servers = alone(3)
    lost, other, third = await taken(servers)
    waiting = asyncio.create_task(servers.permits.be_alone(lost))
    await turns()
    servers.permits.release(third)
    await turns()
    assert not waiting.done()
    assert one.free == 0
    servers.permits.release(other)
    assert await asyncio.wait_for(waiting, 5)
    assert servers.permits.take() == []
    servers.permits.release(lost)
    assert one.free == 3


@pytest.mark.parametrize(
    ("usual_s", "bounds"),
    [(math.inf, {"ALONE_WAIT_S": 0.01, "ALONE_RUN_S": 0.02}), (0.002, {"LEAST_ALONE_S": 0.01})],
    ids=["of an unknown length", "of quick runs"],
)
async def test_wait_to_be_alone_is_bounded(
    monkeypatch: pytest.MonkeyPatch, usual_s: float, bounds: dict[str, float]
) -> None:
    for name, bound in bounds.items():
        monkeypatch.setattr(f"director.servers.servers.{name}", bound)
    one, servers = alone(3)
    one.run_s = usual_s
    lost, other, third = await taken(servers)
    servers.permits.release(third)
    assert await servers.permits.be_alone(lost)
    assert one.free == 0
    await eventually(lambda: one.free, "it is alone no longer", until=(1).__eq__)
    servers.permits.release(lost, other)
    assert one.free == 3


async def test_run_that_was_lost_does_not_wait_for_one_that_hangs() -> None:
    one, clock = server(3), FakeClock()
    servers = Servers([one], clock.monotonic)
    one.run_s = 0.1
    hangs, begins, lost = await taken(servers)
    servers.permits.start(hangs)
    clock.pass_time(LEAST_ALONE_S)
    waiting = asyncio.create_task(servers.permits.be_alone(lost))
    await turns(10)
    assert not waiting.done(), "another run is about to begin"
    waiting.cancel()
    servers.permits.release(begins, lost)
    [lost] = servers.permits.take(1)
    assert await asyncio.wait_for(servers.permits.be_alone(lost), LEAST_ALONE_S / 10)


async def test_pool_that_is_reserved_for_long_runs_others_half_of_the_time() -> None:
    one, clock = server(2), FakeClock()
    servers = Servers([one], clock.monotonic)
    reserved = []
    for seconds in (90, 90, 50, 50, 90):
        lost, other = await taken(servers)
        servers.permits.release(other)
        reserved.append(await asyncio.wait_for(servers.permits.be_alone(lost), 5))
        assert reserved[-1] == one.is_reserved, "one that may not be alone does not run"
        clock.pass_time(seconds)
        servers.permits.release(lost)
    assert reserved == [True, True, False, False, True]


async def waiting_in_line(servers: Servers, permits: list[Permit]) -> list[asyncio.Task[bool]]:
    tasks = [asyncio.create_task(servers.permits.be_alone(permit)) for permit in permits]
    await turns(10)
    return tasks


async def test_lost_runs_of_a_server_are_alone_one_after_the_other() -> None:
    one, servers = alone(4)
    lost, other, *permits = await taken(servers)
    first, *line = await waiting_in_line(servers, [lost, *permits])
    servers.permits.release(other)
    assert await asyncio.wait_for(first, 5)
    for before, task in zip([lost, *permits], line, strict=False):
        assert not task.done()
        servers.permits.release(before)
        assert servers.permits.take() == []
        assert await asyncio.wait_for(task, 5)
    servers.permits.release(*permits)
    assert (one.free, one.is_reserved) == (4, False)


async def test_lost_run_is_sent_away_if_another_server_is_reserved() -> None:
    servers = Servers([server(2), server(2)])
    lost = await taken(servers)
    here, there = lost[0], next(permit for permit in lost if permit.server is not lost[0].server)
    await waiting_in_line(servers, [here])
    assert not await servers.permits.be_alone(there), "poison must not idle the pool"


@pytest.mark.parametrize("why", ["the server died", "the run before may hang", "the pool was reserved for long"])
async def test_line_of_lost_runs_is_sent_away(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, clock = server(3), FakeClock()
    servers = Servers([one], clock.monotonic)
    lost, *permits = await taken(servers)
    if why == "the run before may hang":
        monkeypatch.setattr("director.servers.servers.ALONE_RUN_S", 0.01)
    first, *line = await waiting_in_line(servers, [lost, *permits])
    assert await asyncio.wait_for(first, 5)
    if why == "the server died":
        servers.doubt(lost)
    elif why == "the pool was reserved for long":
        clock.pass_time(121)
    if why != "the run before may hang":
        servers.permits.release(lost)
    assert [await asyncio.wait_for(task, 5) for task in line] == [False, False]
    assert not one.is_reserved


async def test_canceled_run_leaves_the_line_to_the_next() -> None:
    one, servers = alone(3)
    lost, canceled, last = await taken(servers)
    first, leaving, line = await waiting_in_line(servers, [lost, canceled, last])
    assert await asyncio.wait_for(first, 5)
    leaving.cancel()
    await turns()
    servers.permits.release(canceled)
    servers.permits.release(lost)
    assert await asyncio.wait_for(line, 5)
    servers.permits.release(last)
    assert one.free == 3


@pytest.mark.parametrize(
    ("runs", "most"),
    [
        ([], 1),
        ([(0, 1), (1, 2), (4, 5)], 1),
        ([(0, 2), (1, 3), (2.5, 4)], 2),
        ([(2, 3), (1, 4), (0, 5)], 3),
        ([(0, 1), (0, 1), (0, 1)], 3),
        ([(0, 9), (1, 2), (3, 4), (5, 6)], 2),
    ],
)
def test_room_is_the_most_successful_runs_at_once(runs: list[tuple[float, float]], most: int) -> None:
    for order in (runs, sorted(runs, key=lambda run: run[1])):
        room = Room()
        for began_at, ended_at in order:
            room.add(began_at, ended_at)
        assert room.most == most


REFUSED = Ended(outcome=Outcome.REFUSED, may_be_input=True)


async def test_refusal_counts_beside_as_many_runs_as_succeeded_at_once() -> None:
    clock = FakeClock()
    one = server(3)
    servers = Servers([one], clock.monotonic)

    async def together(*others: Outcome) -> int:
        permits = await taken(servers)
        for permit in permits[: len(others) + 1]:
            servers.permits.start(permit)
        clock.pass_time(1)
        counted = servers.judge_refusal(permits[0], REFUSED, "poison").refusals
        for permit, outcome in zip(permits[1:], others, strict=False):
            servers.judge_end(permit, Ended(outcome=outcome), unasked=True)
        for permit in permits:
            servers.permits.release(permit)
        return counted

    fine = Outcome.SUCCEEDED
    assert await together(fine) == 0, "it may have one slot"
    assert await together(fine) == 0
    assert await together(fine, fine) == 0, "two at once are known from now on"
    assert await together(fine) == 1
    assert await together(fine, fine) == 0, "a third may have been too many"
    servers.note_start(one, "second")
    assert await together(fine) == 0
    assert await together() == 2, "it had nothing else to do"


async def test_late_losers_of_a_death_count_no_second_failure() -> None:
    one, servers = alone(8, rests_after=5)
    permits = await taken(servers)
    for number, permit in enumerate(permits):
        servers.judge_end(permit, Ended(outcome=Outcome.LOST, server_is_dead=True), unasked=True, account=f"{number}")
        servers.note_start(one, f"again {number}")
    assert (one.trust.failures, one.is_resting) == (1, False)


async def test_server_that_says_it_is_full_counts_only_after_a_success() -> None:
    one = server(1)
    servers = Servers([one])

    async def run(*, good: bool) -> int:
        [permit] = await taken(servers)
        servers.permits.start(permit)
        said = Ended(outcome=Outcome.SUCCEEDED) if good else replace(REFUSED, may_be_full=True)
        refusals = 0 if good else servers.judge_refusal(permit, said, "poison").refusals
        servers.judge_end(permit, said, unasked=True)
        servers.permits.release(permit)
        return refusals

    assert [await run(good=False) for _ in range(9)] == [0] * 9, "other directors may fill it"
    assert [await run(good=good) for good in (True, False, False, True, False)] == [0, 1, 0, 0, 2]
