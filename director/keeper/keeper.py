"""Start, own and end the keeper's roles in one task group.

While Redis is away the keeper waits, says so on /readyz, and continues when Redis is back. Any number of keepers may
run at once, since each of their acts is one guarded script.
"""

import logging
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio

from director.broker.redis_client import client
from director.core.settings import KeeperSettings
from director.diagnosis.scaling import Scaling
from director.files.choose import StoreCheck, store_in
from director.keeper.cashier import Cashier
from director.keeper.contact import ServerTime
from director.keeper.courier import Breakers, Courier
from director.keeper.expirer import Expirer
from director.keeper.metering import Metering
from director.keeper.observer import Observer
from director.keeper.promoter import Promoter
from director.keeper.reaper import Reaper
from director.keeper.reconciler import Reconciler
from director.keeper.recoverer import Recoverer
from director.keeper.registry import Registry
from director.keeper.retirer import Retirer
from director.keeper.sampler import Sampler
from director.keeper.scale import ScaleRoute
from director.keeper.tidier import Tidier
from director.keeper.warden import Warden
from director.runtime import process
from director.runtime.metrics import Pulse
from director.runtime.tracing import OFF, Tracing
from director.store.services import Services
from director.webhooks.addresses import AllowList
from director.webhooks.sender import Sender
from director.webhooks.terminal import Schedule, TerminalWebhooks

log = logging.getLogger(__name__)

# Deliveries under way get this long after SIGTERM. What is cut off is due again, with the same webhook-id.
DRAIN_S: Final = 10.0


def serve(settings: KeeperSettings) -> None:
    """Run a keeper until SIGTERM or SIGINT. An error that an operator must repair ends it with one line."""
    process.serve("keeper", "keeper", _serve, settings)


async def _serve(settings: KeeperSettings) -> None:
    await run(settings, started=lambda port: log.info("health is served", extra={"port": port}))


async def run(settings: KeeperSettings, *, started: Callable[[int], None]) -> None:
    """Run until SIGTERM, SIGINT or cancellation, then drain. A second signal ends without draining.

    `started` is called with the port of /livez and /readyz. Raises UnsafeBackend if the server would lose what it
    accepts, and SettingsError for an invalid setting.
    """
    with process.one_error(), anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with _keeper(settings) as keeper, anyio.create_task_group() as tasks:
            tasks.start_soon(keeper.keep)
            tasks.start_soon(keeper.measure)
            tasks.start_soon(keeper.serve_health, started)
            await process.drained(signals, keeper.drain)
            tasks.cancel_scope.cancel()
    log.info("keeper ended")


@asynccontextmanager
async def _keeper(settings: KeeperSettings) -> AsyncGenerator["Keeper"]:
    """Build the keeper with its connections, and close them afterwards."""
    sender = Sender(AllowList.parse(settings.webhook_allow))
    redis = client(settings.redis_url, name="director-keeper")
    metering = Metering(most_queues=settings.metrics_queues)
    services = Services(redis, meter=metering.redis)
    sender.on_sent = metering.webhooks.sent
    tracing = process.tracing_of("keeper", accounts=settings.trace_accounts)
    try:
        yield Keeper(settings, services, sender, metering=metering, tracing=tracing)
    finally:
        with anyio.CancelScope(shield=True):
            await services.aclose()
            await sender.aclose()
            await tracing.aclose()


class Keeper:
    """The roles of one process and its health. The caller owns and closes the connections."""

    def __init__(
        self,
        settings: KeeperSettings,
        services: Services,
        sender: Sender,
        *,
        breakers: Breakers | None = None,
        metering: Metering | None = None,
        tracing: Tracing = OFF,
    ) -> None:
        self._settings = settings
        self._metering = metering = metering or Metering(most_queues=settings.metrics_queues)
        self._redis, self._clock = redis, clock = services.redis, services.clock
        scripts = services.scripts
        registry = Registry(redis, services.catalog, clock)
        schedule = Schedule.parse(settings.webhook_schedule)
        webhooks = TerminalWebhooks(scripts, services.accounts, sender, clock, schedule, tracing=tracing)
        time = ServerTime(redis, scripts, clock, lease_s=settings.lease_s)
        self.reaper = Reaper(scripts, registry, time, clock, lease_s=settings.lease_s)
        self.recoverer = Recoverer(redis, scripts, registry, time, clock, lease_s=settings.lease_s)
        self.reconciler = Reconciler(scripts, registry, clock, lease_s=settings.lease_s)
        self.retirer = Retirer(scripts, registry, clock)
        self.promoter = Promoter(scripts, registry, clock)
        self.expirer = Expirer(scripts, registry, clock)
        self.sampler = Sampler(scripts, registry, clock)
        self.cashier = Cashier(redis, scripts, registry, clock)
        self.courier = Courier(redis, scripts, registry, webhooks, clock, breakers=breakers)
        self.warden = Warden(services.suspensions, clock)
        store = store_in(settings.files_dir, redis, clock, url=settings.files_url)
        self.tidier = None if store is None else Tidier(redis, scripts, store, clock)
        self.observer = Observer(redis, scripts, registry, metering.names, settings, clock)
        metering.show(self.observer)
        self.reaper.on_reaped, self.recoverer.on_recovered = metering.reaped, metering.recovered
        self.reconciler.on_repaired, self.promoter.on_promoted = metering.repaired, metering.promoted
        self.expirer.on_expired, self.courier.on_put_off = metering.expired, metering.put_off
        webhooks.on_told = metering.webhooks.told
        self.scale = ScaleRoute(Scaling(redis, scripts, services.catalog, clock), settings.scale_token)
        self.health = process.Health()
        self.health.metrics = metering.registry
        self.health.checks = {"redis": process.redis_check(redis), "durability": self._durability_known}
        if store is not None:
            self.health.checks["files"] = StoreCheck(store, clock).missing

    async def keep(self) -> None:
        """Check the server, then run every role forever."""
        await process.look_at_redis(self._redis, self._settings, self.health, self._clock)
        async with anyio.create_task_group() as roles:
            roles.start_soon(self.health.missing)  # logs a broken store before anyone asks for it
            sweeping = (self.reaper, self.recoverer, self.reconciler, self.retirer, self.promoter, self.expirer)
            for role in (*sweeping, self.sampler, self.cashier, self.warden, self.observer):
                roles.start_soon(role.run)
            roles.start_soon(self.courier.run)
            if self.tidier is not None:
                roles.start_soon(self.tidier.run)

    async def measure(self) -> None:
        """Measure the event loop and Redis forever, whether Redis answers or not."""
        await Pulse(self._metering.registry, self._metering.redis, self._redis).run()

    async def serve_health(self, started: Callable[[int], None]) -> None:
        """Answer /livez, /readyz, /metrics and /scale forever."""
        app = self.health.app([self.scale.route])
        await process.serve_http(app, host=self._settings.host, port=self._settings.port, started=started)

    async def drain(self) -> None:
        """Let deliveries under way end, for up to DRAIN_S. Other roles have nothing to drain: each act is one
        script.
        """
        self.health.checks["keeper"] = _draining
        log.info("draining")
        with anyio.move_on_after(DRAIN_S):
            await self.courier.drain()

    async def _durability_known(self) -> str:
        return "" if "durability" in self.health.facts else "not looked at yet"


async def _draining() -> str:
    return "draining"
