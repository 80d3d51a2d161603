"""Serve many models in one process: a director for each, over connections that all of them share.

Each has its own queue, consumer, permits and heartbeat, so one whose servers are down holds up no other; nor does one
that cannot be served at all, as long as another can. A drain drains all of them at once.
"""

import logging
import signal
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio

from director.core.errors import SettingsError
from director.core.pool_file import label_of
from director.core.settings import DirectorSettings
from director.execution.director import Director, check_settings, made
from director.execution.shared import Shared, clear_up, connections, inbox_of, measure, serve_health
from director.files.choose import StoreCheck
from director.runtime import process
from director.runtime.health import Health, redis_check
from director.servers.runners.inbox import Inbox

log = logging.getLogger(__name__)


def serve(settings: DirectorSettings, models: Sequence[DirectorSettings]) -> None:
    """Run a pool until SIGTERM or SIGINT. What an operator has to mend ends it with one line."""
    process.serve("director", "run", partial(run, models=models), settings)


async def run(
    settings: DirectorSettings,
    *,
    models: Sequence[DirectorSettings],
    started: Callable[[int], None] = lambda port: None,
) -> None:
    """Direct all until SIGTERM, SIGINT or cancellation, then drain; a second signal leaves what is held to its leases.

    `settings` are those of the process. `started` is told the port of health and inbox. Raises what a director raises.
    """
    with process.one_error(), anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with pooled(settings, models) as pool, anyio.create_task_group() as tasks:
            tasks.start_soon(pool.direct, started)
            await process.drained(signals, pool.drain)
            tasks.cancel_scope.cancel()
    log.info("director ended")


@asynccontextmanager
async def pooled(settings: DirectorSettings, models: Sequence[DirectorSettings]) -> AsyncGenerator["Pool"]:
    """The pool with its connections, which are let go afterwards. Raises SettingsError that names the model."""
    async with connections(settings, directors=len(models)) as shared, AsyncExitStack() as stack:
        directors = {}
        for model in models:
            label = label_of(model)
            try:
                check_settings(model)
                directors[label] = await stack.enter_async_context(made(model, shared))
            except SettingsError as exc:
                raise SettingsError(f"{label}: {exc}") from exc
        yield Pool(settings, shared, directors)


class Pool:
    """The directors of one process, each by what its model is called. Owns no connection."""

    def __init__(self, settings: DirectorSettings, shared: Shared, directors: Mapping[str, Director]) -> None:
        self.directors = directors
        self.health = Health()
        self._settings = settings
        self._redis = shared.gatherer.redis
        self._clock = shared.clock
        self._shared = shared
        self._broken: dict[str, str] = {}
        self.health.checks = {
            "redis": redis_check(self._redis),
            **{label: partial(self._missing, label) for label in directors},
        }
        if shared.store is not None:
            self.health.checks["files"] = StoreCheck(shared.store, shared.clock).missing
        self.health.figures = self._figures
        self.health.metrics = shared.metering.registry

    async def direct(self, started: Callable[[int], None]) -> None:
        """Everything, for ever."""
        inbox = inbox_of(self._settings)
        async with anyio.create_task_group() as tasks:
            # before Redis answers: who is started anew for that only takes longer
            port = await tasks.start(serve_health, self._settings, self.health, inbox)
            await process.look_at_redis(self._redis, self._settings, self.health, self._clock)
            started(port)
            tasks.start_soon(clear_up, self._settings, self._redis, self._clock)
            tasks.start_soon(self.health.missing)  # a store that does not work is in the log before anybody asks
            tasks.start_soon(measure, self._shared)
            for label in self.directors:
                tasks.start_soon(self._work, label, inbox)

    async def drain(self) -> None:
        """All of them at once."""
        async with anyio.create_task_group() as tasks:
            for label in self.directors.keys() - self._broken.keys():
                tasks.start_soon(self.directors[label].drain)

    async def _work(self, label: str, inbox: Inbox) -> None:
        """One model, for ever. One that cannot be served ends alone, unless it was the last."""
        director = self.directors[label]
        try:
            with process.one_error():
                await director.work(inbox)
        except SettingsError as exc:
            self._broken[label] = str(exc)
            if len(self._broken) == len(self.directors):
                raise
            log.error("a model cannot be served", extra={"model": label, "error": str(exc)})
            await director.abandon()

    async def _missing(self, label: str) -> str:
        return self._broken.get(label) or await self.directors[label].missing()

    def _figures(self) -> dict[str, Any]:
        return {"models": {label: self._shown(label) for label in self.directors}}

    def _shown(self, label: str) -> dict[str, Any]:
        director = self.directors[label]
        standing = director.servers.standing
        return {
            "status": standing.state,
            "slots": standing.slots,
            "busy": director.servers.permits.busy,
            **director.figures,
        }
