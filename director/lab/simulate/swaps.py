"""Play the traffic of several models that share devices: Director's planner decides which are loaded, or a simple rule
to compare with. The clock is virtual, and no server is needed: within a queue, the first that came is the next.
"""

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Final

import msgspec
from msgspec import Struct

from director.core.devices import Device, Model, Place
from director.core.ids import LANES
from director.gpus.plan import Condition, Decision, Load, State, Waiting, charge, plan
from director.lab.simulate.trace import Trace

TICK_S: Final = 1.0  # the planner is asked as often while something waits
RATE_OVER_S: Final = 120.0  # arrivals of about the last two minutes give the rate
LEARN: Final = 0.2  # how much of a measured run time is taken over
MOST_EVENTS_EACH: Final = 1000  # of a prediction; a rule that never ends a play is an error


class Timed(Struct, frozen=True, kw_only=True):
    """A model, how long it takes to load, and how long to put it to rest once its runs have ended."""

    model: Model
    load_s: float = 60.0
    rest_s: float = 1.0


class Standing(Struct, kw_only=True):
    """One model during a play. `waiting` has the numbers of predictions, `running` those and the start of each."""

    timed: Timed
    state: State = "absent"
    since_s: float = 0.0
    place: Place = {}
    waiting: deque[int] = msgspec.field(default_factory=deque)
    running: dict[int, float] = msgspec.field(default_factory=dict)
    used_at_s: float = -math.inf
    run_s: float = 1.0
    rate: float = 0.0
    rated_at_s: float = 0.0
    due_s: float = math.inf

    @property
    def name(self) -> str:
        return self.timed.model.name

    def rate_at(self, now_s: float) -> float:
        return self.rate * math.exp((self.rated_at_s - now_s) / RATE_OVER_S)

    def becomes(self, state: State, now_s: float) -> None:
        self.state, self.since_s = state, now_s


class Swaps(Struct, kw_only=True):
    """The result of one play. `started_s`: of each prediction. `loading_s`, `leaving_s`: summed over the loads.

    `late_s`: by how much a load began after its bound at most. `longest_s`: by model, its longest wait for a load.
    """

    rule: str
    started_s: list[float]
    ended_s: float = 0.0
    loads: int = 0
    loading_s: float = 0.0
    leaving_s: float = 0.0
    late_s: float = 0.0
    longest_s: dict[str, float] = {}
    spans: list[tuple[str, State, float, float]] = []


class Play:
    """The models, the devices and what waits at one moment. A rule looks at it and decides."""

    def __init__(self, rule: str, devices: Sequence[Device], models: Sequence[Timed], trace: Trace) -> None:
        self.devices = devices
        self.trace = trace
        self.now_s = 0.0
        self.standings = {each.model.name: Standing(timed=each) for each in models}
        self.line: dict[int, Standing] = {}  # all that waits, in the order of arrival
        self.used_s: Mapping[str, float] = {}
        self.result = Swaps(rule=rule, started_s=[math.nan] * len(trace))
        self._decide, self._in_order = RULES[rule]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._ticks_at_s = -math.inf
        self._charged_s = 0.0

    def run(self) -> Swaps:
        for number, at_ms in enumerate(self.trace.at_ms):
            self._at(at_ms / 1000, lambda number=number: self._arrive(number))  # type: ignore[misc]
        for _ in range(MOST_EVENTS_EACH * (len(self.trace) + len(self.standings))):
            if not self._events:
                break
            at_s, _, event = heapq.heappop(self._events)
            self.now_s = at_s
            event()
            if not self._events or self._events[0][0] > at_s:
                self._settle()
        for one in self.standings.values():
            self._note(one)
        self.result.ended_s = self.now_s
        return self.result

    def _at(self, at_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), event))

    def _arrive(self, number: int) -> None:
        one = self.standings[self.trace.models[self.trace.model[number]]]
        one.rate = one.rate_at(self.now_s) + 1 / RATE_OVER_S
        one.rated_at_s = self.now_s
        one.waiting.append(number)
        self.line[number] = one

    def _settle(self) -> None:
        """Start what can start, and ask the rule until it changes nothing more at this moment."""
        self.used_s = charge(self.used_s, self.devices, self.survey(), elapsed_s=self.now_s - self._charged_s)
        self._charged_s = self.now_s
        while True:
            self._start()
            decision = self._decide(self)
            for name, expected in decision.expected.items():
                one = self.standings[name]
                if one.state in ("absent", "leaving"):
                    one.due_s = min(one.due_s, self.now_s + expected.bound_s)
            for name in decision.rest:
                self._rest(self.standings[name])
            if decision.load is not None:
                self._load(self.standings[decision.load.model], decision.load.place)
            elif not decision.rest:
                break
        waits = any(one.waiting and one.state == "absent" for one in self.standings.values())
        if waits and self._ticks_at_s <= self.now_s:
            self._ticks_at_s = self.now_s + TICK_S
            self._at(self._ticks_at_s, lambda: None)

    def _start(self) -> None:
        for number, one in list(self.line.items()):
            if one.state == "loaded" and len(one.running) < one.timed.model.slots:
                del self.line[number]
                one.waiting.remove(number)
                one.running[number] = self.now_s
                one.used_at_s = self.now_s
                self.result.started_s[number] = self.now_s
                run_s = self.trace.run_ms[number] / 1000
                self._at(self.now_s + run_s, lambda number=number, one=one: self._end(number, one))  # type: ignore[misc]
            elif self._in_order:
                break

    def _end(self, number: int, one: Standing) -> None:
        took_s = self.now_s - one.running.pop(number)
        one.run_s += LEARN * (took_s - one.run_s)
        if one.state == "leaving" and not one.running:
            self._at(self.now_s + one.timed.rest_s, lambda: self._end_rest(one))

    def _rest(self, one: Standing) -> None:
        self._note(one)
        one.becomes("leaving", self.now_s)
        if not one.running:
            self._at(self.now_s + one.timed.rest_s, lambda: self._end_rest(one))

    def _end_rest(self, one: Standing) -> None:
        self._note(one)
        self.result.leaving_s += self.now_s - one.since_s
        one.place = {}
        one.becomes("absent", self.now_s)

    def _load(self, one: Standing, place: Place) -> None:
        waited_s = self.now_s - self._find_wanted_since(one)
        self.result.longest_s[one.name] = max(waited_s, self.result.longest_s.get(one.name, 0.0))
        self.result.late_s = max(self.result.late_s, self.now_s - one.due_s)
        self.result.loads += 1
        self.result.loading_s += one.timed.load_s
        one.due_s, one.place = math.inf, place
        one.becomes("loading", self.now_s)
        self._at(self.now_s + one.timed.load_s, lambda: self._end_load(one))

    def _end_load(self, one: Standing) -> None:
        self._note(one)
        one.becomes("loaded", self.now_s)
        one.used_at_s = self.now_s

    def _find_wanted_since(self, one: Standing) -> float:
        came_s = self.trace.at_ms[one.waiting[0]] / 1000 if one.waiting else self.now_s
        return max(came_s, one.since_s)

    def _note(self, one: Standing) -> None:
        self.result.spans.append((one.name, one.state, one.since_s, self.now_s))

    def survey(self) -> dict[str, Condition]:
        return {name: self._survey(one) for name, one in self.standings.items()}

    def _survey(self, one: Standing) -> Condition:
        trace = self.trace
        limit_s = one.timed.model.run_limit_s
        return Condition(
            state=one.state,
            since_s=self.now_s - one.since_s,
            place=one.place,
            running=Counter(trace.accounts[trace.account[number]] for number in one.running),
            longest_run_left_s=max((start + limit_s - self.now_s for start in one.running.values()), default=0.0),
            waiting=self._waiting(one),
            arrivals_per_s=one.rate_at(self.now_s),
            load_s=one.timed.load_s,
            rest_s=one.timed.rest_s,
            run_s=one.run_s,
        )

    def _waiting(self, one: Standing) -> list[Waiting]:
        trace = self.trace
        found = dict[tuple[int, int], list[int]]()
        for number in one.waiting:
            found.setdefault((trace.account[number], trace.lane[number]), []).append(number)
        return [
            Waiting(
                account=trace.accounts[account],
                lane=LANES[lane],
                count=len(numbers),
                oldest_s=self.now_s - trace.at_ms[numbers[0]] / 1000,
                work_s=len(numbers) * one.run_s,
            )
            for (account, lane), numbers in found.items()
        ]


def _by_planner(play: Play) -> Decision:
    models = [one.timed.model for one in play.standings.values()]
    return plan(play.devices, models, play.survey(), play.used_s)


def _first_come(play: Play) -> Decision:
    """Load the model of the prediction that came first. Nothing that came later may start before it."""
    return _make_room(play, list(play.line.values())[:1], play.standings.values())


def _least_recently_used(play: Play) -> Decision:
    """Load each model for which something waits, in place of the one whose last run began first."""
    return _make_room(play, play.line.values(), play.standings.values())


def _collate(play: Play) -> Decision:
    """Run all that waits for a loaded model before it makes room. The model that waits longest is next."""
    return _make_room(play, play.line.values(), [one for one in play.standings.values() if not one.waiting])


def _make_room(play: Play, line: Iterable[Standing], movable: Iterable[Standing]) -> Decision:
    """Load the first model of the line that can be loaded, or put others to rest until there is room."""
    free = Counter({device.name: device.memory for device in play.devices})
    changing = set[str]()
    for one in play.standings.values():
        free.subtract(one.place)
        if one.state in ("loading", "leaving"):
            changing.update(one.place)
    kept = [one for one in play.standings.values() if one.timed.model.keep]
    loaded = [one for one in movable if one.state == "loaded" and not one.timed.model.keep]
    loaded.sort(key=lambda one: one.used_at_s)
    for one in {one.name: one for one in [*kept, *line] if one.state == "absent"}.values():
        for place in one.timed.model.places:
            if changing & place.keys():
                continue
            room, rest = free.copy(), list[Standing]()
            for other in loaded:
                if not _fits(place, room) and other.place.keys() & place.keys():
                    room.update(other.place)
                    rest.append(other)
            if _fits(place, room):
                load = None if rest else Load(one.name, place)
                return Decision(load=load, rest=tuple(other.name for other in rest))
    return Decision()


def _fits(place: Place, room: Mapping[str, int]) -> bool:
    return all(need <= room[device] for device, need in place.items())


RULES: Final[Mapping[str, tuple[Callable[[Play], Decision], bool]]] = {
    "director": (_by_planner, False),
    "fcfs": (_first_come, True),
    "lru": (_least_recently_used, False),
    "collation": (_collate, False),
}
