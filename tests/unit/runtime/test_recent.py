"""Test that all who ask share one look, however long it takes."""

import asyncio

import pytest

from director.core.errors import BackendUnavailable
from director.runtime.process import FRESH_S, Recent
from tests.support.clock import FakeClock
from tests.support.eventually import turns


class Looks:
    def __init__(self) -> None:
        self.begun = 0
        self.answers = asyncio.Queue[str | BackendUnavailable]()

    async def look(self) -> str:
        self.begun += 1
        answer = await self.answers.get()
        if isinstance(answer, BackendUnavailable):
            raise answer
        return answer


async def test_slow_look_is_shared_and_no_second_one_begins_meanwhile() -> None:
    clock, looks = FakeClock(), Looks()
    recent = Recent(looks.look, clock)
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        askers = []
        for _ in range(3):
            askers.append(tasks.create_task(recent.get()))
            await turns()
            clock.pass_time(FRESH_S)
        askers[0].cancel()
        looks.answers.put_nowait("safe")
    assert (looks.begun, [asker.result() for asker in askers[1:]]) == (1, ["safe", "safe"])


async def test_error_is_shared_for_a_second_and_then_looked_at_again() -> None:
    clock, looks = FakeClock(), Looks()
    recent = Recent(looks.look, clock)
    looks.answers.put_nowait(BackendUnavailable("Redis is away"))
    for _ in range(2):
        with pytest.raises(BackendUnavailable):
            await recent.get()
    clock.pass_time(FRESH_S)
    looks.answers.put_nowait("safe")
    assert (await recent.get(), looks.begun) == ("safe", 2)
