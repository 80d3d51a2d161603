"""Find out which version a director serves, register its queue, and keep both known.

The first server that is ready gives the queue its name, unless another director registered it before. Until then the
director is a newcomer: operators see it under the name of its model, and callers of the model learn what is awaited.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final

from msgspec import Raw, Struct

from director.core.errors import BackendUnavailable
from director.core.ids import VERSION_DIGITS, Kind, QueueName, version_id
from director.core.policy import Policy
from director.core.schema import SetupRun, setup_run
from director.core.settings import DirectorSettings
from director.execution.heartbeat import LONGEST_DETAIL, SelfReport
from director.servers.runners.runner import Health, HealthStatus, NoAnswer, Setup
from director.servers.servers import Server, Servers
from director.servers.setup_webhook import SetupWebhook
from director.store.catalog import OPEN_SCHEMA, Awaited
from director.store.services import Services

log = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 2.0
MEND_SCHEMA: Final = "Cog: `director schema FOLDER` prints it; others: `input_schema` of the runner's configuration"
MOST_AWAITED: Final = 3  # servers that a caller is told of


class Registration:
    """The version that is served and its queue. `known`: set while the queue is known. `replaced`: set when none of the
    servers runs the version any more. `is_lost`: the catalogue does not have the queue. `setup`: the last one.
    """

    def __init__(
        self, settings: DirectorSettings, servers: Servers, services: Services, setup_webhook: SetupWebhook | None
    ) -> None:
        self.kind: Kind = "" if settings.kind == "prediction" else settings.kind
        self.version = settings.version.removeprefix("sha256:")
        self.queue: QueueName | None = None
        self.known = asyncio.Event()
        self.replaced = asyncio.Event()
        self.is_lost = False
        self.setup: SetupRun | None = None
        self.setup_webhook = setup_webhook
        self._settings = settings  # only those are read here that the stored configuration cannot change
        self._policy = settings.policy
        self._servers = servers
        self._services = services
        self._lock = asyncio.Lock()
        self._schema = OPEN_SCHEMA
        self._server_kind = ""

    async def recognize(self) -> None:
        """Find the queue before any server is ready, if another director registered it."""
        model, catalog = self._settings.model, self._services.catalog
        version = self.version or await self._ask_version()
        if not version and self._servers.may_rest and (stored := await catalog.model(model)) is not None:
            version = stored.latest  # until its server has been loaded, and shows another one
        found = await catalog.version(model, version) if version else None
        known = await catalog.of_kind(found, self.kind) if found else None
        async with self._lock:
            if known is not None and self.queue is None:
                self.version, self.queue = version, known.queue
                self.known.set()

    async def introduce(self, server: Server, health: Health) -> str:
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
        async with self._lock:
            if why := self._refuse_other_version(server, schema):
                server.is_other_version = True
                return why
            self._schema = schema or self._schema  # a server without a schema must not erase the known one
            self._server_kind = health.server or self._server_kind
            await self._register()
        return ""

    async def register(self) -> None:
        async with self._lock:
            await self._register()

    async def change_policy(self, policy: Policy) -> None:
        async with self._lock:
            if policy != self._policy and self.queue is not None:
                await self._services.scripts.register(self.queue, version=self.version, policy=policy)
            self._policy = policy

    async def run_once(self) -> bool:
        """Register again if a deletion of the version removed it. Nothing else would: the queue's `meta` stays, so
        claims go on, but no keeper sweeps the queue. Returns True if something was missing.
        """
        queue, model = self.queue, self._settings.model
        # of a model that may rest the garage asks whether it is lost; without a ready server it is of no use otherwise
        if queue is None or not (self._servers.may_rest or self._servers.any_ready()):
            return False
        self.is_lost = not await self._services.catalog.is_registered(model, self.version, queue)
        # without a ready server its schema may not be known yet, and the first one that is ready registers
        if not self.is_lost or not self._servers.any_ready():
            return False
        log.error("the catalogue has lost the queue, registering it again", extra={"queue": queue})
        await self.register()
        return True

    async def forget(self) -> None:
        """Forget the version and its queue: the next server that is ready gives others."""
        async with self._lock:
            self.queue, self.is_lost = None, False
            self.version, self._schema = "", OPEN_SCHEMA
            self.known.clear()
            self.replaced.clear()

    async def note_setup(self, server: Server, health: Health) -> bool:
        """Store the result of a setup beside its version. False if the version is not in the catalogue yet."""
        setup = health.setup or Setup()
        self.setup = setup_run(
            "succeeded" if health.can_run else "failed",
            started_at=setup.started_at,
            completed_at=setup.completed_at,
            logs=setup.logs,
            server=server.runner.url,
        )
        if self.setup_webhook is not None:
            self.setup_webhook.add(self.setup, model=self._settings.model, version=self.version)
        if self.kind:  # a version shows the setup of the servers that run predictions
            return True
        if not self.version:
            return False
        return await self._services.catalog.note_setup(self._settings.model, self.version, self.setup)

    async def _ask_version(self) -> str:
        for server in self._servers.all:
            if server.gate.state == "at_rest":
                continue
            with suppress(NoAnswer):
                if (schema := await server.runner.openapi_schema()) is not None:
                    return version_id(self._settings.model, schema, b"")
        return ""

    async def _compare(self, server: Server, schema: Raw) -> None:
        """Log that a server's schema is not the one published under the version that the operator gave."""
        known = await self._services.catalog.version(self._settings.model, self.version)
        server.is_other_version = known is not None and known.schema not in (OPEN_SCHEMA, schema)
        if server.is_other_version:
            facts = {"server": server.runner.url, "version": self.version, "mend": "give this build its own --version"}
            log.error("the model server shows another schema than its version has", extra=facts)

    def _refuse_other_version(self, server: Server, schema: Raw | None) -> str:
        """Return what is wrong if a server shows another schema than the version that is served: it is another version.
        The director changes to it when no other server runs the former one. A version that was given stays.
        """
        if self.replaced.is_set():
            return "its director is about to serve another version"
        if schema is None or self._settings.version or not self.version:
            return ""
        found = version_id(self._settings.model, schema, b"")
        if found == self.version:
            return ""
        if not any(other.health.can_run for other in self._servers.all if other is not server):
            facts = {"server": server.runner.url, "served": self.version, "version": found}
            log.warning("no server runs the version that is served, changing to another", extra=facts)
            self.replaced.set()
        other, served = (one[:VERSION_DIGITS] for one in (found, self.version))
        return f"it shows another schema, so it is version {other}, and {served} is served here"

    async def _register(self) -> None:
        settings = self._settings
        version = self.version or version_id(settings.model, self._schema, b"")
        self.queue = await self._services.catalog.register_kind(
            settings.model,
            version,
            self.kind,
            schema=self._schema,
            server=self._server_kind,
            policy=self._policy,
            is_latest=settings.latest,
        )
        self.version = version  # not before: a server may come back as another version while Redis refuses this one
        log.info("model registered", extra={"model": settings.model, "version": self.version})
        self.known.set()


class Newcomer(Struct, eq=False):
    """A director that knows no queue yet. `has_looked`: Redis was asked for it once."""

    name: str
    model: str
    registration: Registration
    services: Services
    report: SelfReport
    has_looked: bool = False

    async def run(self) -> None:
        """Look for the queue until it is known, and show meanwhile why predictions wait."""
        began = self.services.clock.monotonic()
        known = self.registration.known
        has_noted = False
        while not known.is_set():
            try:
                await self.registration.recognize()
                self.has_looked = True
                if not known.is_set():
                    has_noted = True
                    await self._note(began)
            except BackendUnavailable as exc:
                log.warning("looking for the queue failed", extra={"error": str(exc)})
            with suppress(TimeoutError):
                await asyncio.wait_for(known.wait(), LOOK_AGAIN_S)
        if has_noted:
            await self.forget()

    async def forget(self) -> None:
        with suppress(BackendUnavailable):  # it is forgotten after some seconds anyway
            await self.services.directors.forget_newcomer(self._label, self.name)

    async def _note(self, began: float) -> None:
        if not self.registration.kind:
            await self.services.catalog.note_awaited(self.model, self._describe(began))
        state = self.report.servers.standing.state
        about = self.report.encode(held=0)
        # it has no queue, so nothing is served yet, whatever its servers could do
        shown = "starting" if state == "ready" else state
        await self.services.directors.note_newcomer(self._label, self.name, shown, about)

    @property
    def _label(self) -> str:
        kind = self.registration.kind
        return self.model + (f"~{kind}" if kind else "")

    def _describe(self, began: float) -> Awaited:
        servers = self.report.servers.all
        server = next((server for server in servers if not server.can_run), None)
        why = "" if server is None else _explain(server)
        return Awaited(
            version=self.registration.version,
            waited_s=self.services.clock.monotonic() - began,
            servers=tuple(server.runner.url for server in servers[:MOST_AWAITED]),
            why=why[:LONGEST_DETAIL],
        )


def _explain(server: Server) -> str:
    if not server.gate.is_open:
        return server.gate.why
    setup = "Its setup failed: " if server.health.status is HealthStatus.SETUP_FAILED else ""
    return setup + server.health.detail
