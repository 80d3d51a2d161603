"""A call for a queue that is not registered raises UnknownQueue and writes nothing."""

from collections.abc import Awaitable, Callable

import pytest

from director.core.errors import UnknownQueue
from director.core.ids import QueueName
from tests.support.keyspace import unchanged
from tests.support.queue_driver import MODEL, QueueDriver

CALLS: dict[str, Callable[[QueueDriver], Awaitable[object]]] = {
    "bound": lambda driver: driver.bound("reject"),
    "claim": lambda driver: driver.claim(),
    "demand": lambda driver: driver.scripts.demand(driver.queue, soon_s=60),
    "enqueue": lambda driver: driver.submit(),
    "limit": lambda driver: driver.limit(weight=2, most_running=1),
    "pause": lambda driver: driver.pause(),
    "resize": lambda driver: driver.scripts.resize(driver.queue, streams=4),
    "stats": lambda driver: driver.stats(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_an_unknown_queue_is_an_error(
    driver: QueueDriver, call: Callable[[QueueDriver], Awaitable[object]]
) -> None:
    stranger = QueueDriver(driver.redis, driver.scripts, QueueName(f"{MODEL}:000000000000"))
    async with unchanged(driver.redis):
        with pytest.raises(UnknownQueue):
            await call(stranger)
