"""`director audit`: one feeder and its sink, until it is asked to end.

A batch that is on its way to a receiver then comes again the next time; one that is being written to a file does not.
"""

import hashlib
import logging
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from redis.asyncio import Redis

from director.audit.feeder import Feeder
from director.audit.log import AuditLog
from director.audit.sinks import AuditSink, FileSink, HttpSink
from director.broker.redis_client import client
from director.core import signing
from director.core.clock import Clock, SystemClock
from director.core.errors import SettingsError
from director.core.settings import AuditSettings
from director.core.webhook_url import host_of
from director.runtime import process
from director.webhooks.addresses import AllowList
from director.webhooks.sender import Sender

__all__ = ("feeding", "serve", "sink_name")

log = logging.getLogger(__name__)

SCHEMES = ("https://", "http://")


def serve(settings: AuditSettings) -> None:
    """Carry the log until SIGTERM or SIGINT. What an operator has to mend ends it with one line."""
    process.serve("audit", "audit", _serve, settings)


async def _serve(settings: AuditSettings) -> None:
    with process.one_error(), anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with feeding(settings, SystemClock()) as feeder, anyio.create_task_group() as tasks:
            tasks.start_soon(_end_at_a_signal, signals, tasks.cancel_scope)
            if settings.audit_once:
                fed = await feeder.catch_up()
                log.info("the log is carried", extra={"entries": fed.entries, "missed": fed.missed})
            else:
                await feeder.run()
            tasks.cancel_scope.cancel()


async def _end_at_a_signal(signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()


@asynccontextmanager
async def feeding(settings: AuditSettings, clock: Clock) -> AsyncGenerator[Feeder]:
    """The feeder with its connections, which are let go afterwards."""
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
    """The name of a sink that was given none: of another URL, another one. The URL itself may hold a secret."""
    return f"{host_of(url)}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


def _secret(settings: AuditSettings) -> str:
    try:
        signing.sign([settings.audit_secret], message_id="audit", timestamp_s=0, body=b"")
    except ValueError as exc:
        raise SettingsError(f"DIRECTOR_AUDIT_SECRET: what batches are signed with: {exc}.") from exc
    return settings.audit_secret
