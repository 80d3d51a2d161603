"""Know how fast the queues of models were in the last day. The history of a queue has up to 250 lines, so what was read
of it holds for half a minute.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from director.core.clock import Clock
from director.core.ids import QueueName
from director.core.trends import Point
from director.store.trends import Trends

HOLDS_S: Final = 30.0
MOST: Final = 1_000


class Paces:
    def __init__(self, trends: Trends, clock: Clock) -> None:
        self._trends = trends
        self._clock = clock
        self._known: dict[QueueName, tuple[float, Point]] = {}

    async def of(self, queues: Sequence[QueueName]) -> Mapping[QueueName, Point]:
        """Return how the predictions of each queue ended in the last day, in one sum."""
        now = self._clock.monotonic()
        if len(self._known) > MOST:
            self._known = {queue: known for queue, known in self._known.items() if known[0] > now}
        # taken before the read: a call beside this one may forget them meanwhile
        known = {queue: one[1] for queue in queues if (one := self._known.get(queue)) is not None and one[0] > now}
        stale = [queue for queue in queues if queue not in known]
        found = await self._trends.many(stale, "24h", now_s=self._clock.now_ms() / 1000) if stale else {}
        fresh = {queue: trend.whole for queue, trend in found.items()}
        self._known |= {queue: (now + HOLDS_S, point) for queue, point in fresh.items()}
        return known | fresh
