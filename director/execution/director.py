"""Direct one model: build the parts of a director, start them in order, and drain them.

The first server that is ready gives the queue its name, unless another director registered it before. Only then
heartbeat and consumer begin. A drain claims nothing more and reports so, lets runs finish, releases the claims of runs
that do not, and stops the heartbeat last.
"""

import asyncio
import logging
import os
import random
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import anyio
import msgspec
from msgspec import Raw, Struct
from redis.asyncio import Redis

from director.broker.news import Wakeup
from director.core.errors import BackendUnavailable, SettingsError
from director.core.ids import Kind, QueueName, model_and_kind, version_id
from director.core.model_config import ModelConfig, check_server_url, over, usable
from director.core.runner_config import runner_config
from director.core.schema import SetupRun, setup_run
from director.core.settings import DirectorSettings
from director.execution.active_claims import ActiveClaims
from director.execution.consumer import ClaimPlanner, Consumer
from director.execution.executor import Executor
from director.execution.heartbeat import LONGEST_DETAIL, Heartbeat, SelfReport
from director.execution.metering import DirectorGauges, Metering
from director.execution.moderation import Moderator
from director.execution.run_files import FileInputs, Storing
from director.execution.tracker import Limits, Stop
from director.files.choose import StoreCheck
from director.files.store import OutputStore
from director.runtime.sweep import repeat
from director.runtime.tracing import Tracing
from director.servers.fleet import Driven, Fleet, Watch
from director.servers.runners import RunnerOptions, make_runner
from director.servers.runners.inbox import Inbox
from director.servers.runners.runner import Health as ServerHealth
from director.servers.runners.runner import HealthStatus, NoAnswer, Setup
from director.servers.servers import Server, Servers, Trust
from director.servers.setup_webhook import SetupWebhook
from director.store.caller_files import CallerFiles
from director.store.catalog import OPEN_SCHEMA, Awaited
from director.store.directors import ShelfFound
from director.store.removal import TrainedVersions
from director.store.services import Services
from director.webhooks.delivery import Post, Schedule, Webhooks
from director.webhooks.sender import Sender

log = logging.getLogger(__name__)

# After the drain's own time: for servers to act on a cancel (see DRAIN_WAIT_S), and for last writes and webhooks
HAND_BACK_S: Final = 10.0
TELL_S: Final = 2.0
LOOK_AGAIN_S: Final = 2.0
STAY_S: Final = 5.0  # as often as the slowest heartbeat
MEND_SCHEMA: Final = "Cog: `director schema FOLDER` prints it; others: `input_schema` of the runner's configuration"
# Why a model that shares devices is not ready, by the reason of its swap or the state of its gate
NOT_LOADED: Final = {
    "loading": "It is being loaded and is not ready yet",
    "waiting_for_device": "Other models have its device, and it will be loaded when there is room",
    "at_rest": "It has not been loaded yet, since it shares a device with other models",
}
MOST_AWAITED: Final = 3  # servers that a caller is told of
NEEDS: Final = "A director needs --model owner/name and at least one --server URL."
# Bytes of one answer where files are stored: the files leave the output before its size is checked
MOST_WITH_FILES: Final = 64 << 20


def check_settings(settings: DirectorSettings) -> None:
    if not settings.model or not (settings.servers or settings.kind == "prediction"):
        raise SettingsError(NEEDS)
    for url in settings.servers:
        check_server_url(url)
    if len({url.rstrip("/") for url in settings.servers}) < len(settings.servers):
        raise SettingsError("A --server URL is given twice: its slots would be counted twice.")
    own = settings.model, "" if settings.kind == "prediction" else settings.kind
    for name in settings.also:
        if model_and_kind(QueueName(name)) != own:
            which = f"{settings.kind}s of {settings.model}"
            raise SettingsError(f"--also {name}: that is no queue of {which}. `director queues` shows them.")
    if settings.upload_secret and not (settings.files_dir or settings.files_url):
        raise SettingsError("DIRECTOR_UPLOAD_SECRET needs DIRECTOR_FILES_DIR or DIRECTOR_FILES_URL: a place for files.")
    if settings.kind == "training" and settings.runner != "cog":
        raise SettingsError("Trainings run on Cog servers only: leave --runner out, or --kind training.")


def _why_awaited(server: Server) -> str:
    if server.gate.state != "open":
        swap = server.gate.swap
        eta = "" if swap is None or swap.eta_s is None else f", in about {swap.eta_s:.0f} s"
        return NOT_LOADED.get(swap.reason if swap else server.gate.state, NOT_LOADED["at_rest"]) + eta
    setup = "Its setup failed: " if server.health.status is HealthStatus.SETUP_FAILED else ""
    return setup + server.health.detail


class Shared(Struct, frozen=True, kw_only=True):
    """The connections and services that the directors of one process share. `waits`: their blocking connections."""

    services: Services
    waits: Redis
    sender: Sender
    moderator: Moderator | None
    metering: Metering
    tracing: Tracing
    store: OutputStore | None
    store_check: StoreCheck | None


class Director:
    """`is_swapped`: its only server is started and put to rest by this process, so it begins behind a closed gate."""

    def __init__(self, settings: DirectorSettings, shared: Shared, *, is_swapped: bool = False) -> None:
        services, store = shared.services, shared.store
        clock = services.clock
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.servers = Servers([], clock.monotonic)
        self.claims = ActiveClaims()
        self.fleet = Fleet(self.servers, make=self._make_server, watch=self._watch)
        self.shelf: Callable[[], ShelfFound | None] = lambda: None
        self._is_swapped = is_swapped
        self._has_looked = self._has_lost_queue = False
        self._given = self._settings = settings
        self._shared = shared
        self._clock = clock
        self._scripts = services.scripts
        self._catalog = services.catalog
        self._directors = services.directors
        self._report = SelfReport(self.servers, clock, shared.store_check)
        self._kind: Kind = "" if settings.kind == "prediction" else settings.kind
        runner_config(settings.runner, settings.runner_config)  # raises, also if the stored configuration replaces it
        if not settings.servers:
            log.warning(
                "no --server is given: the servers come from the stored configuration", extra={"model": settings.model}
            )
        self._configs = services.configs
        self._config = ModelConfig()
        self._config_error = ""
        self._left_out: Sequence[str] = ()  # servers of the stored configuration, and what is wrong with each
        self._heartbeat: Heartbeat | None = None
        self._consumer: Consumer | None = None
        self._executor: Executor | None = None
        self._planner = ClaimPlanner(batch_cost=settings.batch_cost, batch_size=settings.batch_size)
        self._version = settings.version.removeprefix("sha256:")
        self._policy = settings.policy
        self._schedule = Schedule.parse(settings.webhook_schedule)
        self._storing: Storing | None = None
        self._file_inputs: FileInputs | None = None
        if store is not None:
            self._storing = Storing(store, self._scripts, clock, settings)
            self._file_inputs = FileInputs(store, CallerFiles(services.redis), clock, settings)
        self._trained = TrainedVersions(services.redis, services.catalog, services.removal, store=store)
        self._queue: QueueName | None = None
        self._queue_known = asyncio.Event()
        self._replaced = asyncio.Event()  # the version that is served has no server any more
        self._registering = asyncio.Lock()
        self._schema = OPEN_SCHEMA
        self._setup: SetupRun | None = None
        self._setup_webhook = SetupWebhook.of(settings, shared.sender, clock)
        self._server_kind = ""
        shared.metering.watch(DirectorGauges(lambda: self._queue or settings.model, self.servers, self.claims))
        self._inbox = Inbox("")
        self._draining = False

    async def work(self, inbox: Inbox) -> None:
        self._inbox = inbox
        await self._begin()
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.fleet.run)
            if not self._kind:
                tasks.start_soon(self._follow_config)
            tasks.start_soon(self._recognize)
            if self._setup_webhook is not None:
                tasks.start_soon(self._setup_webhook.run)
            stay = partial(repeat, role="registration", tick_s=STAY_S, clock=self._clock)
            tasks.start_soon(stay, self._look_at_registries)
            while True:
                await self._queue_known.wait()
                if self._draining:
                    break
                await self._serve_version()

    async def _serve_version(self) -> None:
        """Claim for one version, until none of the servers runs it any more. What waits for it stays in its queue."""
        heartbeat, consumer = self._heartbeat, self._consumer = self._make_parts()
        async with anyio.create_task_group() as claiming:
            claiming.start_soon(heartbeat.run)
            claiming.start_soon(consumer.run)
            await self._replaced.wait()
            await self._drain_claims(consumer, heartbeat)
            await consumer.abandon()
            claiming.cancel_scope.cancel()
        self.claims.resume()
        async with self._registering:
            self._heartbeat = self._consumer = self._queue = None
            self._version, self._schema = "", OPEN_SCHEMA
            self._queue_known.clear()
            self._replaced.clear()

    async def drain(self) -> None:
        """Claim nothing more, let runs finish, release the rest; end the servers last, if the settings say so."""
        self._draining = True
        if self._queue is None:
            await self._forget_newcomer()
        if self._consumer is not None and self._heartbeat is not None:
            await self._drain_claims(self._consumer, self._heartbeat)
        if self._settings.end_servers:
            await self._end_servers()

    async def _drain_claims(self, consumer: Consumer, heartbeat: Heartbeat) -> None:
        log.info("draining", extra={"held": len(self.claims), **self._planner.figures})
        consumer.stop()
        with anyio.move_on_after(TELL_S):
            await heartbeat.drain()
        for grace_s in (self._settings.drain_s, HAND_BACK_S):
            with anyio.move_on_after(grace_s):
                await consumer.over()
                await self.claims.empty()
                break
            self.claims.stop_all(Stop.DRAIN)
        else:
            log.warning("left claims to their leases", extra={"held": len(self.claims)})
        # webhooks in progress get a moment; the courier delivers the owed ones
        with anyio.move_on_after(TELL_S):
            await consumer.finished()

    async def _end_servers(self) -> None:
        # they ignore SIGTERM: each would keep its GPU until the kubelet's grace ends and it is killed
        with anyio.move_on_after(TELL_S):
            async with anyio.create_task_group() as asking:
                for server in self.servers.all:
                    asking.start_soon(server.runner.shutdown)

    async def abandon(self) -> None:
        """Cancel the runs that are left and leave their claims to the leases. Call it before the connections close."""
        if self._consumer is not None:
            await self._consumer.abandon()

    async def _begin(self) -> None:
        while not self._kind:
            try:
                self._config, _ = await self._stored_config()
            except BackendUnavailable as exc:
                log.warning("reading the configuration failed", extra={"error": str(exc)})
                await self._clock.sleep(LOOK_AGAIN_S)
                continue
            self._settings = over(self._config, self._given)
            self._policy = self._settings.policy
            break
        if not self._settings.servers:
            raise SettingsError(NEEDS)
        self._pass_settings_on()
        self._want_servers()

    async def _follow_config(self) -> None:
        """Bring each change of the stored configuration into force. An unusable one is only logged, once."""
        while True:
            try:
                config, revision = await self._stored_config()
                if config != self._config:
                    await self._configure(over(config, self._given))
                    self._config = config
                    log.info("configuration in force", extra={"revision": revision})
                self._config_error = ""
            except BackendUnavailable as exc:
                log.warning("reading the configuration failed", extra={"error": str(exc)})
            except SettingsError as exc:
                if str(exc) != self._config_error:
                    log.error("the configuration cannot be used", extra={"error": str(exc)})
                self._config_error = str(exc)
            await self._clock.sleep(LOOK_AGAIN_S)

    async def _stored_config(self) -> tuple[ModelConfig, int]:
        stored = await self._configs.get(self._given.model)
        if stored is None:
            return ModelConfig(), 0
        config, left_out = usable(stored.config)
        if left_out and left_out != self._left_out:
            log.error("servers of the stored configuration are left out: change it", extra={"servers": left_out})
        self._left_out = left_out
        return config, stored.revision

    async def _configure(self, settings: DirectorSettings) -> None:
        if not settings.servers:
            raise SettingsError("The configuration names no server: the servers in use stay.")
        policy = settings.policy
        async with self._registering:
            if policy != self._policy and self._queue is not None:
                await self._scripts.register(self._queue, version=self._version, policy=policy)
            self._settings, self._policy = settings, policy
        self._pass_settings_on()
        self._want_servers()

    def _pass_settings_on(self) -> None:
        for part in (self._executor, self._storing, self._file_inputs):
            if part is not None:
                part.settings = self._settings
        if self._executor is not None:
            self._executor.policy = self._policy
        # a claim that waits here counts as an attempt if the director dies: only with retries left
        self.servers.permits.may_wait = self._policy.on_lost == "retry" and self._policy.attempts > 1

    def _want_servers(self) -> None:
        # this process started the server for the runner of its table: a stored one would drive another server
        said = self._given if self._is_swapped else self._settings
        config = runner_config(said.runner, said.runner_config)
        wanted = [Driven(url, config) for url in self._settings.servers]
        self.fleet.want(wanted, slots=self._settings.concurrent_predictions)

    async def _watch(self, server: Server) -> None:
        retry_s = self._settings.setup_retry_s
        watch = Watch(server, self.servers, self._clock, self._introduce, self._note_setup, setup_retry_s=retry_s)
        await watch.run()

    def _make_server(self, driven: Driven, slots: int) -> Server:
        most = self._settings.max_output_bytes
        options = RunnerOptions(
            url=driven.url,
            slots=slots,
            inbox=self._inbox,
            max_files=self._settings.max_files_bytes,
            max_body=most if self._storing is None else max(most, MOST_WITH_FILES),
            trains=self._kind == "training",
            headers=self._settings.server_headers,
        )
        runner = make_runner(driven.config, options)
        together = runner.capabilities.batches
        places = together and min(together, self._settings.batch_size or together)
        trust = Trust(self._settings.max_failures, counts_failed=self._settings.count_model_failures)
        server = Server(runner, slots, trust=trust, places=places)
        if self._is_swapped:
            self.servers.set_gate(server, "at_rest")
        return server

    def _make_parts(self) -> tuple[Heartbeat, Consumer]:
        settings, queue = self._settings, self._queue
        assert queue is not None  # noqa: S101 - for the type checker: the event is set after it
        executor = self._executor = self._make_executor()
        heartbeat = Heartbeat(
            queues=(queue, *self.also),
            name=self.name,
            scripts=self._scripts,
            claims=self.claims,
            servers=self.servers,
            redis=self._shared.waits,
            clock=self._clock,
            lease_s=settings.lease_s,
            metering=self._shared.metering,
            shelf=lambda: self.shelf(),
            store_check=self._shared.store_check,
        )
        consumer = Consumer(
            queues=(queue, *self.also),
            name=self.name,
            scripts=self._scripts,
            servers=self.servers,
            executor=executor,
            wakeup=Wakeup(self._shared.waits, (queue, *self.also), self._clock, may_carry=not self._is_swapped),
            clock=self._clock,
            lease_s=settings.lease_s,
            register=self._register,
            planner=self._planner,
            gather_s=settings.batch_wait_ms / 1000,
        )
        return heartbeat, consumer

    def _make_executor(self) -> Executor:
        settings, shared = self._settings, self._shared
        webhooks = Webhooks(
            self._scripts, shared.services.accounts, shared.sender, self._clock, self._schedule, shared.tracing
        )
        webhooks.on_attempt = shared.metering.webhooks.note_attempt
        return Executor(
            scripts=self._scripts,
            clock=self._clock,
            claims=self.claims,
            servers=self.servers,
            post=Post(webhooks),
            limits=Limits(
                output=settings.max_output_bytes,
                files=settings.max_files_bytes,
                inline=settings.inline_text_bytes if self._storing else None,
            ),
            policy=self._policy,
            settings=settings,
            dice=random.random,
            data_files=shared.services.data_files,
            storing=self._storing,
            moderator=shared.moderator,
            file_inputs=self._file_inputs,
            trained=self._trained,
            metering=shared.metering,
            tracing=shared.tracing,
        )

    async def _recognize(self) -> None:
        """Find the queue before any server is ready, if another director registered it.

        Then the heartbeat can report why predictions wait. Until then operators see the director under the name of its
        model, and callers of the model learn what is awaited.
        """
        began = self._clock.monotonic()
        has_noted = False
        while not self._queue_known.is_set():
            try:
                await self._recognize_once()
                self._has_looked = True
                if not self._queue_known.is_set():
                    has_noted = True
                    await self._note_newcomer(began)
            except BackendUnavailable as exc:
                log.warning("looking for the queue failed", extra={"error": str(exc)})
            with suppress(TimeoutError):
                await asyncio.wait_for(self._queue_known.wait(), LOOK_AGAIN_S)
        if has_noted:
            await self._forget_newcomer()

    async def _note_newcomer(self, began: float) -> None:
        if not self._kind:
            await self._catalog.note_awaited(self._settings.model, self._awaited(began))
        state = self.servers.standing.state
        about = self._report.encoded(held=0)
        # it has no queue, so nothing is served yet, whatever its servers could do
        shown = "starting" if state == "ready" else state
        await self._directors.note_newcomer(self._newcomer, self.name, shown, about)

    async def _forget_newcomer(self) -> None:
        with suppress(BackendUnavailable):  # it is forgotten after some seconds anyway
            await self._directors.forget_newcomer(self._newcomer, self.name)

    @property
    def _newcomer(self) -> str:
        return self._settings.model + (f"~{self._kind}" if self._kind else "")

    def _awaited(self, began: float) -> Awaited:
        servers = self.servers.all
        server = next((server for server in servers if not server.can_run), None)
        why = "" if server is None else _why_awaited(server)
        return Awaited(
            version=self._version,
            waited_s=self._clock.monotonic() - began,
            servers=tuple(server.runner.url for server in servers[:MOST_AWAITED]),
            why=why[:LONGEST_DETAIL],
        )

    async def _recognize_once(self) -> None:
        model, version = self._settings.model, self._version or await self._version_shown()
        if not version and self._is_swapped and (stored := await self._catalog.model(model)) is not None:
            version = stored.latest  # until its server has been loaded, and shows another one
        found = await self._catalog.version(model, version) if version else None
        known = await self._catalog.of_kind(found, self._kind) if found else None
        async with self._registering:
            if known is not None and self._queue is None:
                self._version, self._queue = version, known.queue
                self._queue_known.set()

    async def _version_shown(self) -> str:
        for server in self.servers.all:
            if server.gate.state == "at_rest":
                continue
            with suppress(NoAnswer):
                if (schema := await server.runner.openapi_schema()) is not None:
                    return version_id(self._settings.model, schema, b"")
        return ""

    async def _introduce(self, server: Server, health: ServerHealth) -> str:
        """Register the version of a server that became ready. Return why the server gets no work, '' if it does."""
        try:
            schema = await server.runner.openapi_schema()
        except NoAnswer as exc:  # it died since it said that it is ready: no schema would be another version
            return f"its schema cannot be read: {exc}"
        server.has_schema, server.is_other_version = schema is not None, False
        if schema is None:
            log.warning("the model server shows no schema", extra={"server": server.runner.url, "mend": MEND_SCHEMA})
        if schema is not None and self._settings.version:
            await self._compare(server, schema)
        # Under one lock, so that no server is registered for a version while another server replaces it
        async with self._registering:
            if why := self._other_version(server, schema):
                server.is_other_version = True
                return why
            self._schema = schema or self._schema  # a server that shows none must not undo what is known
            self._server_kind = health.server or self._server_kind
            await self._register_now()
        return ""

    async def _compare(self, server: Server, schema: Raw) -> None:
        """Log that a server's schema is not the one published under the version that the operator gave."""
        known = await self._catalog.version(self._settings.model, self._version)
        server.is_other_version = known is not None and known.schema not in (OPEN_SCHEMA, schema)
        if server.is_other_version:
            facts = {"server": server.runner.url, "version": self._version, "mend": "give this build its own --version"}
            log.error("the model server shows another schema than its version has", extra=facts)

    def _other_version(self, server: Server, schema: Raw | None) -> str:
        """Return what is wrong if a server shows another schema than the version that is served: it is another version.
        The director changes to it when no other server runs the former one. A version that was given stays.
        """
        if self._replaced.is_set():
            return "its director is about to serve another version"
        if schema is None or self._settings.version or not self._version:
            return ""
        found = version_id(self._settings.model, schema, b"")
        if found == self._version:
            return ""
        if not any(other.health.can_run for other in self.servers.all if other is not server):
            facts = {"server": server.runner.url, "served": self._version, "version": found}
            log.warning("no server runs the version that is served, changing to another", extra=facts)
            self._replaced.set()
        return f"it shows another schema, so it is version {found[:12]}, and {self._version[:12]} is served here"

    async def _note_setup(self, server: Server, health: ServerHealth) -> bool:
        """Store the result of a setup beside its version. False if the version is not in the catalogue yet."""
        setup = health.setup or Setup()
        self._setup = setup_run(
            "succeeded" if health.can_run else "failed",
            started_at=setup.started_at,
            completed_at=setup.completed_at,
            logs=setup.logs,
            server=server.runner.url,
        )
        if self._setup_webhook is not None:
            self._setup_webhook.add(self._setup, model=self._settings.model, version=self._version)
        if self._kind:  # a version shows the setup of the servers that run predictions
            return True
        if not self._version:
            return False
        return await self._catalog.note_setup(self._settings.model, self._version, self._setup)

    async def _register(self) -> None:
        async with self._registering:
            await self._register_now()

    async def _register_now(self) -> None:
        settings = self._settings
        version = self._version or version_id(settings.model, self._schema, b"")
        self._queue = await self._catalog.register_kind(
            settings.model,
            version,
            self._kind,
            schema=self._schema,
            server=self._server_kind,
            policy=self._policy,
            is_latest=settings.latest,
        )
        self._version = version  # not before: a server may come back as another version while Redis refuses this one
        log.info("model registered", extra={"model": settings.model, "version": self._version})
        self._queue_known.set()

    async def _look_at_registries(self) -> bool:
        """Register again what a deletion of the version took away meanwhile: nothing else would, since the queue's
        `meta` stands, so claims are handed out and no keeper sweeps the queue. Returns True if something was missing.
        """
        queue, model = self._queue, self._settings.model
        # without a ready server its schema may not be known yet, and the first one that is ready registers
        if queue is None or not (self._is_swapped or self.servers.any_ready()):
            return False
        self._has_lost_queue = not await self._catalog.is_registered(model, self._version, queue)
        if not self._has_lost_queue or not self.servers.any_ready():
            return False
        log.error("the catalogue has lost the queue, registering it again", extra={"queue": queue})
        await self._register()
        return True

    @property
    def queue(self) -> QueueName | None:
        """Return the queue once it is known and as long as the catalogue has it."""
        return None if self._has_lost_queue else self._queue

    @property
    def _may_rest(self) -> bool:
        return self._is_swapped and self.servers.standing.state == "starting"

    @property
    def also(self) -> Sequence[QueueName]:
        """Return the queues of older versions that its servers run too."""
        return [QueueName(name) for name in dict.fromkeys(self._settings.also) if name != self._queue]

    @property
    def is_unknown(self) -> bool:
        """Whether nothing in Redis says which version the model has: only its server can."""
        return self._has_lost_queue or (self._has_looked and self._queue is None)

    @property
    def running(self) -> Mapping[str, int]:
        return self.claims.by_account()

    @property
    def longest_run_left_s(self) -> float:
        return self.claims.longest_left_s(self._settings.run_limit_s)

    @property
    def figures(self) -> dict[str, Any]:
        """Return figures for /readyz: batches, lost slots and the last setup, without its logs, which may be secret."""
        figures: dict[str, Any] = dict(self._planner.figures)
        if fewer := {server.runner.url: server.fewer for server in self.servers.all if server.fewer is not None}:
            figures |= {"fewer_slots": fewer}
        if self._left_out:
            figures |= {"servers_left_out": self._left_out}
        if self._setup is not None:
            setup_run = msgspec.to_builtins(self._setup)
            del setup_run["logs"]
            figures |= {"setup_run": setup_run}
        return figures

    async def missing(self) -> str:
        if self._draining:
            return "draining"
        if self._queue_known.is_set() and (self.servers.any_ready() or self._may_rest):
            return ""
        return "; ".join(server.trouble for server in self.servers.all) or "not looked at yet"
