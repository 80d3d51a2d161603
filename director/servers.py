"""The model servers of this director, and the permits for their slots: one seat is the right to use one slot.

Never asks a server anything: the watch tells it who is ready. Seats are given to the least busy server first.
"""

import asyncio
from collections.abc import Callable

import msgspec
from msgspec import Struct

from director.core.scripts import Readiness
from director.runners.runner import Health, HealthStatus, Runner

__all__ = ("Seat", "Server", "Servers", "Standing")


class Standing(Struct, frozen=True):
    """What the servers can do together. `slots`: of those that can run, busy or free."""

    slots: int
    state: Readiness


class Server(Struct, eq=False):
    """One model server: `slots` runs at a time, `busy` of them taken.

    `doubt` is set when a run showed that it needs a new start: it gets no work until the watch has seen to that.
    `since` is the start of it that was seen last.
    """

    runner: Runner
    slots: int
    busy: int = 0
    since: str = ""
    health: Health = Health(status=HealthStatus.STARTING)
    doubt: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    @property
    def free(self) -> int:
        """Slots that could be used now."""
        return self.slots - self.busy if self.can_run else 0

    @property
    def can_run(self) -> bool:
        """May it be given work, now or when a slot is free?"""
        return self.health.can_run and not self.doubt.is_set()


class Seat(Struct, eq=False):
    """The permit for one slot of this start of the server. Leave it once, when the server has answered."""

    server: Server
    since: str
    taken: bool = True


class Servers:
    """All seats. `on_news` is called whenever a server may stand differently."""

    def __init__(self, servers: list[Server]) -> None:
        self.all = servers
        self.on_news: Callable[[], None] = lambda: None
        self._changed = asyncio.Event()

    @property
    def slots(self) -> int:
        return sum(server.slots for server in self.all)

    @property
    def busy(self) -> int:
        return sum(server.busy for server in self.all)

    def any_ready(self) -> bool:
        """Could any server run something, now or when a slot is free?"""
        return any(server.can_run for server in self.all)

    @property
    def standing(self) -> Standing:
        """How they stand. A setup that failed is told only where no other server may still become ready."""
        if self.any_ready():
            return Standing(sum(server.slots for server in self.all if server.can_run), "ready")
        seen = {server.health.status for server in self.all}
        has_failed = HealthStatus.SETUP_FAILED in seen and HealthStatus.STARTING not in seen
        return Standing(0, "setup_failed" if has_failed else "starting")

    async def seats(self) -> list[Seat]:
        """Every free seat, at least one: waits for it."""
        while not (seats := self._take()):
            self._changed.clear()
            await self._changed.wait()
        return seats

    async def changed(self) -> None:
        """Wait until a seat is left, or a server was looked at."""
        self._changed.clear()
        await self._changed.wait()

    def leave(self, seat: Seat) -> None:
        """The slot is free again."""
        if seat.taken:
            seat.taken = False
            seat.server.busy -= 1
            self._changed.set()

    def doubt(self, seat: Seat) -> None:
        """A run showed that its server needs a new start, unless it had one meanwhile."""
        if seat.since == seat.server.since:
            seat.server.doubt.set()
            self.on_news()

    def saw(self, server: Server, health: Health) -> None:
        """A look at a server: from now on this is how it stands."""
        server.health = health
        self._changed.set()
        self.on_news()

    def _take(self) -> list[Seat]:
        seats = []
        while free := [server for server in self.all if server.free > 0]:
            server = min(free, key=lambda server: server.busy / server.slots)
            server.busy += 1
            seats.append(Seat(server, server.since))
        return seats
