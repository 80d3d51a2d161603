from contextlib import AsyncExitStack

import anyio
import pytest

from api.services.turns import Turns


async def test_so_many_at_once_and_the_next_one_waits() -> None:
    turns, order = Turns(2, each=2, patience_s=10), []

    async def take(name: str) -> None:
        async with turns.taken(name):
            order.append(name)

    async with anyio.create_task_group() as tasks, AsyncExitStack() as held:
        for name in ("a", "b"):
            await held.enter_async_context(turns.taken(name))
        tasks.start_soon(take, "c")
        await anyio.wait_all_tasks_blocked()
        assert order == []
    assert order == ["c"]


async def test_one_account_takes_its_part_and_no_more() -> None:
    turns = Turns(3, each=2, patience_s=0.01)
    async with turns.taken("a"), turns.taken("a"):
        with pytest.raises(TimeoutError):
            async with turns.taken("a"):
                pytest.fail("it has two already")
        async with turns.taken("b"):
            pass
    async with turns.taken("a"):
        pass
    assert len(turns._accounts) <= 1
