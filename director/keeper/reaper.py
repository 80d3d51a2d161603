"""Recover the claims of directors that are gone: another attempt while any remain, else the dead letters.

An expired lease is believed only after one lease of unbroken contact with the server. While a server is away no
director can extend a lease, yet leases expire. A step of the server's clock is such an outage too. So is a suspended
machine: its monotonic clock stands still while the server's clock goes on. Several keepers may do this: a claim that
was recovered waits, and is not found twice.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct
from redis.asyncio import Redis

from director.broker.redis_client import infos
from director.broker.replies import Requeued
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import ALL_LANES, PredictionId, QueueName
from director.keeper.registry import GLANCE_S, Registry
from director.keeper.sweeps import ignore, sweep_all
from director.runtime.sweep import LIMIT, sweep
from director.store.records import queue_fields

log = logging.getLogger(__name__)

Claims = list[tuple[PredictionId, Requeued]]

# Directors extend leases every third of a lease. A silence of half a lease is too short to fail a call, but may cost a
# heartbeat. The next heartbeat still comes in time; after a longer silence it might not.
LONGEST_SILENCE: Final = 0.5


@dataclass(slots=True, kw_only=True, eq=False)
class Contact:
    """How long one run of the server has answered without a break. Pure: `at_s` is the monotonic time of an answer."""

    lease_s: float
    _run_id: str = ""
    _since_s: float | None = None
    _last_s: float = 0.0
    _server_s: float = 0.0

    @property
    def is_proven(self) -> bool:
        return self._since_s is not None and self._last_s - self._since_s >= self.lease_s

    @property
    def silence_s(self) -> float:
        return self.lease_s * LONGEST_SILENCE

    def note_answer(self, run_id: str, *, at_s: float, server_s: float, others_s: float = 0.0) -> None:
        """Note an answer of the server. Another run, a silence before, or a step of its clock begins a new contact.

        `others_s`: how long all keepers together have had contact with this run, so a new contact begins that long ago.
        """
        passed_s = at_s - self._last_s
        has_stepped = abs(server_s - self._server_s - passed_s) > self.silence_s
        if self._since_s is None or passed_s > self.silence_s or run_id != self._run_id:
            self._since_s = at_s - others_s
        elif has_stepped:  # the script may see no break in a step back: it knows no monotonic time
            self._since_s = at_s
        self._run_id, self._last_s, self._server_s = run_id, at_s, server_s

    def break_off(self) -> None:
        self._since_s = None


class ServerTime:
    """The server's time, given only once contact is proven. A keeper's roles share it, and so its contact."""

    def __init__(self, redis: Redis, scripts: Scripts, clock: Clock, *, lease_s: float) -> None:
        self._redis = redis
        self._scripts = scripts
        self._clock = clock
        self._contact = Contact(lease_s=lease_s)

    async def proven_ms(self) -> int | None:
        """Return the server's time now, or None while contact with it (every master of a Cluster) is too young.

        Judge leases by this time: a server that freezes runs a script on waking, when every lease has expired.
        """
        found = await infos(self._redis, "server")
        run_id = " ".join(sorted(str(info["run_id"]) for info in found))
        now_ms, others_s = await self._scripts.contact(run_id, silence_s=self._contact.silence_s)
        if len(found) > 1:  # each master of a Cluster has a clock, and a lease ends by it
            now_ms = min(now_ms, *(int(info["server_time_usec"]) // 1000 for info in found))
        self._contact.note_answer(run_id, at_s=self._clock.monotonic(), server_s=now_ms / 1000, others_s=others_s)
        return now_ms if self._contact.is_proven else None

    @asynccontextmanager
    async def proven(self) -> AsyncGenerator[int | None]:
        """Give the time as `proven_ms` does. If Redis cannot answer within the block, contact begins again."""
        try:
            yield await self.proven_ms()
        except BackendUnavailable:
            self._contact.break_off()
            raise


class Reaped(Struct, frozen=True):
    """The result of one sweep. `is_held_off`: nothing was looked at, since contact is too young."""

    claims: tuple[tuple[PredictionId, Requeued], ...] = ()
    is_held_off: bool = False


def without_faults(queue: QueueName, batch: Claims) -> Claims:
    """Log the claims that could not be recovered, and return the others."""
    for prediction_id, became in batch:
        if became == "fault":
            log.error(
                "claim not recovered: its record or a key of its account or queue is damaged",
                extra={"prediction": prediction_id, "queue": queue},
            )
    return [(prediction_id, became) for prediction_id, became in batch if became != "fault"]


@dataclass(slots=True, eq=False)
class Reaper:
    """Sweeps the leases of all queues. A claim whose lease was valid when contact was last proven is not touched."""

    _scripts: Scripts
    _registry: Registry
    _time: ServerTime
    _lease_s: float
    on_reaped: Callable[[QueueName, Requeued], None] = ignore

    async def run_once(self) -> Reaped:
        async with self._time.proven() as now_ms:
            if now_ms is None:
                return Reaped(is_held_off=True)
            queues = await self._registry.awake("reaper", glance_s=min(GLANCE_S, self._lease_s))
            taken = await sweep_all(
                queues, lambda queue: self._reap(queue, now_ms), is_full=lambda batch: len(batch) == LIMIT
            )
            return Reaped(tuple(claim for batches in taken.values() for batch in batches for claim in batch))

    async def _reap(self, queue: QueueName, now_ms: int) -> Claims:
        batch = await self._scripts.reap(queue, limit=LIMIT, lease_s=self._lease_s, now_ms=now_ms)
        batch = without_faults(queue, batch)
        for prediction_id, became in batch:
            self.on_reaped(queue, became)
            log.info("claim recovered", extra={"prediction": prediction_id, "queue": queue, "became": became})
        return batch


IDLE_LEASES: Final = 2
STEP_S: Final = 0.01
START: Final = "0-0"
# Pending entries of a queue in which nothing is accepted are only litter, so they may wait.
WHOLE_S: Final = 3600.0


class Recovered(Reaped, frozen=True):
    is_complete: bool = False


class Walk:
    """The way through the streams of one queue. Without its cursor, each call would see the same entries."""

    def __init__(self, streams: int) -> None:
        self.left = [(lane, number) for lane in ALL_LANES for number in range(streams)]
        self.cursor = START

    def went_to(self, cursor: str) -> None:
        self.cursor = cursor
        if cursor == START:
            self.left.pop()


@dataclass(slots=True, eq=False)
class Recoverer:
    """The slow cross-check of the reaper: finds claims whose lease is gone and whose entry was idle for two leases."""

    _redis: Redis
    _scripts: Scripts
    _registry: Registry
    _time: ServerTime
    _clock: Clock
    _lease_s: float
    on_recovered: Callable[[QueueName, Requeued], None] = ignore
    _walks: dict[QueueName, Walk] = field(default_factory=dict)

    async def look_through(self) -> None:
        while True:
            recovered = await self.run_once()
            if recovered.is_complete or recovered.is_held_off:
                return
            await self._clock.sleep(STEP_S)

    async def run_once(self) -> Recovered:
        """Make one bounded call for each queue of this pass, from where the last call for it stopped."""
        async with self._time.proven() as now_ms:
            if now_ms is None:
                return Recovered(is_held_off=True)
            if not self._walks:
                self._walks = await self._begin(await self._registry.awake("recoverer", whole_s=WHOLE_S))
            found = await sweep(self._walks, lambda queue: self._recover(queue, now_ms))
            self._walks = {queue: walk for queue, walk in self._walks.items() if queue in found and walk.left}
            claims = tuple(claim for batch in found.values() for claim in batch)
            return Recovered(claims, is_complete=not self._walks)

    async def _begin(self, queues: list[QueueName]) -> dict[QueueName, Walk]:
        counts = await queue_fields(self._redis, queues, ["read"])
        return {queue: Walk(int(count)) for queue, (count,) in zip(queues, counts, strict=True) if count}

    async def _recover(self, queue: QueueName, now_ms: int) -> Claims:
        walk = self._walks[queue]
        lane, number = walk.left[-1]
        cursor, batch = await self._scripts.recover(
            queue,
            lane,
            number,
            cursor=walk.cursor,
            count=LIMIT,
            idle_s=self._lease_s * IDLE_LEASES,
            now_ms=now_ms,
        )
        walk.went_to(cursor)
        batch = without_faults(queue, batch)
        for prediction_id, became in batch:
            self.on_recovered(queue, became)
            facts = {"prediction": prediction_id, "queue": queue, "became": became}
            log.warning("claim without a lease recovered", extra=facts)
        return batch
