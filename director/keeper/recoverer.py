"""Find claims without a lease by the pending entries of the streams: the slow cross-check of the reaper.

A claim is recovered once both its lease is gone and its entry has been idle for two leases.
"""

import logging
from collections.abc import Callable
from typing import Final, NoReturn

from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import pipelined
from director.broker.replies import Requeued
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import LANES, PredictionId, QueueName
from director.keeper.contact import ServerTime
from director.keeper.registry import Registry
from director.runtime.sweep import LIMIT, repeat, sweep

log = logging.getLogger(__name__)

IDLE_LEASES: Final = 2
PERIOD_LEASES: Final = 2
# Between two rounds of a pass, so that a long list of pending entries leaves the server time for others.
STEP_S: Final = 0.01
START: Final = "0-0"
# Pending entries of a queue in which nothing is accepted are only litter, so they may wait.
WHOLE_S: Final = 3600.0


class Recovered(Struct, frozen=True):
    """The result of one round. `is_held_off`: nothing was looked at, since contact is too young.

    `is_complete`: this round ended the pass through every stream of every queue.
    """

    claims: tuple[tuple[PredictionId, Requeued], ...] = ()
    is_complete: bool = False
    is_held_off: bool = False


class Walk:
    """The way through the streams of one queue. The cursor is kept: from the start, each call would see the same
    entries.
    """

    def __init__(self, streams: int) -> None:
        self._left = [(lane, number) for lane in LANES for number in range(streams)]
        self.cursor = START

    @property
    def is_over(self) -> bool:
        return not self._left

    @property
    def stream(self) -> tuple[str, int]:
        """The lane and number to look at next."""
        return self._left[-1]

    def went_to(self, cursor: str) -> None:
        """Note where the call for this stream stopped."""
        self.cursor = cursor
        if cursor == START:
            self._left.pop()


class Recoverer:
    """Looks through the pending entries of all queues. Several keepers may: a recovered claim waits, and is not found
    twice.
    """

    def __init__(
        self,
        redis: Redis,
        scripts: Scripts,
        registry: Registry,
        time: ServerTime,
        clock: Clock,
        *,
        lease_s: float,
    ) -> None:
        self._redis = redis
        self._scripts = scripts
        self._registry = registry
        self._time = time
        self._clock = clock
        self._lease_s = lease_s
        self.on_recovered: Callable[[QueueName, Requeued], None] = lambda queue, became: None
        self._walks: dict[QueueName, Walk] = {}

    async def run(self) -> NoReturn:
        """Look through everything every two leases."""
        period_s = self._lease_s * PERIOD_LEASES
        await repeat(self._look_through, role="recoverer", tick_s=period_s, clock=self._clock)

    async def run_once(self) -> Recovered:
        """Make one bounded call for each queue of this pass, from where the last call for it stopped."""
        try:
            now_ms = await self._time.proven_ms()
            if now_ms is None:
                return Recovered(is_held_off=True)
            if not self._walks:
                self._walks = await self._begin(await self._registry.awake("recoverer", whole_s=WHOLE_S))
            found = await sweep(self._walks, lambda queue: self._recover(queue, now_ms))
        except BackendUnavailable:
            self._time.lost()
            raise
        # A faulty queue is skipped until the next pass.
        self._walks = {queue: walk for queue, walk in self._walks.items() if queue in found and not walk.is_over}
        claims = tuple(claim for batch in found.values() for claim in batch)
        return Recovered(claims, is_complete=not self._walks)

    async def _look_through(self) -> None:
        while True:
            recovered = await self.run_once()
            if recovered.is_complete or recovered.is_held_off:
                return
            await self._clock.sleep(STEP_S)

    async def _begin(self, queues: list[QueueName]) -> dict[QueueName, Walk]:
        counts = await pipelined(self._redis, lambda pipe: [pipe.hget(keys.meta(queue), "read") for queue in queues])
        return {queue: Walk(int(count)) for queue, count in zip(queues, counts, strict=True) if count}

    async def _recover(self, queue: QueueName, now_ms: int) -> list[tuple[PredictionId, Requeued]]:
        walk = self._walks[queue]
        lane, number = walk.stream
        idle_s = self._lease_s * IDLE_LEASES
        cursor, batch = await self._scripts.recover(
            queue, lane, number, cursor=walk.cursor, count=LIMIT, idle_s=idle_s, now_ms=now_ms
        )
        walk.went_to(cursor)
        for prediction_id, became in batch:
            self.on_recovered(queue, became)
            facts = {"prediction": prediction_id, "queue": queue, "became": became}
            log.warning("claim without a lease recovered", extra=facts)
        return batch
