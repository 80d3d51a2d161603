"""Know which queues exist, and which have work for a role: those in which anything is accepted and has not ended.

Idle queues cost all roles together one look. A role that is given one queue too many finds nothing there.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import existing, is_cluster
from director.core.clock import Clock
from director.core.ids import Partition, QueueName
from director.runtime.sweep import Place
from director.store.catalog import Catalog

# Only a retry can be due sooner than this after acceptance, so the promoter takes a fresh look each time.
GLANCE_S: Final = 1.0
WHOLE_S: Final = 60.0
# Absent keys that one command asks for. If one of them exists now, each is asked for alone.
AT_ONCE: Final = 64


@dataclass(slots=True, eq=False)
class Registry:
    """The queues, at most `keep_s` old. A queue is registered long before it can owe anything."""

    _redis: Redis
    _catalog: Catalog
    _clock: Clock
    keep_s: float = 3.0
    _read_s: float | None = None
    _queues: list[QueueName] | None = None
    _live: dict[QueueName, str] = field(default_factory=dict)
    _owed: dict[Partition, str] = field(default_factory=dict)
    _unspent: dict[Partition, str] = field(default_factory=dict)
    _unsettled: dict[Partition, str] = field(default_factory=dict)
    _together: list[list[str]] = field(default_factory=list)
    _glancing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _glanced_s: float | None = None
    _present: set[str] = field(default_factory=set)
    _whole_s: dict[str, float] = field(default_factory=dict)

    async def queues(self) -> list[QueueName]:
        now_s = self._clock.monotonic()
        if self._queues is None or self._read_s is None or now_s - self._read_s >= self.keep_s:
            queues = await self._catalog.queues()
            if queues != self._queues:  # always the first time: webhooks may be owed after the last queue is gone
                await self._know(queues)
            self._queues, self._read_s = queues, now_s
        return self._queues

    async def awake(self, role: str, *, glance_s: float = GLANCE_S, whole_s: float = WHOLE_S) -> list[QueueName]:
        """Return every queue with live predictions, by a look at most `glance_s` old; every queue each `whole_s`."""
        queues = await self.queues()
        now_s = self._clock.monotonic()
        if role not in self._whole_s or now_s - self._whole_s[role] >= whole_s:
            self._whole_s[role] = now_s
            return queues
        return await self._present_of(self._live, glance_s)

    async def live(self) -> list[QueueName]:
        """Return the queues with live predictions alone, by a look at most `GLANCE_S` old."""
        await self.queues()
        return await self._present_of(self._live)

    async def owing(self) -> list[Partition]:
        await self.queues()
        return await self._present_of(self._owed)

    async def unspent(self) -> list[Partition]:
        await self.queues()
        return await self._present_of(self._unspent)

    async def to_settle(self) -> list[Partition]:
        await self.queues()
        return await self._present_of(self._unsettled)

    async def _know(self, queues: list[QueueName]) -> None:
        live = {queue: keys.live(queue) for queue in queues}
        by_partition: dict[Partition, list[str]] = {}
        for queue, key in live.items():
            by_partition.setdefault(keys.queue_partition(queue), []).append(key)
        for partition in await self._catalog.partitions():  # also of queues that are gone
            by_partition.setdefault(partition, [])
        owed = {partition: keys.owed(partition) for partition in sorted(by_partition)}
        unspent = {partition: keys.unspent(partition) for partition in owed}
        unsettled = {partition: keys.unsettled(partition) for partition in owed}
        together = [
            [owed[partition], unspent[partition], unsettled[partition], *by_partition[partition]] for partition in owed
        ]
        if not await is_cluster(self._redis):  # in a Cluster, one command may not ask for keys of two partitions
            together = [[key for of_partition in together for key in of_partition]]
        self._live, self._owed, self._unspent, self._together = live, owed, unspent, together
        self._unsettled = unsettled
        self._glanced_s = None

    async def _present_of(self, named: Mapping[Place, str], glance_s: float = GLANCE_S) -> list[Place]:
        async with self._glancing:
            now_s = self._clock.monotonic()
            if self._glanced_s is None or now_s - self._glanced_s >= min(glance_s, self.keep_s):
                self._present = await self._look()
                self._glanced_s = now_s
            return [place for place, key in named.items() if key in self._present]

    async def _look(self) -> set[str]:
        known = [[key] for of_slot in self._together for key in of_slot if key in self._present]
        absent = [[key for key in of_slot if key not in self._present] for of_slot in self._together]
        groups = [some[at : at + AT_ONCE] for some in absent for at in range(0, len(some), AT_ONCE)]
        found = await existing(self._redis, known + groups)
        new = [[key] for group in found if len(group) > 1 for key in group]
        return {key for (key,) in [*(group for group in found if len(group) == 1), *await existing(self._redis, new)]}
