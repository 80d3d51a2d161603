"""Seats: as many as there are slots, on the least busy server first, on none that is not ready or doubted."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from director.runners.runner import Health, HealthStatus
from director.servers import Seat, Server, Servers, Standing
from tests.support.scripted_runner import ScriptedRunner

pytestmark = pytest.mark.anyio

READY = Health(status=HealthStatus.READY)


def server(slots: int, *, health: Health = READY, since: str = "first") -> Server:
    return Server(ScriptedRunner(), slots, health=health, since=since)


async def taken(servers: Servers) -> list[Seat]:
    return await asyncio.wait_for(servers.seats(), 5)


async def test_every_free_seat_is_given_the_least_busy_server_first() -> None:
    one, two = server(3), server(2)
    one.busy = 1
    seats = await taken(Servers([one, two]))
    assert [seat.server for seat in seats] == [two, one, two, one]
    assert (one.busy, two.busy) == (3, 2)


@pytest.mark.parametrize("status", [status for status in HealthStatus if not Health(status=status).can_run])
async def test_a_server_that_is_not_ready_has_no_seats_until_it_is(status: HealthStatus) -> None:
    one = server(1, health=Health(status=status))
    servers = Servers([one])
    waiting = asyncio.create_task(servers.seats())
    servers.saw(one, replace(one.health, detail="seen again"))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert not servers.any_ready()
    servers.saw(one, READY)
    assert [seat.server for seat in await asyncio.wait_for(waiting, 5)] == [one]


async def test_a_seat_that_is_left_is_free_once() -> None:
    servers = Servers([server(1)])
    [seat] = await taken(servers)
    waiting = asyncio.create_task(servers.seats())
    await asyncio.sleep(0)
    servers.leave(seat)
    servers.leave(seat)
    assert len(await asyncio.wait_for(waiting, 5)) == 1
    assert servers.busy == 1


async def test_a_doubted_server_gets_no_work() -> None:
    servers = Servers([server(2)])
    seat, other = await taken(servers)
    servers.doubt(seat)
    servers.leave(other)
    assert not servers.any_ready()
    assert servers.all[0].free == 0


async def test_a_server_that_was_started_anew_is_not_doubted_for_what_its_last_start_did() -> None:
    servers = Servers([server(1)])
    [seat] = await taken(servers)
    servers.all[0].since = "second"
    servers.doubt(seat)
    assert servers.any_ready()


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
def test_they_stand_as_the_best_of_them_does(statuses: list[HealthStatus], standing: Standing) -> None:
    servers = Servers([server(2, health=Health(status=status)) for status in statuses])
    for each in servers.all[1:]:
        each.busy = 2
    assert servers.standing == standing


async def test_a_change_is_a_seat_that_is_left_from_now_on() -> None:
    servers = Servers([server(2)])
    first, second = await taken(servers)
    servers.leave(first)
    changing = asyncio.create_task(servers.changed())
    await asyncio.sleep(0)
    assert not changing.done()
    servers.leave(second)
    await asyncio.wait_for(changing, 5)


@given(
    slots=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    steps=st.lists(st.none() | st.integers(0, 20), max_size=40),
)
def test_slots_are_never_exceeded_in_any_order_of_taking_and_leaving(slots: list[int], steps: list[int | None]) -> None:
    servers = Servers([server(each) for each in slots])
    held: list[Seat] = []
    for step in steps:
        if step is None and servers.busy < servers.slots:
            held += servers._take()
        elif step is not None and held:
            servers.leave(held.pop(step % len(held)))
        assert all(0 <= each.busy <= each.slots for each in servers.all)
        assert servers.busy == len(held)
