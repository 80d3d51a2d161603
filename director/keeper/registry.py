"""Which queues there are, and which of them anything is accepted in: those that have work for a role.

What was never accepted cannot come due, so an idle queue costs all roles together one glance, not each of them a call.
Never decides what is done: a role that is given one queue too many finds nothing there.
"""

import asyncio
from typing import Final

from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined
from director.core.clock import Clock
from director.core.ids import Partition, QueueName
from director.store.catalog import Catalog

# Nothing but a retry is due sooner than this after it was accepted: the promoter takes a glance of its own each time
GLANCE_S: Final = 1.0
# This often a role looks at every queue all the same, so that whatever the glance does not show is seen as well
WHOLE_S: Final = 60.0
# Keys that one command asks for, of those that were absent: if some is there now, each of them is asked for alone
AT_ONCE: Final = 64


class Registry:
    """The queues, at most `keep_s` old. A queue is registered long before it can owe anything."""

    def __init__(self, redis: Redis, catalog: Catalog, clock: Clock, *, keep_s: float = 3.0) -> None:
        self._redis = redis
        self._catalog = catalog
        self._clock = clock
        self._keep_s = keep_s
        self._read_s: float | None = None
        self._queues: list[QueueName] | None = None
        self._live: dict[QueueName, str] = {}
        self._owed: dict[Partition, str] = {}
        self._unspent: dict[Partition, str] = {}
        self._together: list[list[str]] = []
        self._glancing = asyncio.Lock()
        self._glanced_s: float | None = None
        self._present: set[str] = set()
        self._whole_s: dict[str, float] = {}

    async def queues(self) -> list[QueueName]:
        """Every queue there is."""
        now_s = self._clock.monotonic()
        if self._queues is None or self._read_s is None or now_s - self._read_s >= self._keep_s:
            queues = await self._catalog.queues()
            if queues != self._queues:  # the first time in any case: what is owed may outlive the last queue
                await self._know(queues)
            self._queues, self._read_s = queues, now_s
        return self._queues

    async def awake(self, role: str, *, glance_s: float = GLANCE_S, whole_s: float = WHOLE_S) -> list[QueueName]:
        """Every queue that something was accepted in and has not ended, by a glance at most `glance_s` old.

        The first time of each role, and every `whole_s` from then on, every queue there is.
        """
        queues = await self.queues()
        now_s = self._clock.monotonic()
        if role not in self._whole_s or now_s - self._whole_s[role] >= whole_s:
            self._whole_s[role] = now_s
            return queues
        present = await self._glance(glance_s)
        return [queue for queue, live in self._live.items() if live in present]

    async def owing(self) -> list[Partition]:
        """Every partition that owes a webhook."""
        await self.queues()
        present = await self._glance(GLANCE_S)
        return [partition for partition, owed in self._owed.items() if owed in present]

    async def unspent(self) -> list[Partition]:
        """Every partition where what ended had compute reserved."""
        await self.queues()
        present = await self._glance(GLANCE_S)
        return [partition for partition, unspent in self._unspent.items() if unspent in present]

    async def _know(self, queues: list[QueueName]) -> None:
        live = {queue: keys.live(queue) for queue in queues}
        by_partition: dict[Partition, list[str]] = {}
        for queue, key in live.items():
            by_partition.setdefault(keys.queue_partition(queue), []).append(key)
        for partition in await self._catalog.partitions():  # of queues that are gone, too
            by_partition.setdefault(partition, [])
        owed = {partition: keys.owed(partition) for partition in sorted(by_partition)}
        unspent = {partition: keys.unspent(partition) for partition in owed}
        together = [[owed[partition], unspent[partition], *by_partition[partition]] for partition in owed]
        cluster = await ask(lambda: self._redis.info("cluster"))
        if not cluster["cluster_enabled"]:  # there, a command may not ask for keys of two partitions
            together = [[key for of_partition in together for key in of_partition]]
        self._live, self._owed, self._unspent, self._together = live, owed, unspent, together
        self._glanced_s = None

    async def _glance(self, glance_s: float) -> set[str]:
        """Which of all those keys there are."""
        async with self._glancing:
            now_s = self._clock.monotonic()
            if self._glanced_s is None or now_s - self._glanced_s >= min(glance_s, self._keep_s):
                self._present = await self._look()
                self._glanced_s = now_s
            return self._present

    async def _look(self) -> set[str]:
        """One command asks for many keys that were absent; those that were there are asked for one by one."""
        known = [[key] for of_slot in self._together for key in of_slot if key in self._present]
        absent = [[key for key in of_slot if key not in self._present] for of_slot in self._together]
        groups = [some[at : at + AT_ONCE] for some in absent for at in range(0, len(some), AT_ONCE)]
        found = await self._existing(known + groups)
        new = [[key] for group in found if len(group) > 1 for key in group]
        return {key for (key,) in [*(group for group in found if len(group) == 1), *await self._existing(new)]}

    async def _existing(self, groups: list[list[str]]) -> list[list[str]]:
        """Those groups of which at least one key exists."""
        counts = await pipelined(self._redis, lambda pipe: [pipe.exists(*group) for group in groups])
        return [group for group, count in zip(groups, counts, strict=True) if count]
