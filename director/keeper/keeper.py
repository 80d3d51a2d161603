"""Start, own and end the keeper's roles in one task group. Any number of keepers may run at once."""

import hmac
import logging
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Protocol

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from director.broker.redis_client import client
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable, UnknownQueue
from director.core.settings import KeeperSettings
from director.files.choose import StoreCheck, store_in
from director.files.data_files import DataFiles
from director.files.store import FileStore
from director.keeper import bookkeeper, comparer
from director.keeper.bookkeeper import Bookkeeper
from director.keeper.canceler import Canceler
from director.keeper.cashier import Cashier
from director.keeper.comparer import Comparer
from director.keeper.courier import Breakers, Courier
from director.keeper.metrics import Metering, Observer
from director.keeper.reaper import Reaper, Recoverer, ServerTime
from director.keeper.recorder import Recorder
from director.keeper.recounter import Recounter
from director.keeper.registry import Registry
from director.keeper.shares import Shares
from director.keeper.sweeps import Reconciler, Sampler, expire, promote, renew_hours, retire
from director.keeper.tidier import Tidier
from director.operate.overview import Overview
from director.operate.scaling import Scaling
from director.runtime import metrics, process
from director.runtime.metrics import Pulse
from director.runtime.process import Health, redis_check, serve_http
from director.runtime.sweep import repeat
from director.runtime.tracing import OFF, Tracing
from director.store.processes import TICK_S, Presence
from director.store.services import Services
from director.webhooks.delivery import Schedule, Webhooks
from director.webhooks.sender import AllowList, Sender

log = logging.getLogger(__name__)

EXPIRER_TICK_S: Final = 0.5  # below the shortest life that a caller can ask for
# Deliveries under way get this long after SIGTERM. What is cut off is due again, with the same webhook-id.
DRAIN_S: Final = 10.0


def serve(settings: KeeperSettings) -> None:
    """Run a keeper until SIGTERM or SIGINT. An error that an operator must repair ends it with one line."""
    process.serve("keeper", "keeper", _serve, settings)


async def _serve(settings: KeeperSettings) -> None:
    await run(settings, started=lambda port: log.info("health is served", extra={"port": port}))


class Role(Protocol):
    """Something that the process runs beside the roles of its list."""

    async def run(self) -> None: ...

    async def drain(self) -> None: ...

    def show(self, registry: metrics.Registry) -> None:
        """Show its metrics at /metrics of the process."""


async def run(settings: KeeperSettings, *, started: Callable[[int], None], beside: Sequence[Role] = ()) -> None:
    """Run until SIGTERM, SIGINT or cancellation, then drain. A second signal ends without draining.

    `started` is called with the port of /livez and /readyz. `beside`: what the process runs too. Raises UnsafeBackend
    and SettingsError.
    """
    with process.one_error(), anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with _keeper(settings) as keeper, anyio.create_task_group() as tasks:
            tasks.start_soon(keeper.keep)
            tasks.start_soon(keeper.measure)
            tasks.start_soon(keeper.serve_health, started)
            for role in beside:
                role.show(keeper.metrics)
                tasks.start_soon(role.run)
            await process.drain_on_signal(signals, partial(_drain, keeper, beside))
            tasks.cancel_scope.cancel()
    log.info("keeper ended")


async def _drain(keeper: "Keeper", beside: Sequence[Role]) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keeper.drain)
        for role in beside:
            tasks.start_soon(partial(_within, DRAIN_S, role.drain))


async def _within(seconds: float, drain: Callable[[], Awaitable[None]]) -> None:
    with anyio.move_on_after(seconds):
        await drain()


@asynccontextmanager
async def _keeper(settings: KeeperSettings) -> AsyncGenerator["Keeper"]:
    sender = Sender(AllowList.parse(settings.webhook_allow))
    redis = client(settings.redis_url, name="director-keeper")
    metering = Metering(most_queues=settings.metrics_queues)
    clock = SystemClock()
    store = store_in(settings.files_dir, redis, clock, url=settings.files_url)
    services = Services(redis, clock, meter=metering.redis, data_files=DataFiles(clock, store))
    sender.on_sent = metering.webhooks.note_request
    tracing = process.tracing_of("keeper", accounts=settings.trace_accounts)
    try:
        yield Keeper(settings, services, sender, metering=metering, tracing=tracing, store=store)
    finally:
        with anyio.CancelScope(shield=True):
            await services.aclose()
            await sender.aclose()
            await tracing.aclose()


class Keeper:
    def __init__(
        self,
        settings: KeeperSettings,
        services: Services,
        sender: Sender,
        *,
        breakers: Breakers | None = None,
        metering: Metering | None = None,
        tracing: Tracing = OFF,
        store: FileStore | None = None,
    ) -> None:
        self._settings = settings
        self._metering = metering = metering or Metering(most_queues=settings.metrics_queues)
        self._redis, self._clock = redis, clock = services.redis, services.clock
        scripts, lease_s = services.scripts, settings.lease_s
        registry = Registry(redis, services.catalog, clock)
        schedule = Schedule.parse(settings.webhook_schedule)
        on_attempt = metering.webhooks.note_attempt
        webhooks = Webhooks(scripts, services.accounts, sender, clock, schedule, tracing, on_attempt)
        self.courier = Courier(redis, scripts, registry, webhooks, clock, metering.put_off, breakers)
        shares = Shares(redis, clock)
        overview = Overview.of(services)
        observer = Observer(redis, scripts, registry, metering.names, settings, clock, shares, overview)
        metering.show(observer)
        time = ServerTime(redis, scripts, clock, lease_s=lease_s)
        reaper = Reaper(scripts, registry, time, lease_s, metering.note_reaped)
        recoverer = Recoverer(redis, scripts, registry, time, clock, lease_s, metering.note_recovered)
        reconciler = Reconciler(scripts, registry, clock, lease_s, metering.note_repaired)
        self._roles: list[tuple[str, Callable[[], Awaitable[object]], float]] = [
            ("reaper", reaper.run_once, min(1.0, lease_s / 10)),
            ("recoverer", recoverer.look_through, 2 * lease_s),
            ("reconciler", reconciler.compare_all, 30.0),
            # each time they are brought they are known for 8 days
            ("renewer", partial(renew_hours, redis, scripts, registry), 600.0),
            ("retirer", partial(retire, scripts, registry), 300.0),
            # the shortest backoff is about one second
            ("promoter", partial(promote, scripts, registry, metering.note_promoted), 0.5),
            ("expirer", partial(expire, scripts, registry, metering.note_expired), EXPIRER_TICK_S),
            # More often than it samples: the look costs nothing extra beside other roles, and shows short-lived work.
            ("sampler", Sampler(scripts, registry, clock).run_once, 1.0),
            ("recorder", Recorder(redis, registry, services.trends, services.queues).run_once, 1.0),
            ("cashier", Cashier(redis, scripts, registry, clock).run_once, 1.0),
            # Without recent suspensions it is one look at an empty list. An account takes up to 10 s.
            ("warden", partial(services.suspensions.settle_all, within_s=10.0), 5.0),
            ("recounter", Recounter(redis, scripts, registry, clock).look_in_time, 5.0),
            ("bookkeeper", Bookkeeper(services.ledger, clock, settings.usage_months).run_once, bookkeeper.TICK_S),
            ("comparer", Comparer(services.deployments, services.queues, clock).run_once, comparer.TICK_S),
            ("shares", shares.look_in_time, 1.0),
            ("observer", observer.look_in_time, 1.0),
        ]
        self.health = Health()
        self.health.metrics = metering.registry
        self.health.checks = {"redis": redis_check(redis, clock), "durability": self._durability_known}
        if store is not None:
            self._roles.append(("tidier", Tidier(redis, scripts, store, clock).run_once, store.sweep_s))
            self.health.store_check = StoreCheck(store, clock, up=metering.registry.files_up).missing
        presence = Presence(redis, clock, "keeper", store_check=self.health.store_check)
        self._roles.append(("canceler", Canceler(redis, scripts, presence, clock).run_once, TICK_S))
        self._scale = scale_route(Scaling(redis, scripts, services.catalog, clock), settings.scale_token)

    @property
    def metrics(self) -> metrics.Registry:
        return self._metering.registry

    async def keep(self) -> None:
        await process.look_at_redis(self._redis, self._settings, self.health, self._clock, part="keeper")
        async with anyio.create_task_group() as roles:
            roles.start_soon(self.health.files)  # logs a broken store before anyone asks for it
            for name, step, tick_s in self._roles:
                roles.start_soon(partial(repeat, step, role=name, tick_s=tick_s, clock=self._clock))
            roles.start_soon(self.courier.run)

    async def measure(self) -> None:
        """Measure the event loop and Redis forever, whether Redis answers or not."""
        await Pulse(self._metering.registry, self._metering.redis, self._redis).run()

    async def serve_health(self, started: Callable[[int], None]) -> None:
        app, metrics = self.health.app([self._scale]), self.metrics
        await serve_http(app, host=self._settings.host, port=self._settings.port, started=started, metrics=metrics)

    async def drain(self) -> None:
        """Let deliveries under way end, for up to DRAIN_S. The acts of other roles are single scripts."""
        self.health.checks["keeper"] = _draining
        log.info("draining")
        with anyio.move_on_after(DRAIN_S):
            await self.courier.drain()

    async def _durability_known(self) -> str:
        return "" if "durability" in self.health.facts else "not looked at yet"


async def _draining() -> str:
    return "draining"


def scale_route(scaling: Scaling, token: str) -> Route:
    """Return the route for an autoscaler: 503 while Redis cannot answer. Without a `token` it rejects every request."""

    async def answer(request: Request) -> Response:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode("latin-1"), token.encode())
        if scheme.lower() != "bearer" or not token or not is_right:
            said = "Show DIRECTOR_SCALE_TOKEN as a bearer token."
            return _json(401, {"detail": said}, {"WWW-Authenticate": "Bearer"})
        parts = str(request.path_params["queue"]).split("/")
        # owner/name/version, as the admin API writes a queue
        name = f"{parts[0]}/{parts[1]}:{parts[2]}" if len(parts) == 3 else "/".join(parts)
        try:
            return _json(200, await scaling.of(await scaling.find(name)))
        except UnknownQueue:
            return _json(404, {"detail": "There is no such queue, nor a model of this name that has a version."})
        except BackendUnavailable:
            return _json(503, {"detail": "Redis cannot answer now."}, {"Retry-After": "5"})

    return Route("/scale/{queue:path}", answer)


def _json(status: int, body: Any, headers: Mapping[str, str] = {}) -> Response:
    said = {"Cache-Control": "no-store", **headers}
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json", headers=said)
