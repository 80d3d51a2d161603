"""How queues stood during the last hour: what the keeper noted every ten seconds, for graphs, rates and burn rates.

Only reads. A time without samples is one in which the queue was idle, or no keeper ran: what happened meanwhile is told
by the next sample, so that sums are right in any case.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from redis.asyncio import Redis

from director.core import keys
from director.core.ids import QueueName
from director.core.redis_client import ask

__all__ = ("HISTORY_S", "MOST", "PERIOD_S", "Sample", "Samples", "parse", "within")

PERIOD_S: Final = 10.0
HISTORY_S: Final = 3600.0
MOST: Final = int(HISTORY_S / PERIOD_S)
AT_ONCE: Final = 50  # queues that one write to the socket asks for: an hour of one is about 25 KB


class Sample(Struct, frozen=True, kw_only=True):
    """One queue at one moment, and what happened since the sample before. Per lane where it is a mapping.

    `late`: of what waits, how much is past its lane's objective by now. `waited_ms`: of all that started, together.
    `met`, `missed`: how many starts were within their lane's objective, or not.
    """

    at_ms: int
    waiting: Mapping[str, int]
    claimed: int
    delayed: int
    oldest_ms: int
    late: Mapping[str, int]
    accepted: Mapping[str, int]
    started: int
    ended: int
    waited_ms: int
    met: Mapping[str, int]
    missed: Mapping[str, int]


def parse(line: bytes) -> Sample:
    """One line as sample.lua writes it. A newer release may write more at its end."""
    numbers = iter([int(number) for number in line.split()])

    def per_lane() -> dict[str, int]:
        return {lane: next(numbers) for lane in keys.LANES}

    return Sample(  # evaluated in this order, which is the script's
        at_ms=next(numbers),
        waiting=per_lane(),
        claimed=next(numbers),
        delayed=next(numbers),
        oldest_ms=next(numbers),
        late=per_lane(),
        accepted=per_lane(),
        started=next(numbers),
        ended=next(numbers),
        waited_ms=next(numbers),
        met=per_lane(),
        missed=per_lane(),
    )


def within(samples: Sequence[Sample], over_s: float, *, now_ms: int) -> list[Sample]:
    """Those of the last seconds, whatever their order."""
    return [sample for sample in samples if sample.at_ms > now_ms - over_s * 1000]


class Samples:
    """All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis: Any = redis  # its types say str or bytes, and ours answers in bytes

    async def of(self, queue: QueueName, *, most: int = MOST) -> list[Sample]:
        """The newest of one queue, in the order of time; none where nothing happened for an hour."""
        return (await self.many([queue], most=most))[queue]

    async def many(self, queues: Sequence[QueueName], *, most: int = MOST) -> dict[QueueName, list[Sample]]:
        """The same of many queues, in slices."""
        found: dict[QueueName, list[Sample]] = {}
        for start in range(0, len(queues), AT_ONCE):
            some = queues[start : start + AT_ONCE]
            for queue, lines in zip(some, await self._lines(some, most), strict=True):
                found[queue] = [parse(line) for line in reversed(lines)]
        return found

    async def _lines(self, queues: Sequence[QueueName], most: int) -> list[list[bytes]]:
        async def read() -> list[list[bytes]]:
            pipe = self._redis.pipeline(transaction=False)
            for queue in queues:
                pipe.lrange(keys.samples(queue), 0, most - 1)
            return list(await pipe.execute())

        return await ask(read)
