import asyncio

from director.keeper.courier import LONGEST_LINE, PLACES, PLACES_PER_HOST, Shares


def test_host_takes_only_its_own_places() -> None:
    shares = Shares()
    assert sum(shares.join("silent") for _ in range(2 * PLACES)) == PLACES_PER_HOST + LONGEST_LINE
    assert not shares.join("silent")
    assert shares.room == PLACES - PLACES_PER_HOST
    assert shares.join("quick")
    assert shares.room == PLACES - PLACES_PER_HOST - 1


def test_host_is_forgotten_with_its_last_attempt() -> None:
    shares = Shares()
    assert shares.join("one")
    assert not shares.are_empty
    shares.leave("one")
    assert shares.are_empty
    assert shares.room == PLACES


async def test_next_in_line_gets_the_free_place() -> None:
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
