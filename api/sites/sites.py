"""Hold the Redis servers of one API, by name and by the number in each id. The first, the home, has the accounts. A
route says which site's services its handler gets. With only one server there is no `Sites`.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from random import random
from typing import Final, NoReturn, TypedDict, TypeVar

import anyio
from msgspec import Struct
from starlette.responses import Response

from api.services.lookups import Cache, VersionRef
from api.services.meters import Meters
from api.services.services import Clients, Services
from api.sites import table
from api.sites.table import Candidate, QueueReport, SiteRow, SiteTable
from api.web.errors import Moved, Problem, Refusal, invalid_header, make_printable, not_found
from api.web.http import Request, Versions, services_of
from api.web.route import Route
from director.core.clock import Clock
from director.core.errors import BackendUnavailable, UnknownQueue, UnsafeBackend
from director.core.ids import PredictionId, QueueName, site_of
from director.core.settings import ApiSettings
from director.runtime.tracing import Tracing
from director.store.accounts import Account
from director.store.catalog import Awaited, Version
from director.store.departure import server_name

log = logging.getLogger(__name__)
Done = TypeVar("Done")
LOOK_S: Final = 1.0  # between two checks of a site
FRESH_S: Final = 1.0  # how long a queue's report is used
MOST_QUEUES: Final = 1_000
MOST_ACCOUNTS: Final = 10_000
MAX_WHY: Final = 200
AWAY: Final = "X-Sites-Away"  # a header
NOTHING_STARTS: Final = frozenset({"open"})


class Site:
    """One Redis server of several. `is_up`: it answered at the last check, and is safe; else `reason` says why not.
    `home`: None for the home itself. After a failure the site counts as down until the next check, a second later.
    """

    def __init__(self, row: SiteRow, services: Services, clock: Clock, *, home: "Site | None" = None) -> None:
        self.row, self.name = row, row.name
        self.services = services
        self.reason = "it was not asked yet"
        self._home = home
        self._clock = clock
        self._reports: Cache[QueueName, QueueReport] = Cache(clock=clock, ttl_s=FRESH_S, most=MOST_QUEUES)
        self.placed: dict[QueueName, int] = {}
        self._known: Cache[str, bool] = Cache(
            clock=clock,
            ttl_s=services.settings.cache_s,
            most=MOST_ACCOUNTS,
            is_away=lambda: home is not None and not home.is_up,
        )

    @property
    def is_up(self) -> bool:
        return self.services.gate.is_up

    async def run(self) -> NoReturn:
        while True:
            await self.run_once()
            await self._clock.sleep(LOOK_S)

    async def run_once(self) -> None:
        was_up = self.is_up
        try:
            await self.services.gate.run_once()
        except BackendUnavailable as exc:
            self.note_failure(str(exc))
        except UnsafeBackend as exc:
            self.note_failure(str(exc), level=logging.ERROR)
        else:
            if not was_up or self.reason:
                log.info("a site answers", extra={"site": self.name})
            self.reason = ""

    def note_failure(self, reason: str, *, level: int = logging.WARNING) -> None:
        """Note that the server did not answer: nothing new goes there until it does."""
        if reason != self.reason:
            log.log(level, "a site takes nothing new", extra={"site": self.name, "reason": reason})
        self.services.gate.is_up, self.reason = False, reason

    def expect(self, queue: QueueName, more: int = 1) -> None:
        self.placed[queue] = max(0, self.placed.get(queue, 0) + more)

    async def report(self, queue: QueueName) -> QueueReport | None:
        """Return what a queue reported at most a second ago, or None if the site has no such queue."""

        async def ask() -> QueueReport | None:
            try:
                stats = await self.services.scripts.stats(queue)
            except UnknownQueue:
                return None
            self.placed.pop(queue, None)
            return QueueReport(
                waiting=stats.waiting,
                running=stats.claimed,
                slots=stats.slots,
                service_ms=stats.service_ms,
                starts=not stats.paused and stats.breaker not in NOTHING_STARTS,
            )

        return await self._reports.get(queue, ask)

    async def introduce(self, account: str) -> None:
        """Let the site's directors sign this account's webhooks as those at home do. Raises BackendUnavailable."""

        async def copy() -> bool:
            signing = {} if self._home is None else await self._home.services.accounts.signing(account)
            await self.services.accounts.adopt(account, signing)
            return True

        if self._home is not None:
            await self._known.get(account, copy)


MOST_MOVES: Final = 4


class Sites:
    def __init__(self, table: SiteTable, sites: Sequence[Site]) -> None:
        self.table: Final = table
        self.all: Final = tuple(sites)
        self.home: Final = self.all[0]
        self.by_name: Final[Mapping[str, Site]] = {site.name: site for site in sites}
        self._by_number: Final[Mapping[int, Site]] = {site.row.number: site for site in sites}
        self._called: dict[str, Services] = {}

    def of(self, prediction_id: PredictionId) -> Site | None:
        return self._by_number.get(site_of(prediction_id))

    def may_run_at_home(self, model: str) -> bool:
        return self.home.row.takes_new and self.home.name in self.table.models.get(model, (self.home.name,))

    def find_asked(self, request: Request) -> Services:
        """Return the services of the site that X-Site names, else the home's. 422 for an unknown name."""
        name = request.headers.get("x-site")
        if name is None:
            return self.home.services
        if name not in self.by_name:
            raise invalid_header("X-Site", " or ".join(self.by_name))
        return self.by_name[name].services

    async def find_called(self, server: str) -> Services | None:
        """Return the server of this name, to which a prediction moved. None if it is not ours or does not answer."""
        if server not in self._called:
            up = [site.services for site in self.all if site.is_up]
            names = await asyncio.gather(*(server_name(services.redis) for services in up), return_exceptions=True)
            self._called |= {
                name: services for name, services in zip(names, up, strict=True) if isinstance(name, str) and name
            }
        return self._called.get(server)

    async def find_named(self, ref: VersionRef, account: Account) -> Version | None:
        """Return the version that this account means. The first site that knows the model decides who may see it.
        Raises BackendUnavailable if a site that may have it is away.
        """
        is_seen, away = False, None
        latest = ref.version
        for site in self.all:
            lookups = site.services.lookups
            try:
                name = ref.model or (await lookups.owner(ref.version) if ref.version else None)
                if name is None or not await lookups.has_model(name):
                    continue
                model = await lookups.model(name, account)
                if model is None and not is_seen:
                    return None
                is_seen = True
                latest = latest or (model.latest if model else None)
                if latest and (version := await lookups.version(name, latest)):
                    return version
            except BackendUnavailable as exc:
                if site is self.home:
                    raise
                away = str(exc)  # not the error: its traceback holds this frame, see without_frames
        if away is not None:
            raise BackendUnavailable(away)
        return None

    async def in_order(self, version: Version, account: str, allowed: Sequence[Site]) -> list[tuple[Site, Version]]:
        """Return the sites of `allowed` that have the version and answer, best first, each with its own version."""
        asked = (self._report(site, version, account) for site in allowed if site.is_up)
        found = list(filter(None, await asyncio.gather(*asked)))
        known = {site.name: (site, own) for site, own, _ in found}
        # no other request chooses before the caller's first await
        candidates = [
            Candidate(name=site.name, weight=site.row.weight, report=report, since=site.placed.get(own.queue, 0))
            for site, own, report in found
        ]
        return [known[name] for name in table.in_order(candidates, self.table.placement, random)]

    async def _report(self, site: Site, version: Version, account: str) -> tuple[Site, Version, QueueReport] | None:
        try:
            own = await site.services.lookups.version(version.model, version.id)
            report = None if own is None else await site.report(own.queue)
        except BackendUnavailable as exc:
            site.note_failure(str(exc))
            return None
        if report is None or own is None:
            return None
        try:
            await site.introduce(account)
        except BackendUnavailable:  # perhaps the home is away: then a new account's work goes to another site
            return None
        return site, own, report

    def release(self) -> None:
        for site in self.all:
            site.services.release()


def others(request: Request) -> Sequence[Site]:
    sites: Sites | None = request.sites
    return () if sites is None else sites.all[1:]


def may_try(request: Request, model: str) -> bool:
    """Return whether a call may run a version that its deployment tries. Of several sites only the home runs it, since
    the keepers there count its runs, and stop it.
    """
    sites: Sites | None = request.sites
    if sites is None:
        return True
    return request.headers.get("x-site", sites.home.name) == sites.home.name and sites.may_run_at_home(model)


async def answer_at_site(request: Request, route: Route) -> Response:
    """Call a route's handler with the services of one of several sites. Raises a 404 or a 422 for an unknown one."""
    if route.site == "asked":
        sites: Sites = request.sites
        request.services = sites.find_asked(request)
    if route.of is None:
        return await route.handler(request)

    async def answer(services: Services) -> Response:
        request.services = services
        return await route.handler(request)

    return await where_it_is(request, request.prediction_id, answer)


async def where_it_is(
    request: Request,
    prediction_id: PredictionId,
    act: Callable[[Services], Awaitable[Done]],
    services: Services | None = None,
) -> Done:
    """Call `act` with the services of the site that has the prediction now. Raises a 404 if that does not exist, and
    Moved if it went to a server outside this API. `services`: those to begin with, else those of the site in its id.
    """
    sites: Sites | None = request.sites
    services = services or services_at(request, prediction_id)
    for _ in range(MOST_MOVES):
        try:
            return await act(services)
        except Moved as exc:
            there = None if sites is None else await sites.find_called(exc.to)
            if there is None:
                raise
            services = there
    return await act(services)


async def refuse_moved(request: Request) -> None:
    """Raise Moved if the request's prediction went to another server, for what only its record here tells."""
    known = await request.services.scripts.replay(request.prediction_id, after=0, count=0, most_bytes=0)
    if known is not None and known.moved:
        raise Moved(known.moved)


def services_at(request: Request, prediction_id: PredictionId) -> Services:
    """Return the services of the site where the prediction was placed; 404 if there is no such site."""
    sites: Sites | None = request.sites
    if sites is None:
        return services_of(request)
    if (site := sites.of(prediction_id)) is None:
        raise not_found()
    return site.services


async def no_version(request: Request, ref: VersionRef, refusal: Refusal) -> Problem:
    """Return the refusal of a version that is not in the catalogue. Only operators see addresses of servers."""
    try:
        found = await _find_awaited(request, ref)
    except BackendUnavailable:  # the refusal is true without its reason
        found = None
    is_operator = request.account.oversees
    return refusal() if found is None else refusal(_in_words(ref, found, with_servers=is_operator))


async def _find_awaited(request: Request, ref: VersionRef) -> Awaited | None:
    """Return what the version's director waits for, if the caller may know.

    Nothing says yet whether a model without a record is private, so only its owner and operators may. The first site
    that has a record of the model decides, as it does who may see the model.
    """
    account, name = request.account, ref.model
    if name is None:
        return None
    may_know = account.may_look_into(name.partition("/")[0])
    model = None
    for services in (request.services, *(site.services for site in others(request) if site.is_up)):
        if model is None and (model := await services.catalog.model(name)) is not None:
            may_know = model.may_be_seen_by(account)
        awaited = await services.catalog.read_awaited(name) if may_know else None
        if awaited is not None and ref.version in (None, awaited.version):
            return awaited
    return None


def _in_words(ref: VersionRef, awaited: Awaited, *, with_servers: bool) -> str:
    subject = (
        f"No version of {ref.model} is ready" if ref.version is None else f"{ref.model}:{ref.version} is not ready"
    )
    servers = " and ".join(awaited.servers) if with_servers else ""
    why = f": {make_printable(awaited.why, MAX_WHY)}" if awaited.why else ""
    return f"{subject}: a director has waited for {servers or 'its model server'} for {awaited.waited_s:.0f} s{why}"


class State(TypedDict):
    """Each request carries the home's services, the sites if there are several, and the finder of versions."""

    services: Services
    sites: Sites | None
    versions: Versions


class Plan(Struct, frozen=True):
    servers: Sequence[tuple[ApiSettings, Clients]]
    table: SiteTable | None = None

    @classmethod
    def of(cls, settings: ApiSettings) -> "Plan":
        """Read the settings. Connects to nothing yet. Raises SettingsError."""
        if not settings.sites:
            return cls([(settings, Clients.of(settings))])
        found = table.read_sites(Path(settings.sites))
        return cls([(each, Clients.of(each)) for each in found.settings(settings, os.environ)], found)


@asynccontextmanager
async def all_running(
    plan: Plan,
    meters: Meters,
    *,
    clock: Clock,
    on_unsafe: Callable[[UnsafeBackend], None],
    tracing: Tracing,
    serves: bool = True,
) -> AsyncIterator[State]:
    """Run the services of every server. A site other than the home that is unsafe is not used, and the log says so.
    Unless it `serves`, the process is no API.
    """
    async with AsyncExitStack() as stack:
        behind: list[Services] = []
        for place, (settings, clients) in enumerate(plan.servers):
            services = Services(
                settings,
                clients,
                meters,
                clock=clock,
                on_unsafe=(lambda _: None) if place else on_unsafe,
                tracing=tracing,
                site=plan.table.site[place].number if plan.table else 0,
                is_home=not place,
                serves_while_away=plan.table is not None,
                serves=serves,
            )
            await stack.enter_async_context(services.running())
            behind.append(services)
        held, reading = (meters.registry.gauge(f"director_api_{of}") for of in ("held_responses", "stream_readers"))
        held.set_function(lambda: sum(services.waiters.waiting for services in behind))
        reading.set_function(lambda: sum(services.readers.reading for services in behind))
        if plan.table is None:
            yield {"services": behind[0], "sites": None, "versions": behind[0].lookups}
            return
        home = Site(plan.table.site[0], behind[0], clock)
        others = zip(plan.table.site[1:], behind[1:], strict=True)
        sites = Sites(plan.table, [home, *(Site(row, services, clock, home=home) for row, services in others)])
        async with anyio.create_task_group() as tasks:
            for site in sites.all:
                meters.watch_site(site.name, partial(getattr, site, "is_up"))
                tasks.start_soon(site.run)
            yield {"services": behind[0], "sites": sites, "versions": sites}
            tasks.cancel_scope.cancel()
