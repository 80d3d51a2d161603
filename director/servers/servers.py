"""The model servers of this director, and the permits for their slots: one seat is the right to use one slot.

Never asks a server anything: the watch tells it who is ready. Seats are given to the least busy server first; one that
keeps failing gets none for a while (`trust.py`), and neither that nor one that is down holds up the others.

Where runs are so short that a slot would be idle for a good part of its time while the next one is claimed, a few seats
are given ahead: they wait for the next slots of their server that become free.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from director.broker.scripts import Readiness
from director.servers.runners.runner import Batch, Ended, Health, HealthStatus, Lasting, Outcome, Place, Runner
from director.servers.runners.untrusted import SERVER_AUTH
from director.servers.trust import Trust
from director.store.directors import LOOP

log = logging.getLogger(__name__)

SOON_AGAIN: Final = 100  # runs
ALONE_S: Final = 3600.0
# A claim takes some ms: of longer runs that is too little to hold what another director may have a free slot for
SHORT_S: Final = 0.25
TURN_WITHIN_S: Final = 0.5
ONE_AHEAD_OF: Final = 4  # slots
UNSEEN: Final = Health(status=HealthStatus.STARTING)
RETRIES: Final = (HealthStatus.STARTING, HealthStatus.UNREACHABLE)


class Standing(Struct, frozen=True):
    """What the servers can do together. `slots`: of those that can run, busy or free; each place of a batch is one."""

    slots: int
    state: Readiness


class Server(Struct, eq=False):
    """One model server: `slots` runs at a time as we were told, `busy` of them taken.

    `doubt` is set when a run showed that it needs a new start: it gets no work until the watch has seen to that.
    `since` is the start of it that was seen last; `fewer`, the slots it has where these are less than we were told.
    `runs` counts what was ever started on it, `running` is what of that has not ended. `full_at`: what had been started
    when it was found full though by our count it was not. `places`: in a batch; 0 without. `lock`: it rests since it
    does not let the director in, as its last refusal said; '' where it does. `run_s`: what its runs take, lately.
    `waiting`: seats that were given ahead. `failed_starts`: in a row, without a moment in which it could run anything.
    """

    runner: Runner
    slots: int
    busy: int = 0
    since: str = ""
    health: Health = UNSEEN
    doubt: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    trust: Trust = msgspec.field(default_factory=Trust)
    is_resting: bool = False
    lock: str = ""
    fewer: int | None = None
    runs: int = 0
    running: int = 0
    full_at: int | None = None
    places: int = 0
    run_s: float = math.inf
    waiting: deque["Seat"] = msgspec.field(default_factory=deque)
    failed_starts: int = 0

    @property
    def free(self) -> int:
        """Slots that could be used now."""
        return max(0, self.usable - self.busy) if self.can_run else 0

    @property
    def usable(self) -> int:
        """Slots that it may use: one at a time until it has shown that it can still succeed."""
        return 1 if self.trust.is_on_trial else self.fewer or self.slots

    @property
    def ahead(self) -> int:
        """Seats that may wait for its slots."""
        is_short = self.run_s < SHORT_S and not self.places and not self.trust.is_on_trial
        return max(1, self.usable // ONE_AHEAD_OF) if is_short and self.can_run else 0

    @property
    def can_run(self) -> bool:
        """May it be given work, now or when a slot is free?"""
        return self.health.can_run and not self.is_resting and not self.doubt.is_set()

    @property
    def is_locked(self) -> bool:
        """Does it not let the director in, as far as we know?"""
        return self.health.is_locked or (self.is_resting and bool(self.lock))

    @property
    def trouble(self) -> str:
        """Why it is given no work, in words for people; '' where it is."""
        if self.can_run:
            return ""
        if self.is_locked:
            return f"{SERVER_AUTH}: {self.lock or self.health.detail}"
        if self.is_resting:
            return f"resting: {self.trust.failures} runs in a row failed on it"
        return f"{self.health.status}: {self.health.detail}"


class Seat(Struct, eq=False):
    """The permit for one slot of this start of the server, or for a place in the batch that shares one. Leave it once,
    when the server has answered: the slot is free when its last seat is left. One that was given ahead has a slot when
    its `turn` has come.
    """

    server: Server
    since: str
    taken: bool = True
    started_at: float = 0.0
    is_running: bool = False
    place: Place | None = None
    turn: asyncio.Event | None = None

    @property
    def batch(self) -> Batch | None:
        """The batch that its run goes in, if there is one."""
        return None if self.place is None else self.place.batch

    @property
    def has_slot(self) -> bool:
        """Or does it wait for one?"""
        return self.turn is None or self.turn.is_set()


class Servers:
    """All seats. `on_news` is called whenever a server may stand differently. `may_wait`: seats may be given ahead."""

    def __init__(self, servers: list[Server], now: Callable[[], float] = time.monotonic) -> None:
        self.all = servers
        self.may_wait = True
        self._now = now
        self._away_at = now()
        self._back_at: float | None = None
        self._last_account = ""
        self._alone_since = -math.inf
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

    def take_batches(self) -> bool:
        """Does any server take several runs in one request?"""
        return any(server.places for server in self.all)

    @property
    def standing(self) -> Standing:
        """How they stand. What somebody has to mend is told only where no other server may still become ready: one
        that failed in start after start, and tries again, is none.
        """
        if self.any_ready():
            return Standing(sum(server.usable * (server.places or 1) for server in self.all if server.can_run), "ready")
        seen = {_hoped(server) for server in self.all}
        if HealthStatus.STARTING in seen:
            return Standing(0, "starting")
        if any(server.is_locked for server in self.all):
            return Standing(0, SERVER_AUTH)
        return Standing(0, "setup_failed" if HealthStatus.SETUP_FAILED in seen else "starting")

    async def seats(self, *, ahead: bool = False) -> list[Seat]:
        """Every free seat, at least one: waits for it. `ahead`: and then those that may wait for a slot."""
        while not (seats := self._take() + (self._take_ahead() if ahead and self.may_wait else [])):
            self._changed.clear()
            await self._changed.wait()
        return seats

    def free_seats(self, most: int) -> list[Seat]:
        """Those that are free now, at most so many."""
        return self._take(most)

    async def turn(self, seat: Seat) -> bool:
        """Wait until the seat has a slot. False when it took too long: what runs there is longer than it was."""
        if seat.turn is not None:
            try:
                async with asyncio.timeout(TURN_WITHIN_S):
                    await seat.turn.wait()
            except TimeoutError:
                seat.server.run_s = math.inf
                return False
        return True

    async def changed(self) -> None:
        """Wait until a seat is left, or a server was looked at."""
        self._changed.clear()
        await self._changed.wait()

    def move(self, seat: Seat, remote: str) -> None:
        """A run that another server runs already under this name uses a slot there, whether one is free or not: the
        seat is of that server from now on.
        """
        if not remote:
            return
        there = next((server for server in self.all if server.runner.knows(remote)), seat.server)
        if there is seat.server:
            return
        self.leave(seat)
        seat.server, seat.since, seat.place, seat.taken, seat.turn = there, there.since, None, True, None
        there.busy += 1

    def leave(self, seat: Seat) -> None:
        """The slot is free again."""
        self.leave_all((seat,))

    def leave_all(self, seats: Sequence[Seat]) -> None:
        """These slots are free again."""
        for server in dict.fromkeys(seat.server for seat in seats if _let_go(seat)):
            self._hand_on(server)
        self._changed.set()

    def setup_wait_s(self, waited_s: float) -> float:
        """How much of the time that a prediction waited until now there was no server that could run anything."""
        now = self._now()
        back_at = now if self._back_at is None else self._back_at
        return max(0.0, min(waited_s - (now - back_at), back_at - self._away_at))

    def starts(self, seat: Seat) -> None:
        """A run is about to be started on this seat."""
        seat.is_running = True
        seat.started_at = self._now()
        seat.server.runs += 1
        seat.server.running += 1

    def ended(self, seat: Seat, ended: Ended, *, unasked: bool, account: str = "") -> None:
        """How a run of an account ended, and whether nobody had asked it to: what that says of its server."""
        if ended.server_is_dead and not (ended.has_no_slot and self._found_fewer(seat)):
            self.doubt(seat)
        if ended.goes_on is not None:
            self._keep(seat, ended.goes_on)
        server = seat.server
        counts = unasked and (seat.batch is None or ended.outcome not in seat.batch.ends)  # one request, one failure
        if seat.batch is not None and unasked:
            seat.batch.ends.add(ended.outcome)
        # what fails while it rests began before: many runs that fail together are no reason to rest again and longer
        counts = counts and (ended.outcome is Outcome.SUCCEEDED or not server.is_resting)
        account = self._others_than(account)
        if ended.outcome is Outcome.SUCCEEDED:
            took_s = self._now() - seat.started_at
            server.run_s = took_s if server.run_s == math.inf else server.run_s + (took_s - server.run_s) / 5
            for other in self.all:
                other.trust.went_well_elsewhere(account)
        if ended.is_locked:
            if not server.is_resting:
                self._lock(server, ended.error or "")
            return
        dead = ended.server_is_dead
        rest = server.trust.note(ended.outcome, since=seat.since, is_dead=dead, account=account) if counts else None
        if rest is None:
            return
        facts = {"server": server.runner.url, "failures": server.trust.failures, "rest_s": rest.seconds}
        log.warning("a model server that keeps failing gets nothing for a while", extra=facts)
        server.lock = ""
        self._rest(server, rest.seconds)
        if rest.restart:
            self.doubt(seat)

    def _keep(self, seat: Seat, goes_on: Lasting) -> None:
        """Its slot is used for longer than the seat."""
        server = seat.server

        def is_over(_: object) -> None:
            server.busy -= 1
            server.running -= 1
            self._hand_on(server)
            self._changed.set()

        server.busy += 1
        server.running += 1
        goes_on.add_done_callback(is_over)

    def _lock(self, server: Server, said: str) -> None:
        rest = server.trust.rest()
        facts = {"server": server.runner.url, "why": said, "code": SERVER_AUTH, "rest_s": rest.seconds}
        log.error("a model server does not let the director in, and gets nothing for a while", extra=facts)
        server.lock = said
        self._rest(server, rest.seconds)

    def _rest(self, server: Server, seconds: float) -> None:
        server.is_resting = True
        asyncio.get_running_loop().call_later(seconds, self._rested, server)
        self.on_news()

    def _others_than(self, account: str) -> str:
        """The account, unless no other one had a run here for long: then nobody else suffers by what fails for it."""
        if account != self._last_account:
            self._alone_since = self._now() if self._last_account else -math.inf
            self._last_account = account
        return "" if self._now() - self._alone_since >= ALONE_S else account

    def doubt(self, seat: Seat) -> None:
        """A run showed that its server needs a new start, unless it had one meanwhile."""
        if seat.since == seat.server.since:
            self.distrust(seat.server)

    def distrust(self, server: Server) -> None:
        """It needs a new start."""
        server.doubt.set()
        self.on_news()

    def started(self, server: Server, since: str) -> None:
        """It was started anew: it may have all its slots again."""
        server.since, server.fewer = since, None
        server.doubt.clear()

    def saw(self, server: Server, health: Health) -> None:
        """A look at a server: from now on this is how it stands."""
        server.failed_starts = _failed_starts(server, health)
        server.health = health
        self._note()

    def add(self, server: Server) -> None:
        """One more."""
        self.all.append(server)
        self._note()

    def remove(self, server: Server) -> None:
        """One less: it is given no more runs, and ends those that it has."""
        self.all.remove(server)
        self._note()

    def resize(self, server: Server, slots: int) -> None:
        """It has so many slots from now on. Where these are fewer, what runs beyond them ends first."""
        if server.slots != slots:
            server.slots, server.fewer, server.full_at = slots, None, None
            self._note()

    def _note(self) -> None:
        if self.any_ready() != (self._back_at is not None):
            if self._back_at is None:
                self._back_at = self._now()
            else:
                self._away_at, self._back_at = self._now(), None
        for server in self.all:
            self._hand_on(server)
        self._changed.set()
        self.on_news()

    def _found_fewer(self, seat: Seat) -> bool:
        """A server that is full beside others of ours has lost a slot, and gets it back by a new start. One that soon
        is so again never had as many as we were told, and is given fewer instead.
        """
        server = seat.server
        if seat.since != server.since or server.running < 2:
            return False
        if server.doubt.is_set():  # another run found so
            return True
        is_again = server.full_at is not None and server.runs - server.full_at < SOON_AGAIN
        server.full_at = server.runs
        if not is_again:
            return False
        server.fewer = max(1, server.usable - 1)
        log.error(
            "DIRECTOR_CONCURRENT_PREDICTIONS is more than the model server has slots",
            extra={"server": server.runner.url, "told": server.slots, "slots": server.fewer},
        )
        return True

    def _rested(self, server: Server) -> None:
        server.is_resting = False
        self._hand_on(server)
        self._changed.set()
        self.on_news()

    def _hand_on(self, server: Server) -> None:
        while server.waiting and server.free > 0:
            server.busy += 1
            seat = server.waiting.popleft()
            seat.since = server.since
            assert seat.turn is not None  # noqa: S101 - for the type checker: it waits
            seat.turn.set()

    def _take_ahead(self) -> list[Seat]:
        seats = []
        for server in self.all:
            while len(server.waiting) < server.ahead:
                server.waiting.append(Seat(server, server.since, turn=asyncio.Event()))
                seats.append(server.waiting[-1])
        return seats

    def _take(self, most: float = math.inf) -> list[Seat]:
        seats: list[Seat] = []
        free = [(server, server.usable) for server in self.all if server.free > 0]
        while free and len(seats) < most:
            server, usable = min(free, key=_share) if len(free) > 1 else free[0]
            server.busy += 1
            seats += _seats(server)
            if server.busy >= usable:
                free.remove((server, usable))
        return seats


def _let_go(seat: Seat) -> bool:
    """True when its server has a slot more."""
    if not seat.taken:
        return False
    seat.taken = False
    seat.server.running -= seat.is_running
    if not seat.has_slot:
        seat.server.waiting.remove(seat)
        return False
    if seat.place is not None and not seat.place.leave():
        return False
    seat.server.busy -= 1
    return True


def _share(free: tuple[Server, int]) -> float:
    server, usable = free
    return server.busy / usable


def _failed_starts(server: Server, health: Health) -> int:
    """With this look at it: a start failed when its setup did, or when it was gone before it could run anything."""
    before = server.health
    if health.can_run:
        return 0
    if health.status is HealthStatus.SETUP_FAILED:
        return server.failed_starts + (before.status is not health.status or before.since != health.since)
    was_starting = before.status is HealthStatus.STARTING and before is not UNSEEN
    return server.failed_starts + (was_starting and health.status is HealthStatus.UNREACHABLE)


def _hoped(server: Server) -> HealthStatus:
    """How it stands, as far as that gives hope."""
    has_none = server.failed_starts >= LOOP and server.health.status in RETRIES
    return HealthStatus.SETUP_FAILED if has_none else server.health.status


def _seats(server: Server) -> list[Seat]:
    """Those of one slot."""
    if not server.places:
        return [Seat(server, server.since)]
    batch = Batch(1 if server.trust.is_on_trial else server.places)
    return [Seat(server, server.since, place=place) for place in batch.places]
