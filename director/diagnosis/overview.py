"""Show operators the whole service at a moment: queues, directors, owed webhooks, and what needs an operator.

It reads slices, and rests a hundred times as long as a look took, so that watching does not load Redis. Nothing is
changed.
"""

from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Final, TypeVar

from msgspec import Struct

from director.broker.replies import QueueStats
from director.core.clock import Clock
from director.core.ids import QueueName
from director.core.view import iso
from director.diagnosis.closer_look import CloserLook
from director.diagnosis.findings import Finding, Situation, find
from director.diagnosis.views import DirectorView, QueueView, director_view, view_of
from director.store.directors import Directors
from director.store.owed import Owed
from director.store.queues import Queues
from director.store.services import Services

T = TypeVar("T")

MOST_QUEUES: Final = 1_000
MOST_DIRECTORS: Final = 1_000
SLICE: Final = 25  # queues per write: about a millisecond of the server, which serves others too
BREATH_S: Final = 0.01
REST: Final = 100  # times as long as a look took
SHORTEST_S: Final = 1.0
LONGEST_S: Final = 5.0
MANY: Final = 400  # queues: with more, a look may cost more than LONGEST_S makes up for, so the rest grows with them
REMEMBERED: Final = 10  # looks: the shortest is the closest to what Redis took, the remainder was this process


class OwedCount(Struct, frozen=True, kw_only=True):
    """How many webhooks are owed. `late` ones are due and were not tried."""

    count: int
    late: int


class Snapshot(Struct, frozen=True, kw_only=True):
    """The service within a moment. `more_queues` and `more_directors` count those left out, the last by name.

    `findings` need an operator, the worst first.
    """

    at: str
    queues: Sequence[QueueView]
    more_queues: int
    directors: Sequence[DirectorView]
    more_directors: int
    owed: OwedCount
    findings: Sequence[Finding] = ()


class Overview:
    """Each watcher looks through one repeatedly. Raises BackendUnavailable while Redis cannot answer."""

    def __init__(self, queues: Queues, directors: Directors, owed: Owed, closer: CloserLook, clock: Clock) -> None:
        self._queues = queues
        self._directors = directors
        self._owed = owed
        self._closer = closer
        self._clock = clock
        self._took: deque[float] = deque(maxlen=REMEMBERED)
        self._spent_s = 0.0
        self._seen = 0

    @classmethod
    def of(cls, services: Services) -> "Overview":
        """Build it on the services of one server."""
        closer = CloserLook(services.redis, services.owed)
        return cls(services.queues, services.directors, services.owed, closer, services.clock)

    async def look(self) -> Snapshot:
        at, self._spent_s = iso(self._clock.now_ms()), 0.0
        names = await self._timed(self._queues.all())
        seen, queues = names[:MOST_QUEUES], dict[QueueName, QueueStats]()
        for start in range(0, len(seen), SLICE):
            queues |= await self._timed(self._queues.stats_of(seen[start : start + SLICE]))
            await self._clock.sleep(BREATH_S)
        directors = await self._timed(self._directors.of(seen))
        count, late = await self._timed(self._owed.count())
        closer = await self._timed(self._closer.look(queues, owed=count))
        self._took.append(self._spent_s)
        self._seen = len(queues)
        return Snapshot(
            at=at,
            queues=[view_of(*one) for one in queues.items()],
            more_queues=len(names) - len(seen),
            directors=[director_view(one) for one in directors[:MOST_DIRECTORS]],
            more_directors=max(0, len(directors) - MOST_DIRECTORS),
            owed=OwedCount(count=count, late=late),
            findings=find(Situation(queues=queues, directors=directors, owed_late=late, closer=closer)),
        )

    @property
    def rest_s(self) -> float:
        """How long to wait before the next look."""
        longest_s = LONGEST_S * max(1.0, self._seen / MANY)
        return min(max(SHORTEST_S, REST * min(self._took, default=0)), longest_s)

    async def _timed(self, asked: Awaitable[T]) -> T:
        began = self._clock.monotonic()
        answer = await asked
        self._spent_s += self._clock.monotonic() - began
        return answer
