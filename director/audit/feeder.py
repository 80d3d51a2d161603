"""Carry the logs to a sink, in order within each partition: the process of `director audit`.

Entries that the log still has are never lost, since the feeder waits for a sink or a Redis that is away. Each sink has
its own process and cursors. If the process is asked to end, a batch on its way to a receiver is sent again by the next
one; a batch that is being written to a file is not.
"""

import hashlib
import logging
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NoReturn

import anyio
from msgspec import Struct
from redis.asyncio import Redis

from director.audit.log import AuditLog, Cursor
from director.audit.sinks import AuditSink, FileSink, HttpSink, SinkAway
from director.broker.redis_client import client
from director.core import signing
from director.core.clock import Clock, SystemClock
from director.core.errors import BackendUnavailable, SettingsError
from director.core.ids import Partition
from director.core.settings import AuditSettings
from director.core.webhook_url import host_of
from director.runtime import process
from director.webhooks.addresses import AllowList
from director.webhooks.sender import Sender

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
LONGEST_S: Final = 60.0
AT_ONCE: Final = 500  # entries of one batch
SCHEMES: Final = ("https://", "http://")


class Fed(Struct, frozen=True):
    """The entries that one round carried, and those that were cut from the log before. `more`: the round did not carry
    all.
    """

    entries: int = 0
    missed: int = 0
    more: bool = False


class Feeder:
    """Carries the logs of all partitions that have a queue, or had one when the sink read them, to one sink."""

    def __init__(self, audit_log: AuditLog, sink: AuditSink, clock: Clock) -> None:
        self._log = audit_log
        self._sink = sink
        self._clock = clock
        self._cursors: dict[Partition, Cursor] | None = None

    async def run(self) -> NoReturn:
        """Make a round every second, and at once after a round with more to carry. While something is away, wait
        longer.

        Raises SettingsError.
        """
        pause_s, reason = TICK_S, ""
        while True:
            try:
                fed = await self.run_once()
            except (BackendUnavailable, SinkAway) as exc:
                if str(exc) != reason:
                    log.warning("the audit log waits", extra={"reason": str(exc)})
                pause_s, reason = min(2 * pause_s, LONGEST_S), str(exc)
            else:
                pause_s, reason = TICK_S, ""
                if fed.more:
                    continue
            await self._clock.sleep(pause_s)

    async def catch_up(self) -> Fed:
        """Carry all that there is now. Raises as run_once does."""
        entries = missed = 0
        while True:
            fed = await self.run_once()
            entries, missed = entries + fed.entries, missed + fed.missed
            if not fed.more:
                return Fed(entries, missed)

    async def run_once(self) -> Fed:
        """Carry the next batch of each partition, so that a busy one delays no other. Raises as the log and the sink
        do.
        """
        if self._cursors is None:
            self._cursors = {Partition(name): cursor for name, cursor in (await self._sink.cursors()).items()}
        fed = Fed()
        for partition in await self._log.partitions():
            if partition not in self._cursors:  # from now on, count what is cut, also while the sink is away
                self._cursors[partition] = await self._log.oldest(partition)
        for partition in sorted(self._cursors):  # also partitions whose last queue was deleted: their log may have more
            part = await self._feed(partition, self._cursors)
            fed = Fed(fed.entries + part.entries, fed.missed + part.missed, fed.more or part.more)
        return fed

    async def _feed(self, partition: Partition, cursors: dict[Partition, Cursor]) -> Fed:
        batch = await self._log.read(partition, cursors[partition], count=AT_ONCE)
        if batch.entries or batch.missed:
            await self._sink.write(batch)
        if batch.missed:
            log.warning(
                "entries were cut before they were read",
                extra={"partition": partition, "count": batch.missed},
            )
        cursors[partition] = batch.cursor
        return Fed(len(batch.entries), batch.missed, len(batch.entries) == AT_ONCE)


def serve(settings: AuditSettings) -> None:
    """Carry the log until SIGTERM or SIGINT. An error that the operator has to mend ends it with one line."""
    process.serve("audit", "audit", _serve, settings)


async def _serve(settings: AuditSettings) -> None:
    with process.one_error(), anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with feeding(settings, SystemClock()) as feeder, anyio.create_task_group() as tasks:
            tasks.start_soon(_end_at_a_signal, signals, tasks.cancel_scope)
            if settings.audit_once:
                fed = await feeder.catch_up()
                log.info("the audit log is carried", extra={"entries": fed.entries, "missed": fed.missed})
            else:
                await feeder.run()
            tasks.cancel_scope.cancel()


async def _end_at_a_signal(signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()


@asynccontextmanager
async def feeding(settings: AuditSettings, clock: Clock) -> AsyncGenerator[Feeder]:
    """Yield the feeder with its connections, and close them afterwards."""
    if not settings.audit_to:
        raise SettingsError("say where the log goes: --to FILE or --to https://…")
    redis = client(settings.redis_url, name="director-audit")
    sink = _sink(settings, redis, clock)
    try:
        yield Feeder(AuditLog(redis), sink, clock)
    finally:
        with anyio.CancelScope(shield=True):
            await sink.aclose()
            await redis.aclose()


def _sink(settings: AuditSettings, redis: Redis, clock: Clock) -> AuditSink:
    if not settings.audit_to.lower().startswith(SCHEMES):
        return FileSink(Path(settings.audit_to))
    return HttpSink(
        settings.audit_to,
        name=settings.audit_name or sink_name(settings.audit_to),
        secret=_secret(settings),
        sender=Sender(AllowList.parse(settings.webhook_allow)),
        redis=redis,
        clock=clock,
    )


def sink_name(url: str) -> str:
    """Return a name for a sink that was given none. It depends on the whole URL without showing it: it may hold a
    secret.
    """
    return f"{host_of(url)}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


def _secret(settings: AuditSettings) -> str:
    try:
        signing.sign([settings.audit_secret], message_id="audit", timestamp_s=0, body=b"")
    except ValueError as exc:
        raise SettingsError(f"DIRECTOR_AUDIT_SECRET, which signs the batches: {exc}.") from exc
    return settings.audit_secret
