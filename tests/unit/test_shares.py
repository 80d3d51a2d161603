"""How the courier's places are shared: each host has its own, and a line that has an end."""

import asyncio

import pytest

from director.keeper.courier import LONGEST_LINE, PLACES, PLACES_PER_HOST, Shares

pytestmark = pytest.mark.anyio


def test_one_host_takes_no_more_than_its_places_however_long_its_line_is() -> None:
    shares = Shares()
    assert sum(shares.join("silent") for _ in range(2 * PLACES)) == PLACES_PER_HOST + LONGEST_LINE
    assert not shares.join("silent")
    assert shares.room == PLACES - PLACES_PER_HOST
    assert shares.join("quick")
    assert shares.room == PLACES - PLACES_PER_HOST - 1


def test_a_host_is_forgotten_with_its_last_one() -> None:
    shares = Shares()
    assert shares.join("one")
    assert not shares.are_empty
    shares.leave("one")
    assert shares.are_empty
    assert shares.room == PLACES


async def test_whoever_stands_in_line_gets_the_place_that_is_left() -> None:
    shares, order = Shares(), []
    leave = asyncio.Event()

    async def hold(number: int) -> None:
        shares.join("one")
        async with shares.place("one"):
            order.append(number)
            await leave.wait()
        shares.leave("one")

    async with asyncio.TaskGroup() as tasks:
        for number in range(PLACES_PER_HOST + 2):
            tasks.create_task(hold(number))
        await asyncio.sleep(0)
        assert order == list(range(PLACES_PER_HOST))
        leave.set()
    assert order == list(range(PLACES_PER_HOST + 2))
    assert shares.are_empty
