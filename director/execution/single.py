"""Serve one model in one process: a director with connections of its own, until it is told to end."""

import logging
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio

from director.core.settings import DirectorSettings
from director.execution.director import Director, check_settings, made
from director.execution.shared import connections
from director.runtime import process
from director.runtime.tracing import Tracing

log = logging.getLogger(__name__)


def serve(settings: DirectorSettings) -> None:
    """Run a director until SIGTERM or SIGINT. What an operator has to mend ends it with one line."""
    process.serve("director", "run", run, settings)


async def run(settings: DirectorSettings, *, started: Callable[[int], None] = lambda port: None) -> None:
    """Direct until SIGTERM, SIGINT or cancellation, then drain; a second signal leaves what is held to its leases.

    `started` is told the port of health and inbox.

    Raises UnsafeBackend when Redis would lose what it accepts, SettingsError for a setting that cannot be.
    """
    with process.one_error(), anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with connected(settings) as director, anyio.create_task_group() as tasks:
            tasks.start_soon(director.direct, started)
            await process.drained(signals, director.drain)
            tasks.cancel_scope.cancel()
    log.info("director ended")


@asynccontextmanager
async def connected(settings: DirectorSettings, *, tracing: Tracing | None = None) -> AsyncGenerator[Director]:
    """The director with its connections, which are let go afterwards. `tracing`: not as the environment asks for."""
    check_settings(settings)
    async with connections(settings, tracing=tracing) as shared, made(settings, shared) as director:
        yield director
