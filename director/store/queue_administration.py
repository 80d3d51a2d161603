"""What an operator does with queues, whichever way it was asked for: pause, drain, resize, bound, migrate.

Every change is in the log of changes, with who made it. Judges nobody: whoever calls has asked whether the operator
may.
"""

from collections.abc import AsyncGenerator

from director.broker.scripts import Admission, QueueStats, Scripts
from director.core.ids import QueueName
from director.store.changes import Changes
from director.store.migration import Migration, Moved

__all__ = ("QueueAdministration",)


class QueueAdministration:
    """Changes to queues. `by` says who makes one. All methods raise BackendUnavailable while Redis cannot answer, and
    UnknownQueue where nobody registered it.
    """

    def __init__(self, scripts: Scripts, changes: Changes) -> None:
        self._scripts = scripts
        self._changes = changes

    async def pause(self, queue: QueueName, *, account: str = "", by: str) -> None:
        """Hand nothing out, of one account or at all. What is claimed runs on."""
        async with self._changes.noting("queue_paused", by=by, queue=queue, account=account):
            await self._scripts.pause(queue, paused=True, tenant=account)

    async def resume(self, queue: QueueName, *, account: str = "", by: str) -> None:
        """Hand out again what waits."""
        async with self._changes.noting("queue_resumed", by=by, queue=queue, account=account):
            await self._scripts.pause(queue, paused=False, tenant=account)

    async def drain(self, queue: QueueName, *, by: str) -> QueueStats:
        """Hand nothing out; how the queue stands then: drained once nothing is claimed. To ask again is no change."""
        stats = await self._scripts.stats(queue)
        if not stats.paused:
            await self.pause(queue, by=by)
            stats = await self._scripts.stats(queue)
        return stats

    async def resize(self, queue: QueueName, *, streams: int, by: str) -> tuple[int, int]:
        """Change the streams of each lane; returns (streams that take new work, streams that are read)."""
        async with self._changes.noting("queue_resized", by=by, queue=queue, streams=streams):
            return await self._scripts.resize(queue, streams=streams)

    async def bound(self, queue: QueueName, *, mode: Admission, max_queued: int | None, by: str) -> None:
        """What the queue does with more than it can run; `max_queued` goes with `bounded`."""
        async with self._changes.noting("queue_bounded", by=by, queue=queue, mode=mode, max_queued=max_queued):
            await self._scripts.bound(queue, mode=mode, max_queued=max_queued)

    async def migrate(
        self, queue: QueueName, to: QueueName, *, by: str, only_asks: bool = False
    ) -> AsyncGenerator[Moved]:
        """Move what waits to another queue of the model, a slice at a time. Raises SettingsError where it is of none.

        `only_asks`: says what would be moved, and nothing is.
        """
        migration = Migration(self._scripts, queue, to)
        if only_asks:
            async for moved in migration.steps(only_asks=True):
                yield moved
            return
        async with self._changes.noting("queue_migrated", by=by, queue=queue, to=to):
            async for moved in migration.steps():
                yield moved
