"""The model servers of this director, each with its facts and counts, and the permits for their slots.

`servers.py` decides what an end or a look at a server says of it.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from director.servers.runners.answers import SERVER_AUTH
from director.servers.runners.runner import Batch, Health, HealthStatus, Outcome, Place, Remainder, Runner

# Decide how far a model server is trusted, by how its last runs ended. Pure: no clock, no server. Some servers answer
# health checks well and fail every run at once: one with a broken GPU would drain a queue. Such a server rests after a
# number of failures in a row, each time twice as long, and comes back with one run at a time until a run succeeds.
# Failures of a single account count once, so that no account can make a server rest for all the others.

FIRST_S: Final = 1.0
LONGEST_S: Final = 60.0
MOST_DOUBLINGS: Final = 10  # long past LONGEST_S, and far from what a float can hold

# The outcomes that count against a server. A refused input does not, nor does a run that was asked to stop
AGAINST: Final = frozenset({Outcome.FAILED, Outcome.CANCELED, Outcome.LOST, Outcome.REFUSED})
# The outcomes that a restart may help against. A server that refuses has no room, or lets others go first
MENDED_BY_A_START: Final = frozenset({Outcome.FAILED, Outcome.CANCELED, Outcome.LOST})


class Rest(Struct, frozen=True, kw_only=True):
    seconds: float
    restart: bool


class Trust:
    """The trust in one server. `most`: failures in a row after which it rests; 0 for never."""

    def __init__(self, most: int = 0) -> None:
        self.failures = 0
        self._most = most
        self._rests = 0
        self._died = ""
        self._accused_by = ""
        self._is_restarted = False

    @property
    def is_on_trial(self) -> bool:
        return self._rests > 0

    def note(self, outcome: Outcome, *, since: str, is_dead: bool = False, account: str = "") -> Rest | None:
        """Count the end of a run on the start `since` of the server: all runs that one death ends are one failure.
        `account`: whose run it was; '' if no other account could suffer by its failures. Returns a rest if one is due.
        """
        if outcome is Outcome.SUCCEEDED:
            self.failures = self._rests = 0
            self._is_restarted = False
            self._accused_by = ""
            return None
        if outcome is Outcome.FAILED and account:
            if account == self._accused_by:
                return None
            self._accused_by = account
        if outcome not in AGAINST or not self._most or (is_dead and since and self._died == since):
            return None
        self._died = since if is_dead else ""
        self.failures += 1
        if self.failures < self._most and not self._rests:
            return None
        # A second restart would not help where the first did not: an account's inputs may be what fails
        restart = outcome in MENDED_BY_A_START and not is_dead and not self._is_restarted
        self._is_restarted |= restart
        return self.rest(restart=restart)

    def rest(self, *, restart: bool = False) -> Rest:
        self._rests += 1
        return Rest(seconds=min(LONGEST_S, FIRST_S * 2.0 ** min(self._rests - 1, MOST_DOUBLINGS)), restart=restart)

    def went_well_elsewhere(self, account: str) -> None:
        """Note a success on another server: failures here may not come from what the account sends."""
        if account == self._accused_by:
            self._accused_by = ""


# A claim takes some ms. Of longer runs that is too little to hold what another director may have a free slot for
SHORT_S: Final = 0.25
ONE_AHEAD_OF: Final = 4  # slots
UNSEEN: Final = Health(status=HealthStatus.STARTING)


class Server(Struct, eq=False):
    """One model server.

    `slots`: as configured. `fewer`: the slots that it really has, where these are fewer. `busy`: slots in use.
    `waiting`: permits given ahead, in order. `places`: predictions in one batch. `runs`: all runs ever started.
    `running`: those that have not ended. `full_at`: the value of `runs` when it was last full against our count.
    `run_s`: the recent average duration of successful runs. `since`: its last start. `failed_starts`: in a row.
    `doubt`: set when it needs a restart; it gets no work until the watch has seen to that. `refusal`: why it did not
    let the director in; '' otherwise.
    """

    runner: Runner
    slots: int
    busy: int = 0
    since: str = ""
    health: Health = UNSEEN
    doubt: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    trust: Trust = msgspec.field(default_factory=Trust)
    is_resting: bool = False
    refusal: str = ""
    fewer: int | None = None
    runs: int = 0
    running: int = 0
    full_at: int | None = None
    places: int = 0
    run_s: float = math.inf
    waiting: deque["Permit"] = msgspec.field(default_factory=deque)
    failed_starts: int = 0

    @property
    def can_run(self) -> bool:
        return self.health.can_run and not self.is_resting and not self.doubt.is_set()

    @property
    def usable(self) -> int:
        return 1 if self.trust.is_on_trial else self.fewer or self.slots

    @property
    def free(self) -> int:
        return max(0, self.usable - self.busy) if self.can_run else 0

    @property
    def ahead(self) -> int:
        is_short = self.run_s < SHORT_S and not self.places and not self.trust.is_on_trial
        return max(1, self.usable // ONE_AHEAD_OF) if is_short and self.can_run else 0

    @property
    def is_locked(self) -> bool:
        return self.health.is_locked or (self.is_resting and bool(self.refusal))

    @property
    def trouble(self) -> str:
        if self.can_run:
            return ""
        if self.is_locked:
            return f"{SERVER_AUTH}: {self.refusal or self.health.detail}"
        if self.is_resting:
            return f"resting: {self.trust.failures} runs in a row failed on it"
        return f"{self.health.status}: {self.health.detail}"

    def take_slot(self) -> "list[Permit]":
        self.busy += 1
        if not self.places:
            return [Permit(self, self.since)]
        batch = Batch(1 if self.trust.is_on_trial else self.places)
        return [Permit(self, self.since, place=place) for place in batch.places]

    def hand_on(self) -> None:
        while self.waiting and self.free > 0:
            self.busy += 1
            permit = self.waiting.popleft()
            permit.since = self.since
            assert permit.turn is not None  # noqa: S101 - for the type checker: it waits
            permit.turn.set()


class Permit(Struct, eq=False):
    """The right to use one slot, or one place in a batch. Release it once, when the server answered. `since`: the start
    of the server that it is good for. `turn`: of a permit given ahead, set when it has a slot.
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
        return None if self.place is None else self.place.batch

    @property
    def has_slot(self) -> bool:
        return self.turn is None or self.turn.is_set()

    def release(self) -> bool:
        """Give it back. True if that frees a slot: of a batch, the last place does. A second call does nothing."""
        if not self.taken:
            return False
        self.taken = False
        self.server.running -= self.is_running
        if not self.has_slot:
            self.server.waiting.remove(self)
            return False
        if self.place is not None and not self.place.leave():
            return False
        self.server.busy -= 1
        return True


# Give out the permits for the slots of all model servers, those of the least busy server first. A server that cannot
# run gets none. Where runs are so short that a slot would be idle while the next prediction is claimed, a few permits
# are given ahead: they wait for the next slots of their server.

TURN_WITHIN_S: Final = 0.5


class Permits:
    """The permits of `servers`; their owner calls `refresh` after changes. `may_wait`: gives permits ahead."""

    def __init__(self, servers: list[Server], now: Callable[[], float]) -> None:
        self.may_wait = True
        self._servers = servers
        self._now = now
        self._changed = asyncio.Event()

    @property
    def busy(self) -> int:
        return sum(server.busy for server in self._servers)

    def take_batches(self) -> bool:
        return any(server.places for server in self._servers)

    async def wait(self, *, ahead: bool = False) -> list[Permit]:
        """Wait for a free permit, and return all that are free. `ahead`: with them those that may wait for a slot."""
        while not (permits := self.take() + (self.take_ahead() if ahead and self.may_wait else [])):
            self._changed.clear()
            await self._changed.wait()
        return permits

    def take(self, most: float = math.inf) -> list[Permit]:
        permits: list[Permit] = []
        free = [(server, server.usable) for server in self._servers if server.free > 0]
        while free and len(permits) < most:
            server, usable = min(free, key=_load) if len(free) > 1 else free[0]
            permits += server.take_slot()
            if server.busy >= usable:
                free.remove((server, usable))
        return permits

    def take_ahead(self) -> list[Permit]:
        permits = []
        for server in self._servers:
            while len(server.waiting) < server.ahead:
                server.waiting.append(Permit(server, server.since, turn=asyncio.Event()))
                permits.append(server.waiting[-1])
        return permits

    async def turn(self, permit: Permit) -> bool:
        """Wait until the permit has a slot. False after 0.5 s: runs on that server are not short any more."""
        if permit.turn is not None:
            try:
                async with asyncio.timeout(TURN_WITHIN_S):
                    await permit.turn.wait()
            except TimeoutError:
                permit.server.run_s = math.inf
                return False
        return True

    def start(self, permit: Permit) -> None:
        permit.is_running = True
        permit.started_at = self._now()
        permit.server.runs += 1
        permit.server.running += 1

    def move(self, permit: Permit, remote: str) -> None:
        """Move the permit to the server that runs `remote` already, if any: the run uses a slot there, free or not."""
        if not remote:
            return
        there = next((server for server in self._servers if server.runner.knows(remote)), permit.server)
        if there is permit.server:
            return
        self.release(permit)
        permit.server, permit.since, permit.place, permit.taken, permit.turn = there, there.since, None, True, None
        there.busy += 1

    def extend(self, server: Server, run: Remainder) -> None:
        """Keep a slot in use until `run` is over, longer than the permit of that run."""

        def is_over(_: object) -> None:
            server.busy -= 1
            server.running -= 1
            self.refresh(server)

        server.busy += 1
        server.running += 1
        run.add_done_callback(is_over)

    def release(self, *permits: Permit) -> None:
        """Free the slots of these permits. A permit that was released before is passed over."""
        self.refresh(*dict.fromkeys(permit.server for permit in permits if permit.release()))

    def refresh(self, *servers: Server) -> None:
        for server in servers:
            server.hand_on()
        self._changed.set()

    async def changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _load(free: tuple[Server, int]) -> float:
    server, usable = free
    return server.busy / usable
