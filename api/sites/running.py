"""Start what is behind the API, one server or several, and end it in the opposite order."""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
from msgspec import Struct

from api.metering import Meters
from api.parts import Clients, Parts, State, running
from api.sites.site import Site
from api.sites.sites import Sites
from api.sites.table import SiteTable, read_sites
from director.core.clock import Clock
from director.core.errors import UnsafeBackend
from director.core.settings import ApiSettings
from director.runtime.tracing import Tracing

__all__ = ("Plan", "all_running")


class Plan(Struct, frozen=True):
    """The servers that there are, each with what holds there. Without a `table` there is one."""

    servers: Sequence[tuple[ApiSettings, Clients]]
    table: SiteTable | None = None

    @classmethod
    def of(cls, settings: ApiSettings) -> "Plan":
        """Connects to nothing yet. Raises SettingsError."""
        if not settings.sites:
            return cls([(settings, Clients.of(settings))])
        table = read_sites(Path(settings.sites))
        return cls([(each, Clients.of(each)) for each in table.settings(settings, os.environ)], table)


@asynccontextmanager
async def all_running(
    plan: Plan, meters: Meters, *, clock: Clock, on_unsafe: Callable[[UnsafeBackend], None], tracing: Tracing
) -> AsyncIterator[State]:
    """What handlers work with. A site other than the home may be too weak: it is not used then, as the log says."""
    async with AsyncExitStack() as stack:
        behind: list[Parts] = []
        for place, (settings, clients) in enumerate(plan.servers):
            parts = await stack.enter_async_context(
                running(
                    settings,
                    clients,
                    meters,
                    clock=clock,
                    on_unsafe=_ignored if place else on_unsafe,
                    tracing=tracing,
                    site=plan.table.site[place].number if plan.table else 0,
                    is_home=not place,
                    believes=plan.table is not None,
                )
            )
            behind.append(parts)
        meters.watch(
            held=lambda: sum(parts.waiters.waiting for parts in behind),
            readers=lambda: sum(parts.readers.reading for parts in behind),
        )
        if plan.table is None:
            yield {"parts": behind[0], "sites": None}
            return
        home = Site(plan.table.site[0], behind[0], clock)
        others = zip(plan.table.site[1:], behind[1:], strict=True)
        sites = Sites(plan.table, [home, *(Site(row, parts, clock, home=home) for row, parts in others)])
        meters.watch_sites({site.name: _up(site) for site in sites.all})
        async with anyio.create_task_group() as tasks:
            for site in sites.all:
                tasks.start_soon(site.run)
            yield {"parts": behind[0], "sites": sites}
            tasks.cancel_scope.cancel()


def _up(site: Site) -> Callable[[], float]:
    return lambda: float(site.is_up)


def _ignored(_: UnsafeBackend) -> None:
    """Its site says so itself."""
