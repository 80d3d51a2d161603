"""Direct one model: build the parts of a director, start them in order, and drain them.

Heartbeat and consumer begin once the queue is known. A drain claims nothing more and reports so, lets runs finish,
releases the claims of runs that do not, and stops the heartbeat last.
"""

import logging
import os
import random
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import anyio
import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from director.broker.news import Wakeup
from director.core.errors import SettingsError
from director.core.ids import QueueName, model_and_kind
from director.core.model_config import check_server_url
from director.core.runner_config import runner_config
from director.core.settings import DirectorSettings
from director.execution.active_claims import ActiveClaims
from director.execution.consumer import ClaimPlanner, Consumer
from director.execution.executor import Executor
from director.execution.heartbeat import Heartbeat, SelfReport
from director.execution.live_settings import LiveSettings
from director.execution.metering import DirectorGauges, Metering
from director.execution.moderation import Moderator
from director.execution.registration import Newcomer, Registration
from director.execution.run_files import FileInputs, Storing
from director.execution.tracker import Limits, Stop
from director.files.choose import StoreCheck
from director.files.store import OutputStore
from director.runtime.sweep import repeat
from director.runtime.tracing import Tracing
from director.servers.fleet import Driven, Fleet, Watch
from director.servers.gate import Gate
from director.servers.runners import RunnerOptions, make_runner
from director.servers.runners.inbox import Inbox
from director.servers.servers import Server, Servers, Trust
from director.servers.setup_webhook import SetupWebhook
from director.store.caller_files import CallerFiles
from director.store.directors import ShelfFound
from director.store.removal import TrainedVersions
from director.store.services import Services
from director.webhooks.delivery import Post, Schedule, Webhooks
from director.webhooks.sender import Sender

log = logging.getLogger(__name__)

# After the drain's own time: for servers to act on a cancel (see DRAIN_WAIT_S), and for last writes and webhooks
HAND_BACK_S: Final = 10.0
TELL_S: Final = 2.0
STAY_S: Final = 5.0  # as often as the slowest heartbeat
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


class Claiming(Struct, eq=False):
    """The claims of one version, from the first one to the last."""

    heartbeat: Heartbeat
    consumer: Consumer
    claims: ActiveClaims

    async def drain(self, drain_s: float) -> None:
        self.consumer.stop()
        with anyio.move_on_after(TELL_S):
            await self.heartbeat.drain()
        for grace_s in (drain_s, HAND_BACK_S):
            with anyio.move_on_after(grace_s):
                await self.consumer.over()
                await self.claims.empty()
                break
            self.claims.stop_all(Stop.DRAIN)
        else:
            log.warning("left claims to their leases", extra={"held": len(self.claims)})
        # webhooks in progress get a moment; the courier delivers the owed ones
        with anyio.move_on_after(TELL_S):
            await self.consumer.wait_until_finished()


class Director:
    """`make_gate` makes the gate of each server. `keeps`: see `LiveSettings`. `shelf` returns what a heartbeat
    reports of devices.
    """

    def __init__(
        self,
        settings: DirectorSettings,
        shared: Shared,
        *,
        make_gate: Callable[[], Gate] = Gate,
        keeps: Sequence[str] = (),
    ) -> None:
        services, clock = shared.services, shared.services.clock
        runner_config(settings.runner, settings.runner_config)  # raises, also if the stored configuration replaces it
        if not settings.servers:
            log.warning(
                "no --server is given: the servers come from the stored configuration", extra={"model": settings.model}
            )
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.servers = Servers([], clock.monotonic)
        self.claims = ActiveClaims()
        self.fleet = Fleet(self.servers, make=partial(self._make_server, make_gate), watch=self._watch)
        self.shelf: Callable[[], ShelfFound | None] = lambda: None
        self.live = LiveSettings(settings, services.configs, clock, keeps=keeps)
        self._shared = shared
        setup_webhook = SetupWebhook.of(settings, shared.sender, clock)
        self._registration = Registration(settings, self.servers, services, setup_webhook)
        self._report = SelfReport(self.servers, clock, shared.store_check)
        self._newcomer = Newcomer(self.name, settings.model, self._registration, services, self._report)
        self._planner = ClaimPlanner(batch_cost=settings.batch_cost, batch_size=settings.batch_size)
        self._executor = self._make_executor(settings)
        self._claiming: Claiming | None = None
        self._inbox = Inbox("")
        self._is_draining = False
        shared.metering.watch(
            DirectorGauges(lambda: self._registration.queue or settings.model, self.servers, self.claims)
        )

    async def work(self, inbox: Inbox) -> None:
        self._inbox = inbox
        await self._begin()
        registration = self._registration
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.fleet.run)
            if not registration.kind:
                tasks.start_soon(self.live.follow, self._bring_into_force)
            tasks.start_soon(self._newcomer.run)
            if registration.setup_webhook is not None:
                tasks.start_soon(registration.setup_webhook.run)
            stay = partial(repeat, role="registration", tick_s=STAY_S, clock=self._shared.services.clock)
            tasks.start_soon(stay, registration.run_once)
            while True:
                await registration.known.wait()
                if self._is_draining:
                    break
                await self._serve_version()

    async def _begin(self) -> None:
        if not self._registration.kind:
            await self.live.begin()
        if not self.live.now.servers:
            raise SettingsError(NEEDS)
        await self._bring_into_force(self.live.now)

    async def _bring_into_force(self, settings: DirectorSettings) -> None:
        """Let all parts take these settings. Raises SettingsError and BackendUnavailable: then no part
        has changed."""
        if not settings.servers:
            raise SettingsError("The configuration names no server: the servers in use stay.")
        config, policy = runner_config(settings.runner, settings.runner_config), settings.policy
        await self._registration.change_policy(policy)
        self._executor.take_settings(settings)
        # a claim that waits here counts as an attempt if the director dies: only with retries left
        self.servers.permits.may_wait = policy.on_lost == "retry" and policy.attempts > 1
        self.fleet.want([Driven(url, config) for url in settings.servers], slots=settings.concurrent_predictions)

    async def _serve_version(self) -> None:
        """Claim for one version, until none of the servers runs it any more. Its waiting predictions stay in its
        queue."""
        claiming = self._claiming = self._make_claiming()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(claiming.heartbeat.run)
            tasks.start_soon(claiming.consumer.run)
            await self._registration.replaced.wait()
            await self._drain_claims(claiming)
            await claiming.consumer.abandon()
            tasks.cancel_scope.cancel()
        self.claims.resume()
        self._claiming = None
        await self._registration.forget()

    async def drain(self) -> None:
        """Claim nothing more, let runs finish, release the rest; end the servers last, if the settings say so."""
        self._is_draining = True
        if self._registration.queue is None:
            await self._newcomer.forget()
        if self._claiming is not None:
            await self._drain_claims(self._claiming)
        if self.live.now.end_servers:
            # they ignore SIGTERM: each would keep its GPU until the kubelet's grace ends and it is killed
            with anyio.move_on_after(TELL_S):
                async with anyio.create_task_group() as asking:
                    for server in self.servers.all:
                        asking.start_soon(server.runner.shutdown)

    async def _drain_claims(self, claiming: Claiming) -> None:
        log.info("draining", extra={"held": len(self.claims), **self._planner.figures})
        await claiming.drain(self.live.now.drain_s)

    async def abandon(self) -> None:
        """Cancel the runs that are left and leave their claims to the leases. Call it before the connections close."""
        if self._claiming is not None:
            await self._claiming.consumer.abandon()

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await self.abandon()
            await self.fleet.aclose()

    async def _watch(self, server: Server) -> None:
        registration = self._registration
        await Watch(
            server,
            self.servers,
            self._shared.services.clock,
            registration.introduce,
            registration.note_setup,
            setup_retry_s=self.live.now.setup_retry_s,
        ).run()

    def _make_server(self, make_gate: Callable[[], Gate], driven: Driven, slots: int) -> Server:
        settings = self.live.now
        most = settings.max_output_bytes
        options = RunnerOptions(
            url=driven.url,
            slots=slots,
            inbox=self._inbox,
            max_files=settings.max_files_bytes,
            max_body=most if self._shared.store is None else max(most, MOST_WITH_FILES),
            trains=self._registration.kind == "training",
            headers=settings.server_headers,
        )
        runner = make_runner(driven.config, options)
        together = runner.capabilities.batches
        places = together and min(together, settings.batch_size or together)
        trust = Trust(settings.max_failures, counts_failed=settings.count_model_failures)
        return Server(runner, slots, gate=make_gate(), trust=trust, places=places)

    def _make_claiming(self) -> Claiming:
        settings, shared, queue = self.live.now, self._shared, self._registration.queue
        assert queue is not None  # noqa: S101 - for the type checker: the event is set after it
        queues, clock, scripts = (queue, *self.also), shared.services.clock, shared.services.scripts
        heartbeat = Heartbeat(
            queues=queues,
            name=self.name,
            scripts=scripts,
            claims=self.claims,
            servers=self.servers,
            redis=shared.waits,
            clock=clock,
            lease_s=settings.lease_s,
            metering=shared.metering,
            report=self._report,
            shelf=lambda: self.shelf(),
        )
        consumer = Consumer(
            queues=queues,
            name=self.name,
            scripts=scripts,
            servers=self.servers,
            executor=self._executor,
            wakeup=Wakeup(shared.waits, queues, clock),
            clock=clock,
            lease_s=settings.lease_s,
            register=self._registration.register,
            planner=self._planner,
            gather_s=settings.batch_wait_ms / 1000,
        )
        return Claiming(heartbeat, consumer, self.claims)

    def _make_executor(self, settings: DirectorSettings) -> Executor:
        shared, services = self._shared, self._shared.services
        clock, scripts, store = services.clock, services.scripts, shared.store
        schedule = Schedule.parse(settings.webhook_schedule)
        webhooks = Webhooks(scripts, services.accounts, shared.sender, clock, schedule, shared.tracing)
        webhooks.on_attempt = shared.metering.webhooks.note_attempt
        return Executor(
            scripts=scripts,
            clock=clock,
            claims=self.claims,
            servers=self.servers,
            post=Post(webhooks),
            limits=Limits(
                output=settings.max_output_bytes,
                files=settings.max_files_bytes,
                inline=None if store is None else settings.inline_text_bytes,
            ),
            policy=settings.policy,
            settings=settings,
            dice=random.random,
            data_files=services.data_files,
            storing=None if store is None else Storing(store, scripts, clock, settings),
            moderator=shared.moderator,
            file_inputs=None if store is None else FileInputs(store, CallerFiles(services.redis), clock, settings),
            trained=TrainedVersions(services.redis, services.catalog, services.removal, store=store),
            metering=shared.metering,
            tracing=shared.tracing,
        )

    @property
    def queue(self) -> QueueName | None:
        """Return the queue once it is known and as long as the catalogue has it."""
        return None if self._registration.is_lost else self._registration.queue

    @property
    def also(self) -> Sequence[QueueName]:
        """Return the queues of older versions that its servers run too."""
        return [QueueName(name) for name in dict.fromkeys(self.live.now.also) if name != self._registration.queue]

    @property
    def is_unknown(self) -> bool:
        """Whether nothing in Redis says which version the model has: only its server can."""
        return self._registration.is_lost or (self._newcomer.has_looked and self._registration.queue is None)

    @property
    def running(self) -> Mapping[str, int]:
        return self.claims.by_account()

    @property
    def longest_run_left_s(self) -> float:
        return self.claims.longest_left_s(self.live.now.run_limit_s)

    @property
    def figures(self) -> dict[str, Any]:
        """Return figures for /readyz: batches, lost slots and the last setup, without its logs, which may be secret."""
        figures: dict[str, Any] = dict(self._planner.figures)
        if fewer := {server.runner.url: server.fewer for server in self.servers.all if server.fewer is not None}:
            figures |= {"fewer_slots": fewer}
        if self.live.left_out:
            figures |= {"servers_left_out": self.live.left_out}
        if self._registration.setup is not None:
            setup_run = msgspec.to_builtins(self._registration.setup)
            del setup_run["logs"]
            figures |= {"setup_run": setup_run}
        return figures

    async def missing(self) -> str:
        if self._is_draining:
            return "draining"
        if self._registration.known.is_set() and self.servers.is_serving:
            return ""
        return "; ".join(server.trouble for server in self.servers.all) or "not looked at yet"
