"""Serve one model, or a pool of models, in one process: connections, health port, signals, drain.

Each model of a pool has a director with its own queue, consumer, permits and heartbeat. A model whose servers are down
holds up no other. A model that cannot be served ends alone. A drain drains all of them at once.
"""

import logging
import signal
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from director.broker.news import LISTEN_S, LONGEST_S
from director.broker.redis_client import blocking_client, client
from director.core.clock import SystemClock
from director.core.devices import Device
from director.core.errors import SettingsError
from director.core.pool_file import Hosted, PoolFile, label_of
from director.core.settings import DirectorSettings
from director.execution.director import Director, Shared, check_settings
from director.execution.metering import Metering
from director.execution.moderation import Moderator
from director.files.choose import BAD_S, StoreCheck, output_store_in
from director.files.data_files import DataFiles
from director.gpus.garage import Garage, make_closed_gate
from director.gpus.host import Host, hosting
from director.runtime import process
from director.runtime.metrics import Pulse
from director.runtime.tracing import Tracing
from director.servers.leftovers import Leftovers
from director.servers.runners.inbox import Arrivals, Inbox
from director.store.services import Services
from director.webhooks.sender import AllowList, Sender

log = logging.getLogger(__name__)

ALONE: Final = "model"
"""The label of the only director of a process, and the name of its check at /readyz."""
WAITS: Final = 2  # connections of one director that block: for its wakeup and for cancels


class Sharing(Struct, frozen=True, kw_only=True):
    """The devices of a pool file, and its models that share them, by label. `folder` has locks, records and logs."""

    file: Path
    devices: Sequence[Device]
    hosted: Mapping[str, Hosted]
    folder: Path

    @classmethod
    def of(cls, file: Path, pool: PoolFile, settings: DirectorSettings) -> "Sharing | None":
        """Return None if no model shares devices."""
        hosted = {label_of(table.settings): table.hosted for table in pool.tables if table.hosted is not None}
        folder = Path(settings.devices_dir).expanduser()
        return cls(file=file, devices=pool.devices, hosted=hosted, folder=folder) if hosted else None

    def open(self) -> AbstractAsyncContextManager[Host]:
        return hosting(self.file, self.devices, list(self.hosted.values()), folder=self.folder)


def serve(settings: DirectorSettings, models: Sequence[DirectorSettings] = (), sharing: Sharing | None = None) -> None:
    """Run a director, or a pool of them, until SIGTERM or SIGINT. An operator's mistake ends it with one line."""
    process.serve("director", "run", partial(run, models=models, sharing=sharing), settings)


async def run(
    settings: DirectorSettings,
    *,
    models: Sequence[DirectorSettings] = (),
    sharing: Sharing | None = None,
    started: Callable[[int], None] = lambda port: None,
) -> None:
    """Direct until SIGTERM, SIGINT or cancellation, then drain. A second signal leaves the claims to their leases.
    `settings` are those of the process, and of its model where `models` is empty. `started` gets the port of health
    and inbox. Raises UnsafeBackend if Redis would lose what it accepts, and SettingsError.
    """
    with process.one_error(), anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with open_directors(settings, models, sharing=sharing) as pool, anyio.create_task_group() as tasks:
            tasks.start_soon(pool.direct, started)
            await process.drain_on_signal(signals, pool.drain)
            tasks.cancel_scope.cancel()
    log.info("director ended")


@asynccontextmanager
async def open_directors(
    settings: DirectorSettings,
    models: Sequence[DirectorSettings] = (),
    *,
    sharing: Sharing | None = None,
    tracing: Tracing | None = None,
) -> AsyncGenerator["Pool"]:
    """Open a process's connections and make its directors. Raises SettingsError, in a pool with the model's name."""
    labelled = {label_of(model): model for model in models} or {ALONE: settings}
    async with connections(settings, directors=len(labelled), tracing=tracing) as shared, AsyncExitStack() as stack:
        host = await stack.enter_async_context(sharing.open()) if sharing else None
        directors = {}
        for label, model in labelled.items():
            try:
                if host is not None and sharing is not None and label in sharing.hosted:
                    mine = _address(model, sharing.hosted[label], host)
                    check_settings(mine)
                    # a stored runner would drive another server than the one that this process starts
                    own = Director(mine, shared, make_gate=make_closed_gate, keeps=("runner", "runner_config"))
                else:
                    check_settings(model)
                    own = Director(model, shared)
            except SettingsError as exc:
                if not models:
                    raise
                raise SettingsError(f"{label}: {exc}") from exc
            directors[label] = own
            stack.push_async_callback(own.aclose)
        garage = None
        if host is not None and sharing is not None:
            swapped = [(hosted, directors[label]) for label, hosted in sharing.hosted.items()]
            garage = Garage(sharing.devices, swapped, host, shared.services.scripts, shared.services.clock)
            shared.metering.follow(garage)
        yield Pool(settings, shared, directors, garage, host)


def _address(settings: DirectorSettings, hosted: Hosted, host: Host) -> DirectorSettings:
    """Return the settings with the address of a server that this process owns. Raises SettingsError."""
    addressed = replace(settings, servers=(host.url(hosted.model.name),))
    if not hosted.launch.ready:
        return addressed
    text = settings.runner_config or "{}"
    if settings.runner == "cog" or not text.startswith("{"):
        raise SettingsError("`ready` is for a server that is no Cog server and has its `runner_config` in this table.")
    fields = msgspec.json.decode(text, type=dict[str, Any]) | {"health": hosted.launch.ready}
    return replace(addressed, runner_config=msgspec.json.encode(fields).decode())


@asynccontextmanager
async def connections(
    settings: DirectorSettings, *, directors: int = 1, tracing: Tracing | None = None
) -> AsyncGenerator[Shared]:
    clock = SystemClock()
    moderator = Moderator.of(settings, clock)
    sender = Sender(AllowList.parse(settings.webhook_allow))
    redis = client(settings.redis_url, name="director")
    waits = blocking_client(settings.redis_url, block_s=max(LONGEST_S, LISTEN_S), connections=WAITS * directors)
    metering = Metering()
    sender.on_sent = metering.webhooks.note_request
    tracing = tracing or process.tracing_of("director", accounts=settings.trace_accounts)
    store = output_store_in(settings.files_dir, redis, clock, url=settings.files_url)
    data_files = DataFiles(clock, store, from_bytes=settings.data_files_from)
    services = Services(redis, clock, meter=metering.redis, data_files=data_files)
    try:
        yield Shared(
            services=services,
            waits=waits,
            sender=sender,
            moderator=moderator,
            metering=metering,
            tracing=tracing,
            store=store,
            store_check=None if store is None else StoreCheck(store, clock, up=metering.registry.files_up),
        )
    finally:
        with anyio.CancelScope(shield=True):
            await services.aclose()
            await waits.aclose()
            await sender.aclose()
            await tracing.aclose()
            if moderator is not None:
                await moderator.aclose()


class Pool:
    """The directors of one process by label: one under `ALONE`, or one for each model of a pool."""

    def __init__(
        self,
        settings: DirectorSettings,
        shared: Shared,
        directors: Mapping[str, Director],
        garage: Garage | None = None,
        host: Host | None = None,
    ) -> None:
        self.directors = directors
        self.garage = garage
        self._host = host
        self.health = process.Health()
        self._settings = settings
        self._shared = shared
        self._redis = shared.services.redis
        self._broken: dict[str, str] = {}
        self.health.checks = {
            "redis": process.redis_check(self._redis, shared.services.clock),
            **{label: partial(self._missing, label) for label in directors},
        }
        if shared.store_check is not None:
            self.health.store_check = shared.store_check.missing
        self.health.figures = self._figures
        self.health.metrics = shared.metering.registry

    async def direct(self, started: Callable[[int], None]) -> None:
        settings, redis, clock = self._settings, self._redis, self._shared.services.clock
        # the inbox has no address before it is served
        inbox = Inbox("", arrivals=Arrivals.of(settings.upload_secret))
        async with anyio.create_task_group() as tasks:
            # before Redis answers: /livez must answer, because a restart of this process would only take longer
            port = await tasks.start(self._serve_health, inbox)
            await process.look_at_redis(redis, settings, self.health, clock, part="run")
            if settings.coglet_dir:
                tasks.start_soon(Leftovers(Path(settings.coglet_dir), redis, clock).run)
            tasks.start_soon(self._check_files)
            tasks.start_soon(self._measure)
            for label in self.directors:
                tasks.start_soon(self._work, label, inbox)
            if self._host is not None and settings.upload_secret:
                self._host.upload_url = f"{inbox.base_url}/uploads/{settings.upload_secret}/"
            if self.garage is not None:
                tasks.start_soon(self.garage.run)
            started(port)

    async def drain(self) -> None:
        if self.garage is not None:
            self.garage.stop()
        async with anyio.create_task_group() as tasks:
            for label in self.directors.keys() - self._broken.keys():
                tasks.start_soon(self.directors[label].drain)

    async def _work(self, label: str, inbox: Inbox) -> None:
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

    async def _measure(self) -> None:
        metering = self._shared.metering
        pulse = Pulse(metering.registry, metering.redis, self._redis)
        pulse.on_turn.append(metering.count_full)
        await pulse.run()

    async def _check_files(self) -> None:
        """Keep the figure and the report right, also where nothing asks /readyz. The check decides when it looks."""
        while True:
            await self.health.files()
            await self._shared.services.clock.sleep(BAD_S)

    async def _serve_health(self, inbox: Inbox, *, task_status: anyio.abc.TaskStatus[int]) -> None:
        settings = self._settings

        def set_port(port: int) -> None:
            inbox.base_url = f"http://127.0.0.1:{port}"
            task_status.started(port)

        app = self.health.app(inbox.routes())
        await process.serve_http(
            app, host=settings.health_host, port=settings.health_port, started=set_port, metrics=self.health.metrics
        )

    async def _missing(self, label: str) -> str:
        return self._broken.get(label) or await self.directors[label].missing()

    def _figures(self) -> Mapping[str, Any]:
        if ALONE in self.directors:
            return self.directors[ALONE].figures
        models = {}
        for label, director in self.directors.items():
            standing, busy = director.servers.standing, director.servers.permits.busy
            models[label] = {"status": standing.state, "slots": standing.slots, "busy": busy, **director.figures}
        return {"models": models}
