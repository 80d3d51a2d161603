"""Show operators the whole service at a moment: queues, directors, owed webhooks, and what needs an operator.

It reads slices, and rests a hundred times as long as a look took, so that watching does not load Redis. Costly
questions are asked only of the few queues where the answer may show a fault. Every question is bounded.
"""

import time
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, TypeVar

from msgspec import Struct
from redis.asyncio import Redis

from director.broker.redis_client import infos, server_ms, text
from director.broker.replies import QueueStats
from director.core.clock import Clock
from director.core.data_bytes import Fullness
from director.core.hours import DAY_MS
from director.core.ids import PredictionId, QueueName
from director.core.policy import LATE_MS
from director.core.samples import Burns, Sample, burns
from director.core.schema import parse_history
from director.core.view import iso
from director.operate import findings
from director.operate.findings import (
    Closer,
    Expiry,
    Failure,
    Finding,
    Heaviest,
    Letter,
    Neglected,
    Situation,
    Usual,
    find,
    show_queue,
    work_of,
)
from director.operate.views import (
    DeviceView,
    DirectorView,
    ProcessView,
    QueueView,
    devices_of,
    director_view,
    process_view,
    stats_of_newcomers,
)
from director.store.account_data import Holder, holder_and_expiring
from director.store.dead import newest_letters
from director.store.directors import DirectorFound, Directors
from director.store.owed import Owed
from director.store.processes import Processes
from director.store.queues import QueueHistory, Queues, account_counts, overdue_counts, waiting_by_account
from director.store.records import queue_fields, record_fields
from director.store.services import Services
from director.store.splits import read_split, read_tried

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
    count: int
    late: int


class Snapshot(Struct, frozen=True, kw_only=True):
    """The service within a moment, the worst findings first. `more_queues`, `more_directors`: those left out."""

    at: str
    queues: Sequence[QueueView]
    more_queues: int
    directors: Sequence[DirectorView]
    more_directors: int
    processes: Sequence[ProcessView] = ()
    owed: OwedCount
    devices: Sequence[DeviceView] = ()
    findings: Sequence[Finding] = ()


@dataclass(slots=True, eq=False)
class Overview:
    """Each watcher looks through one repeatedly. Raises BackendUnavailable while Redis cannot answer."""

    _queues: Queues
    _directors: Directors
    _owed: Owed
    _closer: "CloserLook"
    _clock: Clock
    _took: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _spent_s: float = 0.0
    _seen: int = 0

    @classmethod
    def of(cls, services: Services) -> "Overview":
        closer = CloserLook(services.redis, services.owed)
        return cls(services.queues, services.directors, services.owed, closer, services.clock)

    async def look(self) -> Snapshot:
        at, self._spent_s = iso(self._clock.now_ms()), 0.0
        names = await self._time(self._queues.all())
        seen, queues = names[:MOST_QUEUES], dict[QueueName, QueueStats]()
        for start in range(0, len(seen), SLICE):
            queues |= await self._time(self._queues.stats_of(seen[start : start + SLICE]))
            await self._clock.sleep(BREATH_S)
        newcomers = await self._time(self._directors.newcomers())
        queues = stats_of_newcomers(newcomers) | queues
        count, late = await self._time(self._owed.count())
        situation, found = await self._time(self.judge(queues, newcomers, owed=count, owed_late=late))
        directors = situation.directors
        self._took.append(self._spent_s)
        self._seen = len(queues)
        return Snapshot(
            at=at,
            queues=[show_queue(*one, found) for one in queues.items()],
            more_queues=len(names) - len(seen),
            directors=[director_view(one) for one in directors[:MOST_DIRECTORS]],
            more_directors=max(0, len(directors) - MOST_DIRECTORS),
            processes=[process_view(one) for one in situation.closer.processes],
            owed=OwedCount(count=count, late=late),
            findings=found,
            devices=devices_of(directors),
        )

    async def judge(
        self, queues: "Stats", newcomers: Sequence[DirectorFound] = (), *, owed: int = 0, owed_late: int = 0
    ) -> tuple[Situation, list[Finding]]:
        """Return the situation and the findings of the service as far as it has these queues. `newcomers`: directors
        whose models have none yet, but a row of `queues` each.
        """
        directors = [*newcomers, *await self._directors.of(list(queues))]
        closer = await self._closer.look(queues, directors, owed=owed)
        situation = Situation(queues=queues, directors=directors, owed_late=owed_late, closer=closer)
        return situation, find(situation)

    async def newcomers(self) -> list[DirectorFound]:
        """Return the directors whose models have no queue yet."""
        return await self._directors.newcomers()

    async def of_queue(self, queue: QueueName, *, owed: int = 0) -> list[Finding]:
        """Return the findings that concern one queue, and those of the whole service."""
        _, found = await self.judge(dict(await self._queues.stats_of([queue])), owed=owed)
        return found

    @property
    def rest_s(self) -> float:
        longest_s = LONGEST_S * max(1.0, self._seen / MANY)
        return min(max(SHORTEST_S, REST * min(self._took, default=0)), longest_s)

    async def _time(self, asked: Awaitable[T]) -> T:
        began = self._clock.monotonic()
        answer = await asked
        self._spent_s += self._clock.monotonic() - began
        return answer


TRIES: Final = 3  # the quickest counts, since other work of this process may delay an answer
MOST_CROWDED: Final = 10
MOST_ACCOUNTS: Final = 1_000
MOST_LETTERS: Final = 20
MOST_PROMISING: Final = 50
MOST_LONG: Final = 50  # queues
MOST_FAILING: Final = 20  # queues
FAILURE: Final = ("error", "started", "completed")
LONGEST_READ: Final = 1_000  # characters of an error
MOST_EXPIRING: Final = 100  # tokens
SERVICE: Final = ("service_ms", "service_dev", "service_n", "service_cost")
MOST_BURNING: Final = 5  # an hour of one queue takes some milliseconds to read
SOON_SAMPLES: Final = 30
AT_ONCE: Final = 50  # queues per write


Stats = Mapping[QueueName, QueueStats]


@dataclass(slots=True, eq=False)
class CloserLook:
    _redis: Redis
    _owed: Owed

    async def look(self, queues: Stats, directors: Sequence[DirectorFound] = (), *, owed: int) -> Closer:
        now_ms, answer_ms = await self._measure_redis()
        holder, expiring = await self._of_accounts(now_ms)
        return Closer(
            now_ms=now_ms,
            redis_ms=answer_ms,
            neglected=await self._find_neglected(
                [queue for queue, stats in queues.items() if stats.live], now_ms - LATE_MS
            ),
            heaviest=await self._heaviest(queues),
            letters=await self._letters([queue for queue, stats in queues.items() if stats.dead][:MOST_LETTERS]),
            burns=await self._burns(queues, now_ms),
            failing=await self._owed.failing(after=findings.FAILING_AFTER) if owed else (),
            memory=Fullness.of(await infos(self._redis, "memory")),
            writes_to_disk=all(map(findings.writes_to_disk, await infos(self._redis, "persistence"))),
            usual=await self._usual(directors, now_ms),
            failures=await self._failures(directors),
            holder=holder,
            expiring=expiring,
            processes=await Processes(self._redis).alive(now_ms),
            stopped={
                name: split
                for name, kept in await read_tried(self._redis)
                if (split := read_split(kept)) is not None and split.stopped_why
            },
        )

    async def _usual(self, directors: Sequence[DirectorFound], now_ms: int) -> dict[QueueName, Usual]:
        """Return how long runs usually take, of the queues in which one runs for long."""
        since_ms = now_ms - findings.LEAST_HANG_S * 1000
        long = [queue for queue, runs in findings.oldest_runs(directors).items() if runs[0][1].since_ms < since_ms]
        known = await queue_fields(self._redis, long[:MOST_LONG], SERVICE)
        return {
            queue: Usual(
                mean_s=float(mean or 0) / 1000,
                deviation_s=float(dev or 0) / 1000,
                runs=int(runs or 0),
                cost=float(cost or 1),
            )
            for queue, (mean, dev, runs, cost) in zip(long, known, strict=False)
        }

    async def _failures(self, directors: Sequence[DirectorFound]) -> dict[PredictionId, Failure]:
        """Return the newest failed runs of queues in which most fail."""
        failing = list(findings.failing_runs(directors).values())[:MOST_FAILING]
        ids = list(dict.fromkeys(name for one in failing for name in (one.last, one.newest) if name))
        known = await record_fields(self._redis, ids, FAILURE)
        return {
            name: Failure(
                error=text(error or b"")[:LONGEST_READ],
                ran_s=(int(completed) - int(started)) / 1000 if started and completed else None,
            )
            for name, (error, started, completed) in zip(ids, known, strict=True)
        }

    async def _of_accounts(self, now_ms: int) -> tuple[Holder | None, list[Expiry]]:
        """Return the account with the most data, as a keeper found it, and tokens that were used and expire soon."""
        until_ms = now_ms + findings.SOON_DAYS * DAY_MS
        holder, expiring = await holder_and_expiring(self._redis, from_ms=now_ms, until_ms=until_ms, most=MOST_EXPIRING)
        return holder, [Expiry(*one) for one in expiring]

    async def _measure_redis(self) -> tuple[int, float]:
        took = []
        for _ in range(TRIES):
            began = time.perf_counter()
            now_ms = await server_ms(self._redis)
            took.append((time.perf_counter() - began) * 1000)
        return now_ms, min(took)

    async def _find_neglected(self, queues: Sequence[QueueName], before_ms: int) -> dict[QueueName, Neglected]:
        found: dict[QueueName, Neglected] = {}
        for start in range(0, len(queues), AT_ONCE):
            some = queues[start : start + AT_ONCE]
            counts = await overdue_counts(self._redis, some, before_ms=before_ms)
            for queue, (leases, retries, deadlines) in zip(some, counts, strict=True):
                if leases or retries or deadlines:
                    found[queue] = Neglected(expired_leases=leases, due_retries=retries, due_deadlines=deadlines)
        return found

    async def _heaviest(self, queues: Stats) -> dict[QueueName, Heaviest]:
        crowded = [queue for queue, stats in queues.items() if work_of(stats) >= findings.CROWDED]
        asked = sorted(crowded, key=lambda queue: (-work_of(queues[queue]), queue))[:MOST_CROWDED]
        accounts = await account_counts(self._redis, asked)
        few = [queue for queue, count in zip(asked, accounts, strict=True) if 1 < count <= MOST_ACCOUNTS]
        found: dict[QueueName, Heaviest] = {}
        for queue, counts in zip(few, await waiting_by_account(self._redis, few), strict=True):
            waiting = {name: count for name, count in counts.items() if count > 0}
            if waiting:
                account, most = max(waiting.items(), key=itemgetter(1))
                found[queue] = Heaviest(account=account, waiting=most, accounts=len(waiting))
        return found

    async def _letters(self, queues: Sequence[QueueName]) -> dict[QueueName, Letter]:
        newest = await newest_letters(self._redis, queues)
        named = [(queue, *found) for queue, found in zip(queues, newest, strict=True) if found]
        histories = await record_fields(self._redis, [name for _, name, _ in named], ["history"])
        return {
            queue: Letter(
                id=name, at_ms=at_ms, codes=tuple(spent.code for spent in parse_history(text(history or b"")))
            )
            for (queue, name, at_ms), (history,) in zip(named, histories, strict=True)
        }

    async def _burns(self, queues: Stats, now_ms: int) -> dict[QueueName, Burns]:
        """Return the burn rates of queues that burn now. Five minutes of a queue are cheap to read, an hour is not."""

        def judge_one(queue: QueueName, samples: Sequence[Sample]) -> Burns:
            return burns(samples, queues[queue].objectives, now_ms=now_ms)

        history = QueueHistory(self._redis)
        promising = [queue for queue, stats in queues.items() if stats.objectives and stats.live][:MOST_PROMISING]
        soon = (await history.many(promising, most=SOON_SAMPLES)).items()
        hot = [one for one, samples in soon if any(lane["5m"].rate > 1 for lane in judge_one(one, samples).values())]
        return {queue: judge_one(queue, samples) for queue, samples in (await history.many(hot[:MOST_BURNING])).items()}
