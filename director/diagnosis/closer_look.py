"""Ask the costly questions behind findings, of the few queues where the answer may show a fault.

Every question is bounded, so a look costs about the same however much is wrong. Nothing is changed.
"""

import time
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text
from director.broker.scripts import QueueStats
from director.core.ids import PredictionId, QueueName
from director.core.policy import Burns, burns
from director.core.schema import spent_attempts
from director.diagnosis.findings import CROWDED, FAILING_AFTER, HOT, Closer, Heaviest, Letter, Neglected, work_of
from director.store.owed import LATE_MS, Owed
from director.store.queues import QueueHistory

TRIES: Final = 3  # the quickest counts, since other work of this process may delay an answer
MOST_CROWDED: Final = 10
MOST_ACCOUNTS: Final = 1_000
MOST_LETTERS: Final = 20
MOST_PROMISING: Final = 50
MOST_BURNING: Final = 5  # an hour of one queue takes some milliseconds to read
SOON_SAMPLES: Final = 30
AT_ONCE: Final = 50  # queues per write

Queues = Mapping[QueueName, QueueStats]


class CloserLook:
    """Asks one Redis server. Raises BackendUnavailable while it cannot answer."""

    def __init__(self, redis: Redis, owed: Owed) -> None:
        self._redis: Any = redis  # redis-py says str or bytes; ours answers in bytes
        self._history = QueueHistory(redis)
        self._owed = owed

    async def look(self, queues: Queues, *, owed: int) -> Closer:
        """Look at queues whose numbers were just read. `owed` counts webhooks."""
        now_ms, answer_ms = await self._answered()
        return Closer(
            now_ms=now_ms,
            redis_ms=answer_ms,
            neglected=await self._neglected([queue for queue, stats in queues.items() if stats.live], now_ms - LATE_MS),
            heaviest=await self._heaviest(queues),
            letters=await self._letters([queue for queue, stats in queues.items() if stats.dead][:MOST_LETTERS]),
            burns=await self._burns(queues, now_ms),
            failing=await self._owed.failing(after=FAILING_AFTER) if owed else (),
        )

    async def _answered(self) -> tuple[int, float]:
        """Return the server's time, and how many ms it took to answer."""
        took = []
        for _ in range(TRIES):
            began = time.perf_counter()
            seconds, micros = await ask(self._redis.time)
            took.append((time.perf_counter() - began) * 1000)
        return seconds * 1000 + micros // 1000, min(took)

    async def _neglected(self, queues: Sequence[QueueName], before_ms: int) -> dict[QueueName, Neglected]:
        found: dict[QueueName, Neglected] = {}
        for start in range(0, len(queues), AT_ONCE):
            some = queues[start : start + AT_ONCE]
            asked = [("zcount", (key(queue), "-inf", before_ms)) for queue in some for key in NEGLECTED]
            counts = iter(await self._each(asked))
            for queue in some:
                leases, retries, deadlines = next(counts), next(counts), next(counts)
                if leases or retries or deadlines:
                    found[queue] = Neglected(expired_leases=leases, due_retries=retries, due_deadlines=deadlines)
        return found

    async def _heaviest(self, queues: Queues) -> dict[QueueName, Heaviest]:
        """Find the heaviest account of the most crowded queues, unless a queue has too many accounts to read."""
        crowded = [queue for queue, stats in queues.items() if work_of(stats) >= CROWDED]
        asked = sorted(crowded, key=lambda queue: (-work_of(queues[queue]), queue))[:MOST_CROWDED]
        accounts = await self._each([("hlen", (keys.queued(queue),)) for queue in asked])
        few = [queue for queue, count in zip(asked, accounts, strict=True) if 1 < count <= MOST_ACCOUNTS]
        found: dict[QueueName, Heaviest] = {}
        for queue, counts in zip(few, await self._each([("hgetall", (keys.queued(q),)) for q in few]), strict=True):
            waiting = {text(name): int(count) for name, count in counts.items() if int(count) > 0}
            if waiting:
                account, most = max(waiting.items(), key=itemgetter(1))
                found[queue] = Heaviest(account=account, waiting=most, accounts=len(waiting))
        return found

    async def _letters(self, queues: Sequence[QueueName]) -> dict[QueueName, Letter]:
        newest = await self._each([("zrange", (keys.dead(queue), -1, -1, False, True)) for queue in queues])
        named = [(queue, *found[0]) for queue, found in zip(queues, newest, strict=True) if found]
        histories = await self._each(
            [("hget", (keys.record(PredictionId(text(name))), "history")) for _, name, _ in named]
        )
        return {
            queue: Letter(
                id=text(name), at_ms=int(at), codes=tuple(spent.code for spent in spent_attempts(text(history or b"")))
            )
            for (queue, name, at), history in zip(named, histories, strict=True)
        }

    async def _burns(self, queues: Queues, now_ms: int) -> dict[QueueName, Burns]:
        """Return the burn rates of queues that burn now. Five minutes of a queue are cheap to read, an hour is not."""
        promising = [queue for queue, stats in queues.items() if stats.objectives and stats.live][:MOST_PROMISING]
        soon = await self._history.many(promising, most=SOON_SAMPLES)
        hot = [
            queue
            for queue, samples in soon.items()
            if any(
                windows["5m"].rate > HOT for windows in burns(samples, queues[queue].objectives, now_ms=now_ms).values()
            )
        ][:MOST_BURNING]
        whole = await self._history.many(hot)
        return {queue: burns(samples, queues[queue].objectives, now_ms=now_ms) for queue, samples in whole.items()}

    async def _each(self, asked: Sequence[tuple[str, tuple[Any, ...]]]) -> list[Any]:
        """Return the replies to these commands, in one write."""

        return await pipelined(self._redis, lambda pipe: [getattr(pipe, name)(*args) for name, args in asked])


NEGLECTED: Final = (keys.lease, keys.delayed, keys.deadline)
