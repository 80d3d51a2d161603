"""Bring a sink what the logs have, in order within each partition, for as long as the process lives.

Never loses what the log still has: a sink or a Redis that is away is waited for. One sink, one process; another sink is
another process with cursors of its own.
"""

import logging
from typing import Final, NoReturn

from msgspec import Struct

from director.audit.log import AuditLog, Cursor
from director.audit.sinks import AuditSink, SinkAway
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import Partition

__all__ = ("Fed", "Feeder")

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
LONGEST_S: Final = 60.0
AT_ONCE: Final = 500


class Fed(Struct, frozen=True):
    """What one round brought, what had been cut before it came, and whether it was not all."""

    entries: int = 0
    missed: int = 0
    more: bool = False


class Feeder:
    """The logs of all partitions that have a queue, or had one when the sink read them, to one sink."""

    def __init__(self, audit_log: AuditLog, sink: AuditSink, clock: Clock) -> None:
        self._log = audit_log
        self._sink = sink
        self._clock = clock
        self._cursors: dict[Partition, Cursor] | None = None

    async def run(self) -> NoReturn:
        """A round every second, at once after one that was not all; a longer wait while something is away.

        Raises SettingsError.
        """
        pause_s, told = TICK_S, ""
        while True:
            try:
                fed = await self.run_once()
            except (BackendUnavailable, SinkAway) as exc:
                if str(exc) != told:
                    log.warning("the log waits", extra={"reason": str(exc)})
                pause_s, told = min(2 * pause_s, LONGEST_S), str(exc)
            else:
                pause_s, told = TICK_S, ""
                if fed.more:
                    continue
            await self._clock.sleep(pause_s)

    async def catch_up(self) -> Fed:
        """All that there is now. Raises as run_once does."""
        entries = missed = 0
        while True:
            fed = await self.run_once()
            entries, missed = entries + fed.entries, missed + fed.missed
            if not fed.more:
                return Fed(entries, missed)

    async def run_once(self) -> Fed:
        """The next batch of each partition, so that a busy one keeps none waiting. Raises as log and sink do."""
        if self._cursors is None:
            self._cursors = {Partition(name): cursor for name, cursor in (await self._sink.cursors()).items()}
        fed = Fed()
        for partition in await self._log.partitions():
            if partition not in self._cursors:  # from now on it counts what is cut, also while the sink is away
                self._cursors[partition] = await self._log.oldest(partition)
        for partition in sorted(self._cursors):  # also where the last queue was deleted: its log may have more
            part = await self._feed(partition, self._cursors)
            fed = Fed(fed.entries + part.entries, fed.missed + part.missed, fed.more or part.more)
        return fed

    async def _feed(self, partition: Partition, cursors: dict[Partition, Cursor]) -> Fed:
        batch = await self._log.read(partition, cursors[partition], count=AT_ONCE)
        if batch.entries or batch.missed:
            await self._sink.write(batch)
        if batch.missed:
            log.warning("entries of the log were cut unread", extra={"partition": partition, "count": batch.missed})
        cursors[partition] = batch.cursor
        return Fed(len(batch.entries), batch.missed, len(batch.entries) == AT_ONCE)
