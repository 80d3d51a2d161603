"""A header of a script on the common path says how many commands a prediction costs, alone and in a batch of 16."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import pytest

from director.core.usage import Used
from tests.lua.test_headers import header
from tests.support.queue_driver import QueueDriver

SCRIPTS: Final = ("enqueue", "claim", "finish")
USED: Final = Used(runs=1, ms=5)
WARM: Final = 60  # the means of a queue's runs are complete after 50
STATED: Final = re.compile(r"^-- Commands of a prediction: (\d+) alone, (\d+\.\d) in a batch of 16\.", re.MULTILINE)


class Counter:
    """Count the commands of each script: `runs` of it, and commands in it for `each` prediction."""

    def __init__(self, driver: QueueDriver) -> None:
        self.driver = driver
        self.runs: dict[str, int] = {}
        self.each: dict[str, float] = {}

    async def go(self, size: int) -> None:
        """Take `size` predictions from one end to the other, with one call of each script."""
        await self._counted("enqueue", size, lambda: self._all(self.driver.submit for _ in range(size)))
        claims = await self._counted("claim", size, lambda: self.driver.claim(size))
        finish = partial(self.driver.finish, ran_ms=5, output=b"1", used=USED)
        await self._counted(
            "finish",
            size,
            lambda: self._all(partial(finish, claim) for claim in claims),
        )

    async def _counted(self, name: str, size: int, step: Callable[[], Awaitable[Any]]) -> Any:
        await self.driver.redis.config_resetstat()
        answer = await step()
        stats = await self.driver.redis.info("commandstats")
        ran = {command.removeprefix("cmdstat_"): row["calls"] for command, row in stats.items()}
        self.runs[name] = ran.pop("evalsha")
        self.each[name] = round((sum(ran.values()) - ran["config|resetstat"]) / size, 1)
        return answer

    @staticmethod
    async def _all(steps: Any) -> Any:
        return await asyncio.gather(*(step() for step in steps))


@pytest.mark.not_on("cluster", why="each script asks there whether its slot migrates")
@pytest.mark.parametrize("size", [1, 16])
async def test_headers_state_the_commands_of_a_prediction(driver: QueueDriver, size: int) -> None:
    counter = Counter(driver)
    await driver.have_slots(64)
    for _ in range(WARM):
        await counter.go(size)
    assert set(counter.runs.values()) == {1}
    stated = {name: STATED.search(header(name)) for name in SCRIPTS}
    assert counter.each == {name: float(found[1 if size == 1 else 2]) for name, found in stated.items() if found}
