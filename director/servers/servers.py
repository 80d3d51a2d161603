"""Know all model servers of this director, the permits for their slots, which of them can run, and what the end of a
run says about its server.

Never asks a server anything: the watch reports each look at one. A server that keeps failing rests (`Trust`). A server
that a run found dead is in doubt until the watch has asked it. Neither holds up the others.
"""

import asyncio
import contextlib
import logging
import math
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from director.broker.replies import Readiness, Swap
from director.servers.gate import Gate, GateState
from director.servers.runners.answers import SERVER_AUTH
from director.servers.runners.outcomes import REFUSALS_OF_AN_ATTEMPT
from director.servers.runners.runner import Batch, Ended, Health, HealthStatus, Outcome, Place, Remainder, Runner
from director.store.directors import LOOP

log = logging.getLogger(__name__)

SOON_AGAIN: Final = 100  # runs
ALONE_S: Final = 3600.0
RETRIES: Final = (HealthStatus.STARTING, HealthStatus.UNREACHABLE)

SLOT_WITHIN_S: Final = 0.5
# A claim takes some ms. Of longer runs that is too little to hold what another director may have a free slot for
SHORT_S: Final = 0.25
ONE_AHEAD_OF: Final = 4  # slots
# A run that was lost twice waits for other runs to end, and is then alone. Both last this many usual runs. A run that
# kills its server mostly does so soon. A run that hangs would otherwise idle the others' slots again and again
ALONE_RUNS: Final = 5
LEAST_ALONE_S: Final = 5.0
ALONE_WAIT_S: Final = 30.0  # at most
ALONE_RUN_S: Final = 60.0  # at most
# In a row, then half of the time: one death may end a hundred runs, and the pool has others to run
MOST_ALONE_S: Final = 120.0
# The end of a traceback, in each heartbeat while the setup stays failed
LOG_LINES: Final = 8
LOG_CHARS: Final = 1_000
UNSEEN: Final = Health(status=HealthStatus.STARTING)

FIRST_S: Final = 1.0
LONGEST_S: Final = 60.0
MOST_DOUBLINGS: Final = 10  # long past LONGEST_S, and far from what a float can hold

# The outcomes that count against a server. A refused input does not, nor does a run that was asked to stop
AGAINST: Final = frozenset({Outcome.FAILED, Outcome.CANCELED, Outcome.LOST, Outcome.REFUSED})
# Words of an error that may mean a sick accelerator. A model may also raise them because of an input
SICKNESS: Final = re.compile(
    r"\b(?:CUDA|cuDNN|cuBLAS|NCCL)[ _]|\bHIP error|out of memory|device-side assert", re.IGNORECASE
)
MOST_PAST: Final = 64  # runs
MOST_REFUSED: Final = 1000  # predictions that are remembered for having been refused


class Trust:
    """The trust in one server, by how its last runs ended. `most`: failures in a row after which it rests; 0 for never.

    Some servers answer health checks well and fail every run at once: one with a broken GPU would drain a queue. Each
    rest is twice as long as the last, and after it the server runs one prediction at a time until a run succeeds. It is
    not restarted, since what fails may be the inputs: an operator sees that it rests.

    Errors that the model's own code raises mostly come from inputs, so they count only if they have words of sickness,
    or of a dead engine (`by_words`), and come from two accounts. With `counts_failed` they all count. Failures of a
    single account then count once, so that no account can make a server rest for all the others. So do its runs that a
    server lost and stayed ready, and those that a server refused as if it were full.
    """

    def __init__(self, most: int = 0, *, counts_failed: bool = False) -> None:
        self.failures = 0
        self._most = most
        self.counts_failed = counts_failed
        self._rests = 0
        self._died = ""
        self._found_by = ""
        self._suspect = ""
        self._accused_by = ""

    @property
    def is_on_trial(self) -> bool:
        return self._rests > 0

    @property
    def failures_in_words(self) -> str:
        return f"{self.failures} runs in a row failed on it"

    def note(
        self,
        outcome: Outcome,
        *,
        since: str,
        is_dead: bool = False,
        by_words: bool = False,
        may_be_full: bool = False,
        account: str = "",
        error: str = "",
    ) -> float | None:
        """Count the end of a run on the start `since` of the server: all runs that one death ends are one failure.
        `account`: whose run it was; '' if no other account could suffer by its failures, unless words of sickness make
        it one. Returns the seconds of a rest if one is due.
        """
        if outcome is Outcome.SUCCEEDED:
            self.failures = self._rests = 0
            self._accused_by = self._suspect = ""
            return None
        is_said = outcome is Outcome.FAILED or by_words
        if is_said and not self.counts_failed:
            if not by_words and not SICKNESS.search(error):
                self._rests = 0  # the server brought a run to its end
                return None
            before, self._accused_by = self._accused_by, account
            if before in ("", account):
                return None
        elif is_said and account:
            if account == self._accused_by:
                return None
            self._accused_by = account
        if outcome not in AGAINST or not self._most or (is_dead and since and self._died == since):
            return None
        if (is_dead or may_be_full) and account and account == self._suspect:
            return None
        if is_dead:
            self._died, self._found_by = since, account
        elif may_be_full:
            self._suspect = account
        self.failures += 1
        if self.failures < self._most and not self._rests:
            return None
        return self.rest()

    def rest(self) -> float:
        self._rests += 1
        return min(LONGEST_S, FIRST_S * 2.0 ** min(self._rests - 1, MOST_DOUBLINGS))

    def acquit(self) -> None:
        """Note that the server is alive after all: the next death that a run finds is another failure."""
        self._died = ""
        self.suspect()

    def suspect(self) -> None:
        """Note that the server was ready right after a run found it dead: the run's account may be the reason."""
        self._suspect = self._found_by

    def went_well_elsewhere(self, account: str) -> None:
        """Note a success on another server: failures here may not come from what the account sends."""
        if account == self._suspect:
            self._suspect = ""
        if self.counts_failed and account == self._accused_by:
            self._accused_by = ""


class Room:
    """The most runs that a server is known to have run at once, of the last ones that succeeded. It says whether a
    server had room for a run that it refused. Kept only once a server refused one beside others: each costs some µs.
    """

    def __init__(self) -> None:
        self._runs: deque[_Past] = deque(maxlen=MOST_PAST)

    @property
    def most(self) -> int:
        return max((run.beside for run in self._runs), default=0) + 1

    def add(self, began_at: float, ended_at: float) -> None:
        """Note a run that succeeded. The most runs at once are at the beginning of one of them."""
        beside = 0
        for run in self._runs:
            if began_at <= run.began_at < ended_at:
                run.beside += 1
            elif run.began_at < began_at < run.ended_at:
                beside += 1
        self._runs.append(_Past(began_at, ended_at, beside))


class _Past(Struct, eq=False):
    began_at: float
    ended_at: float
    beside: int  # others that were running when it began


class Refusals:
    """How often ready servers refused a prediction although they had room for it: the reason may be its input.
    Kept in this process: where several directors meet it, each counts for itself.
    """

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def add(self, run: str) -> int:
        """Count one more. Returns how many there were. After as many as an attempt has, the count begins again."""
        times = self._times.pop(run, 0) + 1
        if times < REFUSALS_OF_AN_ATTEMPT:
            self._times[run] = times
        if len(self._times) > MOST_REFUSED:
            del self._times[next(iter(self._times))]
        return times


class Server(Struct, eq=False):
    """One model server.

    `slots`: as configured. `fewer`: the slots that it really has, where these are fewer. `busy`: slots in use.
    `waiting`: permits given ahead, in order. `places`: predictions in one batch. `runs`: all runs ever started.
    `running`: those that have not ended. `full_at`: the value of `runs` when it was last full against our count.
    `begun_at`: when the last one began. `run_s`: the recent average duration of successful runs. `since`: its last
    start. `failed_starts`: in a row.
    `is_reserved`: for one run alone, so that it gives no permits. `has_schema`: it showed one when it was ready.
    `is_other_version`: that is not the schema of the version that is served.
    `setup_log`: the last lines of its last setup, if that failed.
    `doubt`: set when a run found it dead or without the slot that it should have; it gets no work until the watch has
    asked it. `hangs`: a run there does not stop. `refusal`: why it did not let the director in; '' otherwise. `room`:
    what is known of its slots, once it refused a run beside others. `had_room`: a run succeeded since it last said that
    it is full.
    """

    runner: Runner
    slots: int
    busy: int = 0
    since: str = ""
    health: Health = UNSEEN
    gate: Gate = msgspec.field(default_factory=Gate)
    doubt: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    trust: Trust = msgspec.field(default_factory=Trust)
    hangs: bool = False
    is_resting: bool = False
    refusal: str = ""
    room: Room | None = None
    had_room: bool = False
    fewer: int | None = None
    runs: int = 0
    running: int = 0
    begun_at: float = -math.inf
    full_at: int | None = None
    places: int = 0
    run_s: float = math.inf
    waiting: deque["Permit"] = msgspec.field(default_factory=deque)
    failed_starts: int = 0
    setup_log: str = ""
    is_reserved: bool = False
    has_schema: bool = True
    is_other_version: bool = False

    @property
    def can_run(self) -> bool:
        return self.gate.is_open and self.health.can_run and not self.is_resting and not self.doubt.is_set()

    @property
    def is_drained(self) -> bool:
        return not self.gate.is_open and not self.busy and not self.waiting

    @property
    def usable(self) -> int:
        return 1 if self.trust.is_on_trial else self.fewer or self.slots

    @property
    def free(self) -> int:
        return max(0, self.usable - self.busy) if self.can_run and not self.is_reserved else 0

    @property
    def ahead(self) -> int:
        is_short = self.run_s < SHORT_S and not self.places and not self.trust.is_on_trial
        return max(1, self.usable // ONE_AHEAD_OF) if is_short and self.can_run and not self.is_reserved else 0

    @property
    def is_locked(self) -> bool:
        if not self.gate.is_open:
            return False
        return self.health.is_locked or (self.is_resting and bool(self.refusal))

    @property
    def is_on_trial(self) -> bool:
        """Whether it has rested for its failures, and no run has succeeded since."""
        return self.can_run and self.trust.is_on_trial

    @property
    def state(self) -> str:
        """Its state in reports. One that is on trial still rests there: a rest is short, and what is broken stays."""
        if not self.gate.is_open:
            return self.gate.state
        if self.is_resting or self.is_on_trial:
            return "resting"
        return "doubted" if self.health.can_run and self.doubt.is_set() else self.health.status.value

    @property
    def detail(self) -> str:
        if not self.is_on_trial:
            return self.trouble
        return f"{SERVER_AUTH}: {self.refusal}" if self.refusal else f"on trial: {self.trust.failures_in_words}"

    @property
    def trouble(self) -> str:
        if self.can_run:
            return ""
        if not self.gate.is_open:
            return f"{self.gate.state}: {self.gate.swap.reason if self.gate.swap else 'nothing waits for it'}"
        if self.is_locked:
            return f"{SERVER_AUTH}: {self.refusal or self.health.detail}"
        if self.is_resting:
            return f"resting: {self.trust.failures_in_words}"
        return f"{self.health.status}: {self.health.detail}"

    def take_slot(self) -> "list[Permit]":
        self.busy += 1
        if not self.places:
            return [Permit(self, self.since)]
        batch = Batch(1 if self.trust.is_on_trial else self.places)
        return [Permit(self, self.since, place=place) for place in batch.places]

    def hand_on(self) -> None:
        # behind a closing gate too: a permit that waits has a claim already
        while self.waiting and (self.free > 0 or (self.gate.state == "draining" and self.busy < self.usable)):
            self.busy += 1
            permit = self.waiting.popleft()
            permit.since = self.since
            assert permit.slot is not None  # noqa: S101 - for the type checker: it waits
            permit.slot.set()


class Permit(Struct, eq=False):
    """The right to use one slot, or one place in a batch. Release it once, when the server answered. `since`: the start
    of the server that it is good for. `slot`: of a permit given ahead, set when it has a slot.
    """

    server: Server
    since: str
    taken: bool = True
    started_at: float = 0.0
    is_running: bool = False
    place: Place | None = None
    slot: asyncio.Event | None = None

    @property
    def batch(self) -> Batch | None:
        return None if self.place is None else self.place.batch

    @property
    def has_slot(self) -> bool:
        return self.slot is None or self.slot.is_set()

    def release(self) -> bool:
        """Give it back. True if that frees a slot: of a batch, the last place does. A second call does nothing."""
        if not self.taken:
            return False
        self.taken = False
        self.server.running -= self.is_running
        if self.slot is not None and not self.slot.is_set():
            self.server.waiting.remove(self)
            return False
        if self.place is not None and not self.place.leave():
            return False
        self.server.busy -= 1
        return True


class Permits:
    """The permits of `servers`, those of the least busy server first. Their owner calls `refresh` after changes.

    A server that cannot run gets none. `may_wait`: where runs are so short that a slot would be idle while the next
    prediction is claimed, a few permits are given ahead. They wait for the next slots of their server.
    """

    def __init__(self, servers: list[Server], now: Callable[[], float]) -> None:
        self.may_wait = True
        self._servers = servers
        self._now = now
        self._changed = asyncio.Event()
        self._alone: Permit | None = None
        self._line: list[Permit] = []  # of the server that `_alone` has reserved: each is the next
        self._alone_left_s = MOST_ALONE_S
        self._alone_changed_at = now()

    @property
    def busy(self) -> int:
        return sum(server.busy for server in self._servers)

    def take_batches(self) -> bool:
        return any(server.places for server in self._servers)

    async def wait(self, most: float = math.inf, *, ahead: bool = False) -> list[Permit]:
        """Wait for a free permit, and return those that are free, about `most`. `ahead`: if these are fewer, also those
        that may wait for a slot.
        """
        while True:
            permits = self.take(most)
            if ahead and self.may_wait and len(permits) < most:
                permits += self.take_ahead()
            if permits:
                return permits
            await self.wait_for_change()

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
                server.waiting.append(Permit(server, server.since, slot=asyncio.Event()))
                permits.append(server.waiting[-1])
        return permits

    async def wait_for_slot(self, permit: Permit) -> bool:
        """Wait until the permit has a slot. False after 0.5 s: runs on that server are not short any more."""
        if permit.slot is not None:
            try:
                async with asyncio.timeout(SLOT_WITHIN_S):
                    await permit.slot.wait()
            except TimeoutError:
                permit.server.run_s = max(SHORT_S, permit.server.run_s)
                return False
        return True

    async def be_alone(self, permit: Permit) -> bool:
        """Reserve the permit's server for its run, and wait until each other run there has ended or has lasted for five
        usual runs, from 5 to 30 s: such a one may hang. The reservation ends with the permit, or five usual runs later,
        after 5 to 60 s. One whose server is reserved waits in line: its slot is of no use to others meanwhile. False if
        another server of this pool is reserved, or the pool has had too many reservations recently: poison must not
        idle the pool. False too if the server dies before its turn.
        """
        server = permit.server
        if permit.place is not None or server.slots == 1:
            return True
        if self._alone is None:
            if not self._may_reserve():
                return False
            self._alone, server.is_reserved = permit, True
        elif self._alone.server is not server or not await self._wait_in_line(permit):
            return False
        now, usual_s = self._now(), max(LEAST_ALONE_S, ALONE_RUNS * server.run_s)
        is_begun = server.busy == server.running + 1 + len(self._line)  # else other permits are about to begin
        begun_at = server.begun_at if is_begun else now
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(begun_at + min(ALONE_WAIT_S, usual_s) - now):
                while server.busy > 1 + len(self._line):
                    await self.wait_for_change()
        asyncio.get_running_loop().call_later(min(ALONE_RUN_S, usual_s), self._end_alone, permit)
        return True

    def _may_reserve(self) -> bool:
        """Note the time since the last change, and return whether reservations have any left."""
        now = self._now()
        spent_s = now - self._alone_changed_at
        self._alone_left_s = min(MOST_ALONE_S, self._alone_left_s + (-spent_s if self._alone else spent_s))
        self._alone_changed_at = now
        return self._alone_left_s > 0

    async def _wait_in_line(self, permit: Permit) -> bool:
        """Return whether its turn came."""
        self._line.append(permit)
        self._changed.set()  # one less to wait for
        try:
            while permit in self._line:
                await self.wait_for_change()
        finally:
            if permit in self._line:
                self._line.remove(permit)
        return self._alone is permit

    def _end_alone(self, permit: Permit) -> None:
        """End the reservation, or pass it on if the run is over. Else its line is sent away: the run may hang."""
        if self._alone is not permit:
            return
        server = permit.server
        if self._may_reserve() and self._line and not permit.taken and server.can_run:
            self._alone = self._line.pop(0)
        else:
            self._alone, server.is_reserved = None, False
            self._line.clear()
        self.refresh(server)

    def start(self, permit: Permit) -> None:
        permit.is_running = True
        permit.started_at = permit.server.begun_at = self._now()
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
        permit.server, permit.since, permit.place, permit.taken, permit.slot = there, there.since, None, True, None
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
        for permit in permits:
            if permit.release():
                permit.server.hand_on()
        if self._alone is not None and self._alone in permits:
            self._end_alone(self._alone)
        self._changed.set()

    def refresh(self, *servers: Server) -> None:
        for server in servers:
            server.hand_on()
        self._changed.set()

    async def wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Standing(Struct, frozen=True):
    """The readiness of all servers. `slots`: of those that can run, busy or free; each place of a batch counts."""

    slots: int
    state: Readiness
    swap: Swap | None = None


class Servers:
    """All servers, and the permits for their slots. `on_news` is called whenever a server's state may have changed."""

    def __init__(self, servers: list[Server], now: Callable[[], float] = time.monotonic) -> None:
        self.all = servers
        self.permits = Permits(servers, now)
        self.on_news: Callable[[], None] = lambda: None
        self._now = now
        self._away_at = now()
        self._back_at: float | None = None
        self._last_account = ""
        self._alone_since = -math.inf
        self._refusals = Refusals()

    def any_ready(self) -> bool:
        return any(server.can_run for server in self.all)

    @property
    def may_rest(self) -> bool:
        """Whether they are put to rest, and loaded when predictions come."""
        return any(server.gate.may_close for server in self.all)

    @property
    def is_serving(self) -> bool:
        return self.any_ready() or (self.may_rest and self.standing.state == "starting")

    @property
    def standing(self) -> Standing:
        """Return what they can do together. A state that needs the operator counts only if no other may recover."""
        if self.any_ready():
            return Standing(sum(server.usable * (server.places or 1) for server in self.all if server.can_run), "ready")
        statuses = {_prospect(server) for server in self.all}
        if HealthStatus.STARTING in statuses:
            return Standing(0, "starting", next((server.gate.swap for server in self.all if server.gate.swap), None))
        if any(server.is_locked for server in self.all):
            return Standing(0, SERVER_AUTH)
        return Standing(0, "setup_failed" if HealthStatus.SETUP_FAILED in statuses else "starting")

    def setup_wait_s(self, waited_s: float) -> float:
        now = self._now()
        back_at = now if self._back_at is None else self._back_at
        return max(0.0, min(waited_s - (now - back_at), back_at - self._away_at))

    def add(self, server: Server) -> None:
        self.all.append(server)
        self._refresh()

    def remove(self, server: Server) -> None:
        self.all.remove(server)
        self._refresh()

    def resize(self, server: Server, slots: int) -> None:
        if server.slots != slots:
            server.slots, server.fewer, server.full_at = slots, None, None
            self._refresh()

    def set_gate(self, server: Server, state: GateState) -> None:
        gate = server.gate
        gate.state = state
        if state in ("loading", "at_rest"):
            gate.changes += 1
            server.health = UNSEEN
            self.end_doubt(server)
        if state == "at_rest":
            gate.watched.clear()
        else:
            gate.watched.set()
        self._refresh()

    def expect(self, server: Server, swap: Swap | None) -> None:
        """Note what predictions wait for while the gate is not open."""
        if server.gate.swap != swap:
            server.gate.swap = swap
            self.on_news()

    def saw(self, server: Server, health: Health) -> None:
        if server.gate.is_open:
            server.failed_starts = _count_failed_starts(server, health)
        server.health = health
        if health.can_run:
            server.setup_log = ""
        elif health.status is HealthStatus.SETUP_FAILED and health.setup is not None:
            server.setup_log = last_lines(health.setup.logs)
        self._refresh()

    def note_start(self, server: Server, since: str) -> None:
        """Take in a new start of the server: it has all its slots again, and is not in doubt."""
        server.since, server.fewer, server.room = since, None, None
        self.end_doubt(server)

    def doubt(self, permit: Permit, *, hangs: bool = True) -> None:
        """Give the permit's server no work, unless it was restarted since. The watch restarts it if it is not ready, or
        if it `hangs`: a run there does not stop.
        """
        if permit.since == permit.server.since:
            permit.server.hangs |= hangs
            self.distrust(permit.server)

    def distrust(self, server: Server) -> None:
        server.doubt.set()
        self.on_news()

    def acquit(self, server: Server) -> None:
        """End the doubt about a server that is alive after all."""
        self.end_doubt(server)
        server.trust.acquit()

    def end_doubt(self, server: Server) -> None:
        """End the doubt about a server that has started again. Runs that its death ended may still report it."""
        server.hangs = False
        server.doubt.clear()

    def judge_refusal(self, permit: Permit, ended: Ended, run: str) -> Ended:
        """Return the end with its `refusals`, if the server had room: nothing else of ours to do, or no more than it
        had when as many runs succeeded there at once. One that says that it is full may be so with the runs of others:
        then another run must have succeeded there since it last said so.
        """
        server = permit.server
        if ended.may_be_full:
            had_room, server.had_room = server.had_room, False
            if not had_room:
                return ended
        # the runs of a batch go one request after the other through one slot
        if server.running <= 1 or (permit.batch is not None and server.busy <= 1):
            return replace(ended, refusals=self._refusals.add(run))
        if permit.batch is not None:
            return ended
        if server.room is None:
            server.room = Room()
        return replace(ended, refusals=self._refusals.add(run)) if server.running <= server.room.most else ended

    def judge_end(self, permit: Permit, ended: Ended, *, unasked: bool, account: str = "") -> None:
        """Judge the server by the end of an account's run. `unasked`: the run was not asked to stop."""
        server, batch = permit.server, permit.batch
        if ended.server_is_dead and not (ended.has_no_slot and self._judge_full(permit)):
            self.doubt(permit, hangs=ended.hangs)
        if ended.goes_on is not None:
            self.permits.extend(server, ended.goes_on)
        # A prediction that is refused again says nothing new of the server
        counts = (
            unasked and ended.refusals <= 1 and (batch is None or ended.outcome not in batch.ends)
        )  # one request is one failure
        if batch is not None and unasked:
            batch.ends.add(ended.outcome)
        # A run that fails while the server rests began before: runs that fail together are one reason to rest
        counts = counts and (ended.outcome is Outcome.SUCCEEDED or not server.is_resting)
        suspect = self._unless_alone(account)
        if ended.outcome is Outcome.SUCCEEDED:
            server.had_room = True
            took_s = self._now() - permit.started_at
            if server.room is not None:
                server.room.add(permit.started_at, self._now())
            server.run_s = took_s if server.run_s == math.inf else server.run_s + (took_s - server.run_s) / 5
            for other in self.all:
                other.trust.went_well_elsewhere(suspect)
        if ended.is_locked:
            if not server.is_resting:
                self._lock(server, ended.error or "")
            return
        if not counts:
            return
        is_said = ended.outcome is Outcome.FAILED or ended.by_words
        rest_s = server.trust.note(
            ended.outcome,
            since=permit.since,
            is_dead=ended.server_is_dead,
            by_words=ended.by_words,
            may_be_full=ended.may_be_full and ended.may_be_input,
            account=account if is_said and not server.trust.counts_failed else suspect,
            error=ended.error or "",
        )
        if rest_s is None:
            return
        facts = {"server": server.runner.url, "failures": server.trust.failures, "rest_s": rest_s}
        log.warning("a model server keeps failing and gets no work for some time", extra=facts)
        server.refusal = ""
        self._rest(server, rest_s)

    def _judge_full(self, permit: Permit) -> bool:
        """Judge a server that is full although our count has a free slot. True if it need not be asked for that. If it
        is soon full again, it has fewer slots than configured, or has lost one, and gets fewer runs. With no other run
        of ours on it, each time is a reason to ask it: one that stays busy is restarted.
        """
        server = permit.server
        if permit.since != server.since or server.running < 2:
            return False
        if server.doubt.is_set():  # another run found the same
            return True
        is_again = server.full_at is not None and server.runs - server.full_at < SOON_AGAIN
        server.full_at = server.runs
        if not is_again:
            return False
        server.fewer = max(1, server.usable - 1)
        log.error(
            "DIRECTOR_CONCURRENT_PREDICTIONS is more than the model server has free slots",
            extra={"server": server.runner.url, "told": server.slots, "slots": server.fewer},
        )
        return True

    def _unless_alone(self, account: str) -> str:
        """Return the account, or '' if no other account had a run here for an hour: its failures then harm no other."""
        if account != self._last_account:
            self._alone_since = self._now() if self._last_account else -math.inf
            self._last_account = account
        return "" if self._now() - self._alone_since >= ALONE_S else account

    def _lock(self, server: Server, refusal: str) -> None:
        rest_s = server.trust.rest()
        facts = {"server": server.runner.url, "why": refusal, "code": SERVER_AUTH, "rest_s": rest_s}
        log.error("a model server does not let the director in and gets no work for some time", extra=facts)
        server.refusal = refusal
        self._rest(server, rest_s)

    def _rest(self, server: Server, seconds: float) -> None:
        server.is_resting = True
        asyncio.get_running_loop().call_later(seconds, self._end_rest, server)
        self.on_news()

    def _end_rest(self, server: Server) -> None:
        server.is_resting = False
        self.permits.refresh(server)
        self.on_news()

    def _refresh(self) -> None:
        if self.any_ready() != (self._back_at is not None):
            if self._back_at is None:
                self._back_at = self._now()
            else:
                self._away_at, self._back_at = self._now(), None
        self.permits.refresh(*self.all)
        self.on_news()


def last_lines(logs: str) -> str:
    """Return the end of a log, '' for a single line: the detail of the server's health has that one."""
    lines = logs[-LOG_CHARS:].rstrip().splitlines()[-LOG_LINES:]
    return "\n".join(line.rstrip() for line in lines) if len(lines) > 1 else ""


def _load(free: tuple[Server, int]) -> float:
    server, usable = free
    return server.busy / usable


def _count_failed_starts(server: Server, health: Health) -> int:
    """Count with this look at it. A start failed if its setup did, or if the server was gone before it could run."""
    before = server.health
    if health.can_run:
        return 0
    if health.status is HealthStatus.SETUP_FAILED:
        return server.failed_starts + (before.status is not health.status or before.since != health.since)
    was_starting = before.status is HealthStatus.STARTING and before is not UNSEEN
    return server.failed_starts + (was_starting and health.status is HealthStatus.UNREACHABLE)


def _prospect(server: Server) -> HealthStatus:
    status = server.health.status if server.gate.is_open else HealthStatus.STARTING
    is_loop = server.failed_starts >= LOOP and status in RETRIES
    return HealthStatus.SETUP_FAILED if is_loop else status
