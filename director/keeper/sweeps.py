"""The short roles: each asks one script of every queue. `keeper.py` says how often each one runs."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct
from redis.asyncio import Redis

from director.broker.replies import Repair
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.ids import PredictionId, QueueName
from director.core.samples import MOST, PERIOD_S
from director.keeper.registry import Registry
from director.runtime.sweep import LIMIT, Place, Reply, sweep
from director.store.records import hours_of

log = logging.getLogger(__name__)

SILENT_S: Final = 3600.0
# Predictions of one queue per call: a script holds up the whole server while it runs.
SLICE: Final = 200
STEP_S: Final = 0.1


def ignore(*_: object) -> None: ...


async def sweep_all(
    places: Iterable[Place], call: Callable[[Place], Awaitable[Reply]], *, is_full: Callable[[Reply], bool]
) -> dict[Place, list[Reply]]:
    """Sweep, and call again for each place whose reply was full. Return the replies of each place."""
    replies: dict[Place, list[Reply]] = {}
    left = list(places)
    while left:
        found = await sweep(left, call)
        for place, reply in found.items():
            replies.setdefault(place, []).append(reply)
        left = [place for place, reply in found.items() if is_full(reply)]
    return replies


async def promote(
    scripts: Scripts, registry: Registry, on_promoted: Callable[[QueueName, int], None] = ignore
) -> dict[QueueName, int]:
    """Put due retries back into line, wake a director for them, and return how many by queue."""
    queues = await registry.awake("promoter", glance_s=0)
    promoted = await sweep_all(
        queues, lambda queue: scripts.promote(queue, limit=LIMIT), is_full=lambda count: count == LIMIT
    )
    retries = {queue: sum(counts) for queue, counts in promoted.items() if any(counts)}
    for queue, count in retries.items():
        on_promoted(queue, count)
        log.info("retries are due", extra={"queue": queue, "count": count})
    return retries


async def renew_hours(redis: Redis, scripts: Scripts, registry: Registry) -> dict[QueueName, int]:
    """Bring the closures of later days to queues that have open hours. Returns how many hours each has."""
    queues = await registry.queues()
    kept = {queue: found for queue, found in zip(queues, await hours_of(redis, queues), strict=True) if found}

    async def renew(queue: QueueName) -> int:
        of = list(kept[queue].items())
        for start in range(0, len(of), LIMIT):
            await asyncio.gather(
                *(
                    scripts.hours(queue, hours, account=account, revision=revision)
                    for account, (revision, hours) in of[start : start + LIMIT]
                )
            )
        return len(of)

    return await sweep(kept, renew)


class Expired(Struct, frozen=True):
    ended: int = 0
    told: int = 0


async def expire(scripts: Scripts, registry: Registry, on_expired: Callable[[int, int], None] = ignore) -> Expired:
    """End what waited past its deadline, and notify the directors of what runs past it: they stop it and finish."""

    async def of(queue: QueueName) -> tuple[int, int]:
        ended, told = await scripts.expire(queue, limit=LIMIT)
        if ended or told:
            on_expired(ended, told)
            log.info("deadlines passed", extra={"queue": queue, "ended": ended, "told": told})
        return ended, told

    replies = await sweep_all(await registry.awake("expirer"), of, is_full=lambda counts: sum(counts) == LIMIT)
    return Expired(*(sum(reply[kind] for each in replies.values() for reply in each) for kind in (0, 1)))


async def retire(scripts: Scripts, registry: Registry) -> dict[QueueName, list[str]]:
    """Forget directors that have been silent for an hour, and return their names by queue.

    One with pending entries is kept, since entries of a forgotten consumer would never be delivered again.
    """

    async def one_of(queue: QueueName) -> str:
        name = await scripts.retire(queue, silent_s=SILENT_S)
        if name:
            log.info("director forgotten", extra={"queue": queue, "director": name})
        return name

    replies = await sweep_all(await registry.queues(), one_of, is_full=bool)
    return {queue: list(filter(None, names)) for queue, names in replies.items() if any(names)}


@dataclass(slots=True, eq=False)
class Sampler:
    """Records every ten seconds how each active queue stands, once for each period, however many keepers run."""

    _scripts: Scripts
    _registry: Registry
    _clock: Clock
    _seen: set[QueueName] = field(default_factory=set)
    _sampled_s: float | None = None

    async def run_once(self) -> dict[QueueName, bool]:
        """Return the queues that were sampled, if it is time. True means that the queue is busy."""
        self._seen.update(await self._registry.awake("sampler"))
        now_s = self._clock.monotonic()
        if self._sampled_s is not None and now_s - self._sampled_s < PERIOD_S:
            return {}
        self._sampled_s = now_s
        asked = sorted(self._seen)
        is_busy = await sweep(asked, lambda queue: self._scripts.sample(queue, period_s=PERIOD_S, most=MOST))
        self._seen = {queue for queue, busy in is_busy.items() if busy}
        return is_busy


class Reconciled(Struct, frozen=True):
    repairs: tuple[tuple[PredictionId, Repair], ...] = ()
    is_complete: bool = False


@dataclass(slots=True, eq=False)
class Reconciler:
    """Repairs predictions that are lost: accepted, not ended, and in no list that would bring them on.

    Repairs only put a prediction where the other roles see it. `repaired` counts them by kind.
    """

    _scripts: Scripts
    _registry: Registry
    _clock: Clock
    _lease_s: float
    on_repaired: Callable[[Repair], None] = ignore
    repaired: Counter[Repair] = field(default_factory=Counter)
    _next: dict[QueueName, int] = field(default_factory=dict)

    async def compare_all(self) -> None:
        while not (await self.run_once()).is_complete:
            await self._clock.sleep(STEP_S)

    async def run_once(self) -> Reconciled:
        if not self._next:
            self._next = dict.fromkeys(await self._registry.queues(), 0)
        slices = await sweep(self._next, self._reconcile)
        self._next = {queue: following for queue, (following, _) in slices.items() if following}
        repairs = tuple(repair for _, batch in slices.values() for repair in batch)
        return Reconciled(repairs, is_complete=not self._next)

    async def _reconcile(self, queue: QueueName) -> tuple[int, list[tuple[PredictionId, Repair]]]:
        start = self._next[queue]
        following, batch = await self._scripts.reconcile(queue, start=start, count=SLICE, lease_s=self._lease_s)
        for prediction_id, repair in batch:
            self.repaired[repair] += 1
            self.on_repaired(repair)
            log.warning("repaired", extra={"prediction": prediction_id, "queue": queue, "repair": repair})
        return following, batch
