"""Swap models on the devices of this machine: read what waits, ask the planner, and act through the host.

A swap costs no run and no attempt. The gate of a model is closed first, then its runs end, then it is put to rest, and
only when its memory is free does another model load. Its gate opens once its watch has seen that it can run.
"""

import asyncio
import contextlib
import logging
import math
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Literal, Protocol

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from director.broker.replies import Survey, Swap
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.devices import Device, Place
from director.core.errors import BackendUnavailable, UnknownQueue
from director.core.ids import QueueName
from director.core.pool_file import Hosted
from director.core.words import span
from director.gpus.host import CALL_LIMIT_S, END_LIMIT_S, Held, LoadFailed
from director.gpus.plan import Condition, Decision, Expected, Load, State, Waiting, charge, plan
from director.servers.gate import Gate
from director.servers.runners.runner import HealthStatus
from director.servers.servers import Server, Servers
from director.store.directors import ShelfFound, SwapFound

log = logging.getLogger(__name__)

TICK_S: Final = 0.5
GLANCE_S: Final = 0.05  # at what this process knows: Redis is asked when a model has become idle
LOOK_S: Final = 0.25
RECENT: Final = 5  # measured times: their median ignores one odd load
ARRIVALS_S: Final = 60.0
FIRST_RETRY_S: Final = 2.0
LONGEST_RETRY_S: Final = 300.0
LEAST_LIMIT_S: Final = 60.0  # a load may take this long, or ten times as long as usual
SLOWER: Final = 10
UNWELL_S: Final = 60.0  # a loaded server that can run nothing for this long is started again
STEADY_S: Final = 600.0  # a server that dies sooner than this, and has run nothing, failed to load in effect
SLACK: Final = 4  # times what a guard needs at most to end all processes
HOUR_S: Final = 3600.0
MOST_SWAPS: Final = 8  # that heartbeats carry
LATE: Final = 1.5  # times as long as likely, if no bound is known
AWAY_S: Final = 1.0
LONGEST_WHY: Final = 500
CHANGED: Final = 0.2  # of an estimate: a smaller change is no news


def make_closed_gate() -> Gate:
    """Return the gate of a server that this process starts when its model is loaded."""
    return Gate(state="at_rest", may_close=True)


SwapStep = Literal["loaded", "failed", "rested"]


class Directed(Protocol):
    """The director of one model, as far as a swap needs it.

    `queue`: None while it is not registered. `is_unknown`: nothing in Redis says which version the model has.
    """

    servers: Servers
    shelf: Callable[[], ShelfFound | None]

    @property
    def queue(self) -> QueueName | None: ...
    @property
    def also(self) -> Sequence[QueueName]: ...
    @property
    def is_unknown(self) -> bool: ...
    @property
    def longest_run_left_s(self) -> float: ...
    @property
    def running(self) -> Mapping[str, int]: ...


class Owner(Protocol):
    """The owner of the processes: see `director.gpus.host.Host`."""

    on_news: Callable[[], None]

    def find_held(self, model: str) -> Held: ...
    async def take_over(self) -> Mapping[str, Held]: ...
    async def load(self, model: str, place: Place) -> None: ...
    async def rest(self, model: str) -> None: ...


class Times:
    """A time that is expected until it was measured, then the median of the last few."""

    def __init__(self, expected_s: float) -> None:
        self._expected_s = expected_s
        self._measured: deque[float] = deque(maxlen=RECENT)

    def add(self, seconds: float) -> None:
        self._measured.append(seconds)

    @property
    def seconds(self) -> float:
        return median(self._measured) if self._measured else self._expected_s


class History:
    """The swaps of one model: the last few, all steps of the last hour, and how long loads and rests take."""

    def __init__(self, load_s: float) -> None:
        self.load_s = Times(load_s)
        self.rest_s = Times(1.0)
        self.swaps: deque[SwapFound] = deque(maxlen=MOST_SWAPS)
        self._steps: deque[tuple[float, SwapStep, float]] = deque()

    def add(self, now: float, what: SwapStep, seconds: float) -> None:
        self._steps.append((now, what, seconds))
        while now - self._steps[0][0] > HOUR_S:
            self._steps.popleft()

    def last_hour(self, now: float) -> list[tuple[SwapStep, float]]:
        return [(what, seconds) for at, what, seconds in self._steps if now - at <= HOUR_S]


@dataclass(eq=False)
class Bay:
    """One model and what is known of it. `place` is the memory that it takes from its load until it is at rest.

    `ends_since`: its runs have ended, and its server is being put to rest. `runs_before`: its runs up to its last load.
    """

    hosted: Hosted
    director: Directed
    since: float
    state: State = "absent"
    place: Place = field(default_factory=dict)
    failed: int = 0
    retry_at: float = -math.inf
    why: str = ""
    unwell_since: float | None = None
    ends_since: float | None = None
    runs_before: int = 0
    survey: Survey | None = None
    arrivals_per_s: float = 0.0
    expected: Expected | None = None

    def __post_init__(self) -> None:
        self.history = History(self.hosted.launch.load_s)

    @property
    def name(self) -> str:
        return self.hosted.model.name

    @property
    def servers(self) -> Servers:
        return self.director.servers

    @property
    def server(self) -> Server:
        return self.servers.all[0]

    @property
    def is_served(self) -> bool:
        """Whether its director has begun. One that cannot serve its model never does."""
        return bool(self.servers.all)

    @property
    def has_run(self) -> bool:
        """Whether anything ran since its last load."""
        return self.server.runs > self.runs_before

    def overdue_s(self, now: float) -> float:
        """Return how long its server has been there after it should have ended, or 0."""
        if self.ends_since is None:
            return 0.0
        launch = self.hosted.launch
        longest_s = launch.grace_s + SLACK * END_LIMIT_S + (CALL_LIMIT_S if launch.sleep else 0.0)
        return max(0.0, now - self.ends_since - longest_s)

    def become(self, state: State, now: float, place: Place | None = None) -> None:
        self.state, self.since = state, now
        self.place = place if place is not None else self.place

    def survey_came(self, survey: Survey | None, elapsed_s: float) -> None:
        if survey is not None and self.survey is not None and elapsed_s > 0:
            came = max(0, survey.accepted - self.survey.accepted) / elapsed_s
            self.arrivals_per_s += (came - self.arrivals_per_s) * (1 - math.exp(-elapsed_s / ARRIVALS_S))
        self.survey = survey

    def observe(self, now: float) -> Condition:
        survey = self.survey
        run_s = survey.run_s if survey and survey.run_s else 1.0
        waiting = [
            Waiting(
                account=line.account,
                lane=line.lane,
                count=line.count,
                oldest_s=line.oldest_s,
                work_s=line.count * run_s,
            )
            for line in (survey.lines if survey else ())
        ]
        if self.director.is_unknown:  # it makes room as one prediction would
            waiting = [Waiting(count=1, oldest_s=now - self.since, work_s=0.0)]
        return Condition(
            state=self.state,
            since_s=now - self.since,
            place=self.place,
            running=self.director.running,
            longest_run_left_s=self.director.longest_run_left_s,
            waiting=waiting,
            arrivals_per_s=self.arrivals_per_s,
            is_known=not self.director.is_unknown,
            order=survey.order if survey else "",
            retry_in_s=max(0.0, self.retry_at - now) if self.is_served else TICK_S,  # it has no gate yet
            load_s=self.history.load_s.seconds,
            rest_s=self.history.rest_s.seconds,
            run_s=run_s,
        )

    def swap(self, now: float) -> Swap:
        """Return what predictions of this model wait for while it is not loaded."""
        likely_s, slots = self.history.load_s.seconds, self.server.usable * (self.server.places or 1)
        if self.state == "loading":
            since_s = now - self.since
            return Swap(
                reason="loading",
                eta_s=max(0.0, likely_s - since_s),
                late_s=max(0.0, LATE * likely_s - since_s),
                slots=slots,
            )
        eta_s = self.expected.eta_s if self.expected else likely_s
        is_known = math.isfinite(eta_s)
        return Swap(
            reason="waiting_for_device",
            eta_s=eta_s if is_known else None,
            late_s=LATE * eta_s if is_known else None,
            slots=slots,
        )


class Garage:
    """`on_step` is called with the queue (or the model), what was done, and how many seconds it took."""

    def __init__(
        self,
        devices: Sequence[Device],
        bays: Sequence[tuple[Hosted, Directed]],
        host: Owner,
        scripts: Scripts,
        clock: Clock,
    ) -> None:
        now = clock.monotonic()
        self.devices = devices
        self.bays = {hosted.model.name: Bay(hosted, director, now) for hosted, director in bays}
        self.on_step: Callable[[str, SwapStep, float], None] = lambda model, what, seconds: None
        self._models = [hosted.model for hosted, _ in bays]
        self._host = host
        self._scripts = scripts
        self._clock = clock
        self._news = asyncio.Event()
        self._used_s: Mapping[str, float] = {}
        self._looked_at = now
        self._is_stopping = False
        self._adopted = set[str]()  # servers that a dead director left, until their director has begun
        self._rested: dict[str, Place] = {}  # since the last load on one of these devices
        self._room = {device.name: device.memory for device in devices}
        for bay in self.bays.values():
            bay.director.shelf = lambda bay=bay: self.shelf(bay)  # type: ignore[misc]
        host.on_news = self._news.set

    def stop(self) -> None:
        """Swap nothing more. What is loaded goes on."""
        self._is_stopping = True

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for name, held in (await self._host.take_over()).items():
                if name in self.bays and held.presence == "running":
                    self.bays[name].become("loading", self._clock.monotonic(), held.place)
                    self._adopted.add(name)
                elif name in self.bays and held.presence == "leaving":
                    self.bays[name].become("leaving", self._clock.monotonic(), held.place)
                    tasks.start_soon(self._rest, self.bays[name])
            is_away = False
            while True:
                try:
                    await self.run_once(tasks)
                    is_away = False
                except BackendUnavailable as exc:
                    if not is_away:
                        log.warning("swaps wait for redis", extra={"error": str(exc)})
                    is_away = True
                except Exception:  # a fault in one look must not leave every model as it is for ever
                    log.exception("deciding on swaps failed")
                await self._until_news()
                self._news.clear()

    async def _until_news(self) -> None:
        """Wait until something changes here, at most a tick. What comes to a queue is seen at the next tick."""
        busy = self._busy
        with anyio.move_on_after(TICK_S):
            while not self._news.is_set():
                with anyio.move_on_after(GLANCE_S):
                    await self._news.wait()
                if busy - self._busy:  # its turn may be over
                    return
                busy = self._busy

    @property
    def _busy(self) -> set[str]:
        return {name for name, bay in self.bays.items() if bay.is_served and bay.server.busy}

    async def run_once(self, tasks: TaskGroup) -> Decision:
        """Read what waits, decide, and begin the loads and rests that are due. They go on in `tasks`."""
        surveys = await asyncio.gather(*(self._survey(bay) for bay in self.bays.values()))
        now = self._clock.monotonic()
        elapsed_s, self._looked_at = now - self._looked_at, now
        for bay, survey in zip(self.bays.values(), surveys, strict=True):
            bay.survey_came(survey, elapsed_s)
            self._look_after(tasks, bay, now)
        seen = {name: bay.observe(now) for name, bay in self.bays.items()}
        self._used_s = charge(self._used_s, self.devices, seen, elapsed_s=elapsed_s)
        decision = plan(self.devices, self._models, seen, self._used_s)
        if not self._is_stopping:
            for name in decision.rest:
                self.bays[name].failed = 0  # it has served
                self._end(tasks, self.bays[name])
            if decision.load is not None and self._may_load(decision.load):
                self._begin(tasks, self.bays[decision.load.model], decision.load.place)
        for name, bay in self.bays.items():
            bay.expected = decision.expected.get(name)
            self._tell(bay)
        await asyncio.gather(*map(self._end_order, self.bays.values()))
        return decision

    async def _end_order(self, bay: Bay) -> None:
        """Take back an order to load a model that is loaded: else it would be loaded again after its next rest."""
        queue, survey = bay.director.queue, bay.survey
        if queue is not None and survey is not None and survey.order == "load" and bay.state == "loaded":
            with contextlib.suppress(UnknownQueue):
                await self._scripts.order(queue, "", was="load")

    async def _survey(self, bay: Bay) -> Survey | None:
        """Return what waits in the queue of the model, and in those of older versions that its server runs too."""
        if bay.director.queue is None or not bay.is_served:
            return None
        queues = (bay.director.queue, *bay.director.also)
        found = await asyncio.gather(*map(self._scripts.survey, queues), return_exceptions=True)
        known = [survey for survey in found if isinstance(survey, Survey)]
        for fault in found:
            if isinstance(fault, BaseException) and not isinstance(fault, UnknownQueue):
                raise fault
        if not known or isinstance(found[0], UnknownQueue):
            return None
        lines = tuple(line for survey in known for line in survey.lines)
        return replace(known[0], lines=lines, accepted=sum(survey.accepted for survey in known))

    def _look_after(self, tasks: TaskGroup, bay: Bay, now: float) -> None:
        """Put a loaded server to rest that has died, or can run nothing and would not mend itself."""
        if bay.name in self._adopted and bay.is_served:
            self._adopted.remove(bay.name)
            self._begin(tasks, bay, bay.place)
        elif bay.name in self._adopted and now - bay.since >= UNWELL_S:  # others may wait for its room
            self._adopted.remove(bay.name)
            tasks.start_soon(self._rest, bay)
        if bay.state != "loaded":
            return
        held = self._host.find_held(bay.name)
        if held.presence != "running":
            # A run that ends its server must not hold the model away from other accounts: what one account sends may do
            # so again and again, and each time its prediction spends an attempt
            is_again = now - bay.since < STEADY_S and not bay.has_run
            self._note_failure(bay, held.ended or "its server is gone", is_again=is_again)
            self._end(tasks, bay)
            return
        if bay.server.health.can_run and not bay.server.doubt.is_set():
            bay.unwell_since = None
        elif bay.unwell_since is None:
            bay.unwell_since = now
        elif now - bay.unwell_since >= UNWELL_S and not bay.server.busy:
            log.warning("a model server is unwell and is started again", extra={"model": bay.name})
            self._end(tasks, bay)

    def _may_load(self, load: Load) -> bool:
        """Return whether it fits beside all that has memory, and none loads there. The planner says so too."""
        if any(bay.state == "loading" and bay.place.keys() & load.place.keys() for bay in self.bays.values()):
            return False
        memory = self.memory
        return all(taken + load.place.get(device, 0) <= size for device, (taken, size) in memory.items())

    def _begin(self, tasks: TaskGroup, bay: Bay, place: Place) -> None:
        bay.become("loading", self._clock.monotonic(), place)
        tasks.start_soon(self._load, bay)

    def _end(self, tasks: TaskGroup, bay: Bay) -> None:
        if bay.state == "loaded":
            bay.become("leaving", self._clock.monotonic())
            tasks.start_soon(self._rest, bay)

    async def _load(self, bay: Bay) -> None:
        began_ms, room_of = self._clock.now_ms(), set(bay.place)
        is_adopted = self._host.find_held(bay.name).presence == "running"
        self._rested.pop(bay.name, None)
        instead_of = tuple(name for name, place in self._rested.items() if room_of & place.keys())
        for name in instead_of:
            del self._rested[name]
        bay.servers.set_gate(bay.server, "loading")
        self._tell(bay)
        log.info("loading a model", extra={"model": bay.name, "adopted": is_adopted, "instead_of": instead_of})
        why = ""
        try:
            await self._host.load(bay.name, bay.place)
            await self._ready(bay)
        except LoadFailed as exc:
            why = str(exc)
        except Exception as exc:
            log.exception("loading a model broke", extra={"model": bay.name})
            why = f"{type(exc).__name__}: {exc}"
        took_s = self._clock.monotonic() - bay.since
        bay.history.swaps.append(SwapFound(began_ms, None if why else self._clock.now_ms(), instead_of))
        self._note_step(bay, "failed" if why else "loaded", took_s)
        if why:
            self._note_failure(bay, why, is_again=True)
            await self._rest(bay)
            return
        if not is_adopted:
            bay.history.load_s.add(took_s)
        bay.server.failed_starts, bay.unwell_since = 0, None
        bay.runs_before = bay.server.runs
        bay.become("loaded", self._clock.monotonic())
        bay.servers.expect(bay.server, None)
        bay.servers.set_gate(bay.server, "open")
        log.info("a model is loaded", extra={"model": bay.name, "took_s": round(took_s, 3)})
        self._news.set()

    async def _ready(self, bay: Bay) -> None:
        """Wait until its watch has seen that it can run. Raises LoadFailed."""
        limit_s = max(LEAST_LIMIT_S, SLOWER * bay.history.load_s.seconds)
        server = bay.server
        while not server.health.can_run:
            held = self._host.find_held(bay.name)
            if held.presence != "running":
                raise LoadFailed(held.ended or "its server ended while it was loading")
            if server.health.status is HealthStatus.SETUP_FAILED:
                raise LoadFailed(f"its setup failed: {server.health.detail}")
            if self._clock.monotonic() - bay.since > limit_s:
                raise LoadFailed(f"it could not run anything after {limit_s:.0f} s: {server.health.detail}")
            with anyio.move_on_after(LOOK_S):
                await bay.servers.permits.wait_for_change()

    async def _rest(self, bay: Bay) -> None:
        """Let its runs end, put it to rest, and wait until its memory is free."""
        bay.become("leaving", bay.since if bay.state == "leaving" else self._clock.monotonic())
        if bay.is_served:
            await self._drain(bay)
        bay.ends_since = began = self._clock.monotonic()
        while True:
            try:
                await self._host.rest(bay.name)
                break
            except Exception:  # its memory is not free, so nothing may load in its place
                log.exception("putting a model to rest failed", extra={"model": bay.name})
                await self._clock.sleep(AWAY_S)
        took_s = self._clock.monotonic() - began
        bay.ends_since = None
        bay.history.rest_s.add(took_s)
        self._note_step(bay, "rested", took_s)
        self._rested[bay.name] = bay.place
        bay.become("absent", self._clock.monotonic(), {})
        self._tell(bay)
        log.info("a model is at rest", extra={"model": bay.name, "took_s": round(took_s, 3)})
        self._news.set()

    async def _drain(self, bay: Bay) -> None:
        bay.servers.set_gate(bay.server, "draining")
        while not bay.server.is_drained:
            with anyio.move_on_after(LOOK_S):
                await bay.servers.permits.wait_for_change()
        bay.servers.set_gate(bay.server, "at_rest")

    def _note_failure(self, bay: Bay, why: str, *, is_again: bool) -> None:
        bay.failed = bay.failed + 1 if is_again else 1
        retry_s = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(bay.failed - 1, 10))
        bay.why, bay.retry_at = why, self._clock.monotonic() + retry_s
        bay.server.failed_starts = bay.failed
        log.error("a model could not be loaded", extra={"model": bay.name, "why": why, "retry_s": retry_s})

    def _note_step(self, bay: Bay, what: SwapStep, seconds: float) -> None:
        bay.history.add(self._clock.monotonic(), what, seconds)
        self.on_step(bay.director.queue or bay.name, what, seconds)

    @property
    def memory(self) -> Mapping[str, tuple[int, int]]:
        """Return the bytes of each device that are taken, and all of them."""
        places = [bay.place for bay in self.bays.values()]
        return {name: (sum(place.get(name, 0) for place in places), size) for name, size in self._room.items()}

    def _tell(self, bay: Bay) -> None:
        """Pass on what predictions of a model that is not loaded wait for. A small change is no news."""
        if bay.state == "loaded" or not bay.is_served:
            return
        former, swap = bay.server.gate.swap, bay.swap(self._clock.monotonic())
        if former is None or _differs(former, swap):
            bay.servers.expect(bay.server, swap)

    def shelf(self, bay: Bay) -> ShelfFound:
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        steps = bay.history.last_hour(now)
        expected, place = bay.expected, bay.place or bay.hosted.model.places[0]
        has_failed = bay.failed > 0 and bay.state != "loaded"
        return ShelfFound(
            machine=socket.gethostname(),
            state=bay.state,
            since_ms=now_ms - round((now - bay.since) * 1000),
            place=place,
            room={name: self._room[name] for name in place},
            order=bay.survey.order if bay.survey else "",
            loads=sum(what != "rested" for what, _ in steps),
            lost_s=sum(seconds for _, seconds in steps),
            failed=bay.failed if has_failed else 0,
            why=(bay.why if has_failed else _explain(expected))[-LONGEST_WHY:],  # last words are at the end
            is_stuck=expected is not None and expected.is_stuck,
            overdue_s=bay.overdue_s(now),
            behind=expected.behind if expected else (),
            swaps=tuple(bay.history.swaps),
        )


def _explain(expected: Expected | None) -> str:
    """Say why a model is not loaded, and how soon its load begins at the latest."""
    if expected is None or not 0 < expected.bound_s < math.inf:
        return expected.why if expected else ""
    return f"{expected.why} It begins to load within {span(expected.bound_s)}."


def _differs(former: Swap, found: Swap) -> bool:
    if former.reason != found.reason or former.eta_s is None or found.eta_s is None:
        return (former.reason, former.eta_s) != (found.reason, found.eta_s)
    return abs(found.eta_s - former.eta_s) > max(1.0, CHANGED * former.eta_s)
