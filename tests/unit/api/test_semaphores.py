from contextlib import AsyncExitStack

import anyio
import pytest

from api.services.semaphores import AccountSemaphore


async def test_so_many_at_once_and_the_next_one_waits() -> None:
    semaphore, order = AccountSemaphore(2, each=2, patience_s=10), []

    async def take(name: str) -> None:
        async with semaphore.hold(name):
            order.append(name)

    async with anyio.create_task_group() as tasks, AsyncExitStack() as held:
        for name in ("a", "b"):
            await held.enter_async_context(semaphore.hold(name))
        tasks.start_soon(take, "c")
        await anyio.wait_all_tasks_blocked()
        assert order == []
    assert order == ["c"]


async def test_one_account_takes_its_part_and_no_more() -> None:
    semaphore = AccountSemaphore(3, each=2, patience_s=0.01)
    async with semaphore.hold("a"), semaphore.hold("a"):
        with pytest.raises(TimeoutError):
            async with semaphore.hold("a"):
                pytest.fail("it has two already")
        async with semaphore.hold("b"):
            pass
    async with semaphore.hold("a"):
        pass
    assert len(semaphore._accounts) <= 1
