"""What is added to the logs from now on, of all partitions or of one queue's, for whoever only watches.

Keeps no cursor beyond its own life, so it is no way to carry the log: see `feeder.py`. Reads only.
"""

from collections.abc import Sequence
from typing import Final

from director.audit.log import CHANGES, AuditLog, Cursor, Entry
from director.core.ids import Partition

__all__ = ("Following", "News")

AT_ONCE: Final = 500


class News:
    """What one round found, in the order of time; `missed`: how many were cut before it came."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.missed = 0
        self.more = False


class Following:
    """Of these partitions and the changes of operators; of all that have a queue where none is named."""

    def __init__(self, log: AuditLog, partitions: Sequence[Partition] = ()) -> None:
        self._log = log
        self._partitions = partitions
        self._cursors: dict[Partition, Cursor] = {}

    async def begin(self) -> None:
        """What is there already was before. Raises BackendUnavailable, as `read` does."""
        for partition in await self._read_of():
            self._cursors[partition] = await self._log.newest(partition)

    async def read(self) -> News:
        """One round; one that is cut short by Redis is made again by the next."""
        news, cursors = News(), dict(self._cursors)
        for partition in await self._read_of():
            # what has a queue only now has nothing that is older, but where one was removed before
            after = cursors.get(partition) or await self._log.oldest(partition)
            batch = await self._log.read(partition, after, count=AT_ONCE)
            cursors[partition] = batch.cursor
            news.entries += batch.entries
            news.missed += batch.missed
            news.more |= len(batch.entries) == AT_ONCE
        self._cursors = cursors
        news.entries.sort(key=lambda entry: entry.at)
        return news

    async def _read_of(self) -> Sequence[Partition]:
        return [CHANGES, *self._partitions] if self._partitions else await self._log.partitions()
