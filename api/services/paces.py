"""Know how fast the queues of models were in the last day, and how often they ran. The history of a queue has up to 250
lines, and a model may have many queues, so what was read of a queue holds for half a minute.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from director.core.clock import Clock
from director.core.ids import QueueName
from director.core.trends import Point
from director.store.trends import Trends

HOLDS_S: Final = 30.0
MOST: Final = 1_000

T = TypeVar("T")


class QueueCache(Generic[T]):
    """Keep what `read` returns of each queue for half a minute."""

    def __init__(self, read: Callable[[Sequence[QueueName]], Awaitable[Mapping[QueueName, T]]], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._known: dict[QueueName, tuple[float, T]] = {}

    async def of(self, queues: Sequence[QueueName]) -> Mapping[QueueName, T]:
        now = self._clock.monotonic()
        if len(self._known) > MOST:
            self._known = {queue: known for queue, known in self._known.items() if known[0] > now}
        # taken before the read: a call beside this one may forget them meanwhile
        held = [(queue, self._known.get(queue, (now, None))) for queue in queues]
        known = {queue: value for queue, (until, value) in held if until > now and value is not None}
        stale = [queue for queue in queues if queue not in known]
        found = await self._read(stale) if stale else {}
        self._known |= {queue: (now + HOLDS_S, value) for queue, value in found.items()}
        return {**known, **found}


class Paces(QueueCache[Point]):
    """Keep how the predictions of each queue ended in the last day, in one sum."""

    def __init__(self, trends: Trends, clock: Clock) -> None:
        async def read(queues: Sequence[QueueName]) -> Mapping[QueueName, Point]:
            found = await trends.many(queues, "24h", now_s=clock.now_ms() / 1000)
            return {queue: trend.whole for queue, trend in found.items()}

        super().__init__(read, clock)
