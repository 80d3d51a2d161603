"""What the directors of one process share: connections, whom all of them ask and tell, the store of files, one port.

Knows no queue and no model.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
from msgspec import Struct
from redis.asyncio import Redis

from director.broker.gatherer import Gatherer
from director.broker.redis_client import blocking_client, client
from director.core.clock import Clock, SystemClock
from director.core.settings import DirectorSettings
from director.execution.bell import LONGEST_S
from director.execution.heartbeat import KICK_WAIT_S
from director.execution.metering import Metering
from director.execution.moderation import Moderator
from director.files.choose import output_store_in
from director.files.store import OutputStore
from director.runtime.health import Health, serve_http
from director.runtime.metrics.registry import Pulse
from director.runtime.tracing import Tracing, tracing_of
from director.servers.leftovers import Leftovers
from director.servers.runners.inbox import Arrivals, Inbox
from director.webhooks.addresses import AllowList
from director.webhooks.sender import Sender

WAITS: Final = 2  # of one director at once: at its bell, and for whoever cancels


class Shared(Struct, frozen=True, kw_only=True):
    """Handed to each director. `waits` has connections for the bell and the cancels of every one of them."""

    gatherer: Gatherer
    waits: Redis
    sender: Sender
    clock: Clock
    moderator: Moderator | None
    metering: Metering
    tracing: Tracing
    store: OutputStore | None


@asynccontextmanager
async def connections(
    settings: DirectorSettings, *, directors: int = 1, tracing: Tracing | None = None
) -> AsyncGenerator[Shared]:
    """All of it for so many directors, let go afterwards. Raises SettingsError for what cannot be.

    `tracing`: instead of what the environment asks for.
    """
    clock = SystemClock()
    moderator = Moderator.of(settings, clock)
    sender = Sender(AllowList.parse(settings.webhook_allow))
    redis = client(settings.redis_url, name="director")
    waits = blocking_client(settings.redis_url, block_s=max(LONGEST_S, KICK_WAIT_S), connections=WAITS * directors)
    metering = Metering()
    sender.on_sent = metering.webhooks.sent
    gatherer = Gatherer(redis, meter=metering.redis)
    tracing = tracing or tracing_of("director", accounts=settings.trace_accounts)
    try:
        store = output_store_in(settings.files_dir, redis, clock, url=settings.files_url)
        yield Shared(
            gatherer=gatherer,
            waits=waits,
            sender=sender,
            clock=clock,
            moderator=moderator,
            metering=metering,
            tracing=tracing,
            store=store,
        )
    finally:
        with anyio.CancelScope(shield=True):
            await gatherer.aclose()
            await redis.aclose()
            await waits.aclose()
            await sender.aclose()
            await tracing.aclose()
            if moderator is not None:
                await moderator.aclose()


def inbox_of(settings: DirectorSettings) -> Inbox:
    """Where model servers call back and put files. It has no address before it is served. Raises SettingsError."""
    return Inbox("", arrivals=Arrivals.of(settings.upload_secret))


async def clear_up(settings: DirectorSettings, redis: Redis, clock: Clock) -> None:
    """Delete what model servers leave of their runs, for ever, where the settings say so."""
    if settings.coglet_dir:
        await Leftovers(Path(settings.coglet_dir), redis, clock).run()


async def measure(shared: Shared) -> None:
    """How the loop, Redis and the slots of this process do, for ever."""
    pulse = Pulse(shared.metering.registry, shared.metering.redis, shared.gatherer.redis)
    pulse.on_beat.append(shared.metering.beat)
    await pulse.run()


async def serve_health(
    settings: DirectorSettings, health: Health, inbox: Inbox, *, task_status: anyio.abc.TaskStatus[int]
) -> None:
    """Answer /livez and /readyz, and take callbacks, for ever; tells the port once it listens."""

    def started(port: int) -> None:
        inbox.base_url = f"http://127.0.0.1:{port}"
        task_status.started(port)

    app = health.app(inbox.routes())
    await serve_http(app, host=settings.health_host, port=settings.health_port, started=started)
