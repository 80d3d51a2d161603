"""Decide which models are loaded, from what waits for each of them. Pure: no I/O and no clock.

`plan` is called again whenever something changes, and at least once a second while something waits. It keeps no state:
everything that it must know is in its arguments.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Literal

from msgspec import Struct

from director.core.devices import Device, Model, Place
from director.core.policy import Lane
from director.core.words import span

State = Literal["absent", "loading", "loaded", "leaving"]
"""`leaving`: it takes no new run, its runs end, then it is put to rest. It is `absent` once its memory is free."""
Order = Literal["", "load", "rest", "pin"]
"""An operator's order. `load` is over once the model is loaded. `rest` and `pin` hold until they are taken back."""


class Waiting(Struct, frozen=True, kw_only=True):
    """The predictions of one account in one lane that wait for a model. `oldest_s`: the age of the oldest.

    `work_s`: how long their runs take together, as expected. `account` may be empty: unknown, or many small ones.
    """

    account: str = ""
    lane: Lane = "normal"
    count: int
    oldest_s: float
    work_s: float


class Condition(Struct, frozen=True, kw_only=True):
    """How one model stands now.

    `since_s`: how long it has been in this state. `place`: the bytes that it takes now on each device, from the start
    of its load until its memory is free again. `running`: its runs by account. `load_s`, `rest_s` and `run_s` are
    measured. `retry_in_s`: more than 0 after a load failed, until it may be tried again.
    """

    state: State = "absent"
    since_s: float = 0.0
    place: Place = {}
    running: Mapping[str, int] = {}
    longest_run_left_s: float = 0.0
    waiting: Sequence[Waiting] = ()
    arrivals_per_s: float = 0.0
    is_known: bool = True
    """False if no schema and version of it are known yet: it is loaded once to learn them."""
    order: Order = ""
    retry_in_s: float = 0.0
    load_s: float = 60.0
    rest_s: float = 1.0
    run_s: float = 1.0


class Load(Struct, frozen=True):
    model: str
    place: Place


class Expected(Struct, frozen=True, kw_only=True):
    """Say what a model that waits can expect.

    `bound_s`: the longest time from now until its load begins. It holds unless an operator gives an order, a load fails
    or a load takes longer than was measured. `eta_s`: the likely time from now until it is loaded. `behind`: the models
    that go before it or are in its way. `why`: why it is not loaded now, in words for an operator. `is_stuck`: it will
    not load before an operator acts or a failed load is tried again; then both times are infinite.
    """

    bound_s: float
    eta_s: float
    behind: tuple[str, ...] = ()
    why: str = ""
    is_stuck: bool = False


class Decision(Struct, frozen=True, kw_only=True):
    """Put `rest` to rest now and begin `load` now; their rooms do not depend on each other. `expected`: every model
    that waits and is not loaded.
    """

    load: Load | None = None
    rest: tuple[str, ...] = ()
    expected: Mapping[str, Expected] = {}


# Lanes are served 8 : 3 : 1, so this is how much one prediction of a lane counts
COUNTS: Final[Mapping[Lane, float]] = {"high": 8 / 3, "normal": 1.0, "low": 1 / 3}
# An account is far behind another by the time of so many swaps: else two accounts would spend most of it on swaps
FAR_BEHIND: Final = 3.0
# Device time is forgotten with this time constant: what an account used an hour ago does not count any more
MEMORY_S: Final = 600.0


def plan(
    devices: Sequence[Device],
    models: Sequence[Model],
    seen: Mapping[str, Condition],
    used_s: Mapping[str, float] = {},
) -> Decision:
    """Return what to do now. `used_s`: the device seconds of each account in the recent past (see `charge`)."""
    return _Plan(devices, models, seen, used_s).decision()


def charge(
    used_s: Mapping[str, float],
    devices: Sequence[Device],
    seen: Mapping[str, Condition],
    *,
    elapsed_s: float,
    weights: Mapping[str, float] = {},
) -> dict[str, float]:
    """Return the device seconds of each account after `elapsed_s` more, each divided by its weight.

    Accounts that run pay for the devices of their model. Those that wait for it pay for its load. Those that wait for
    any model that is not loaded pay for a device while its memory is being freed. Idle models cost no account anything.
    """
    memory = {device.name: device.memory for device in devices}
    kept = math.exp(-elapsed_s / MEMORY_S)
    used = {account: before * kept for account, before in used_s.items() if before * kept > 0.001}
    absent = [one for one in seen.values() if one.state == "absent"]
    for one in seen.values():
        if one.running:
            payers = Counter(one.running)
        elif one.state == "loading":
            payers = _waiting_by_account([one])
        elif one.state == "leaving":
            payers = _waiting_by_account(absent)
        else:
            continue
        part = elapsed_s * sum(taken / memory[name] for name, taken in one.place.items()) / max(1, payers.total())
        for account, count in payers.items():
            used[account] = used.get(account, 0.0) + part * count / weights.get(account, 1.0)
    return used


def _waiting_by_account(some: Iterable[Condition]) -> Counter[str]:
    found = Counter[str]()
    for one in some:
        for each in one.waiting:
            found[each.account] += each.count
    return found


class _Standing(Struct, kw_only=True):
    """One model while a decision is made. `state` and `place` are as the decision leaves them."""

    model: Model
    seen: Condition
    used_s: Mapping[str, float]
    state: State
    place: Place

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def is_ordered(self) -> bool:
        return self.seen.order != "rest" and (self.model.keep or self.seen.order in ("load", "pin"))

    @property
    def is_held(self) -> bool:
        """Whether it may not make room for others. A pinned model that is not loaded yet has no room to hold."""
        is_pinned = self.seen.order == "pin" and self.seen.state != "absent"
        return self.seen.order != "rest" and (self.model.keep or is_pinned)

    @property
    def left_s(self) -> float:
        """The time until it is urgent: then any model that need not stay makes room for it. Its wait begins again when
        it was loaded, so a model that had its turn goes behind those that still wait.
        """
        if self.state == "leaving":
            return self.seen.longest_run_left_s + self.seen.rest_s + self.model.max_wait_s
        if self.is_ordered:
            return -math.inf
        oldest_s = max((each.oldest_s for each in self.seen.waiting), default=self.seen.since_s)
        return self.model.max_wait_s - min(self.seen.since_s, oldest_s)

    @property
    def is_urgent(self) -> bool:
        return self.left_s <= 0

    @property
    def is_wanted(self) -> bool:
        return bool(self.seen.waiting) or self.is_ordered or not self.seen.is_known

    @property
    def urgent_in_s(self) -> float:
        """The least time until it can be urgent. The wait of any model that is not in the line may begin now."""
        return self.left_s if self.state == "absent" and self.is_wanted else self.model.max_wait_s

    @property
    def turn(self) -> tuple[Any, ...]:
        """The order of the line: what an operator wants, what is overdue, then the rest by age. In the rest, a second
        of device time that its least served account used counts as much as coming a second later.
        """
        return (not self.is_urgent, self.left_s + (0.0 if self.is_urgent else self.least_used_s), self.name)

    @property
    def least_used_s(self) -> float:
        """The device time of the least served account that runs here or waits for it."""
        accounts = {each.account for each in self.seen.waiting} | self.seen.running.keys()
        return min((self.used_s.get(account, 0.0) for account in accounts), default=math.inf)

    @property
    def counts(self) -> float:
        return self.model.weight * sum(each.count * COUNTS[each.lane] for each in self.seen.waiting)

    @property
    def work_s(self) -> float:
        """The time in which it can run what waits for it."""
        return sum(each.work_s for each in self.seen.waiting) / self.model.slots

    @property
    def stays_s(self) -> float:
        """How long it stays loaded at least. Without a setting: as long as it loads, or loading would not pay."""
        return self.seen.load_s if self.model.min_loaded_s is None else self.model.min_loaded_s

    @property
    def stays_left_s(self) -> float:
        """The time until it may make room. An idle model may at once, unless a setting says how long it stays: to keep
        it for as long as it loads made the p95 wait 3 % longer (28 plays of ten models on room for three).
        """
        if self.model.min_loaded_s is None and not self.seen.waiting:
            return 0.0
        return max(0.0, self.stays_s - self.seen.since_s)

    @property
    def change_s(self) -> float:
        """The likely time until it is loaded if it is loading, else until its memory can be free."""
        if self.state == "loading":
            return max(0.0, self.seen.load_s - (self.seen.since_s if self.seen.state == "loading" else 0.0))
        return self.seen.rest_s + (min(self.seen.run_s, self.seen.longest_run_left_s) if self.seen.running else 0.0)


class _Way(Struct, frozen=True, kw_only=True):
    """How a model gets into one place. `in_s`: the likely time until it has its room there.

    An open way begins now: with a load, by putting `rest` to rest, or by waiting for what leaves already. `cost`: how
    long predictions wait because of it, all together.
    """

    place: Place
    is_open: bool
    loads_now: bool = False
    in_s: float = 0.0
    cost: float = 0.0
    rest: Sequence[_Standing] = ()
    behind: tuple[str, ...] = ()
    why: str


class _Plan:
    """Models that should be loaded are served in the order of the line. Each takes its room from what the ones before
    it have left.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        models: Sequence[Model],
        seen: Mapping[str, Condition],
        used_s: Mapping[str, float],
    ) -> None:
        self._memory = {device.name: device.memory for device in devices}
        self._all = {
            model.name: _Standing(model=model, seen=one, used_s=used_s, state=one.state, place=one.place)
            for model in models
            if (one := seen.get(model.name, Condition()))
        }
        self._free = Counter(self._memory)
        self._later = Counter(self._memory)  # once what leaves has left, and what was promised room is there
        for each in self._all.values():
            self._free.subtract(each.place)
            if each.state != "leaving":
                self._later.subtract(each.place)
        self._promised: dict[str, tuple[str, float]] = {}  # by device: the next model to load there, and in how long
        self._load: Load | None = None
        self._rest: list[str] = []
        self._expected: dict[str, Expected] = {}

    def decision(self) -> Decision:
        for each in self._all.values():
            if each.state == "loaded" and each.seen.order == "rest":
                self._put_to_rest(each)
        ahead = set[str]()
        for each in sorted(filter(self._may_load, self._all.values()), key=lambda each: each.turn):
            if each.state == "leaving":
                way = _Way(place=each.place, is_open=False, in_s=each.change_s, why="It makes room for another model.")
            else:
                way = self._serve(each)
            self._expected[each.name] = Expected(
                bound_s=self._bound_s(each, ahead), eta_s=way.in_s + each.seen.load_s, behind=way.behind, why=way.why
            )
            ahead.add(each.name)
        return Decision(load=self._load, rest=tuple(self._rest), expected=self._expected)

    def _may_load(self, each: _Standing) -> bool:
        """Tell whether a model should be loaded and can be. If it only should be, note why it is not."""
        if each.state == "loaded" or not each.is_wanted:
            return False
        if each.state == "loading":
            self._expected[each.name] = Expected(bound_s=0.0, eta_s=each.change_s, why="It is loading.")
        elif why := self._why_stuck(each):
            self._expected[each.name] = Expected(bound_s=math.inf, eta_s=math.inf, why=why, is_stuck=True)
        else:
            return True
        return False

    def _why_stuck(self, each: _Standing) -> str:
        if each.seen.order == "rest":
            return "An operator put it to rest."
        if each.seen.retry_in_s > 0:
            return f"Its last load failed. The next try is in {span(each.seen.retry_in_s)}."
        in_the_way = [self._find_held_beside(each, place) for place in each.model.places]
        if in_the_way and all(in_the_way):
            return f"It does not fit beside {_list_names(in_the_way[0])}: what is kept or pinned makes no room."
        return ""

    def _find_held_beside(self, wanted: _Standing, place: Place) -> list[str]:
        """Return the kept and pinned models on the devices of a place on which they leave too little room."""
        held = {each.name: each.place or each.model.places[0] for each in self._all.values() if each.is_held}
        held.pop(wanted.name, None)
        full = {
            device
            for device, need in place.items()
            if need + sum(taken.get(device, 0) for taken in held.values()) > self._memory[device]
        }
        return [name for name, taken in held.items() if full & taken.keys()]

    def _serve(self, wanted: _Standing) -> _Way:
        """Begin the way that costs the least. If none may begin and the model is urgent, keep its room for it."""
        places = [place for place in wanted.model.places if not self._find_held_beside(wanted, place)]
        ways = [self._way(wanted, place) for place in places]
        way = min(ways, key=lambda way: (not way.loads_now, not way.is_open, way.cost, way.in_s))
        for each in way.rest:
            self._put_to_rest(each)
        if way.is_open or wanted.is_urgent:
            self._later.subtract(way.place)
            self._promised |= dict.fromkeys(way.place, (wanted.name, way.in_s))
        if way.loads_now and self._load is None:
            self._load = Load(wanted.name, way.place)
            self._free.subtract(way.place)
            wanted.state, wanted.place = "loading", way.place
        return way

    def _way(self, wanted: _Standing, place: Place) -> _Way:
        """Find how the model gets into a place. A device changes for one model after the other."""
        fits_later = _fits(place, self._later)
        loading = {each.name: each.change_s for each in self._at(place, "loading")}
        ahead = dict(self._promised[device] for device in place if device in self._promised)
        # A model that fits beside those ahead goes first if it is loaded before they have their room
        may_overtake = all(wanted.seen.load_s <= in_s for in_s in ahead.values())
        if fits_later and _fits(place, self._free) and not loading and may_overtake:
            return _Way(place=place, is_open=True, loads_now=True, why="It begins to load.")
        if not (fits_later or loading or ahead):
            return self._way_of_others(wanted, place)
        leaving = {each.name: each.change_s for each in self._at(place, "leaving")}
        before = loading | leaving | {name: in_s + self._all[name].seen.load_s for name, in_s in ahead.items()}
        in_s = max(before.values())
        return _Way(
            place=place,
            is_open=fits_later,
            in_s=in_s,
            cost=in_s * wanted.counts,
            behind=tuple(before),
            why=f"It waits for {_list_names(before)}.",
        )

    def _way_of_others(self, wanted: _Standing, place: Place) -> _Way:
        """Find which loaded models make room: now if they may, else those that will have to."""
        movable = [each for each in self._at(place, "loaded") if not each.is_held]
        rest = self._cheapest(wanted, place, [each for each in movable if not each.stays_left_s])
        if rest and (wanted.is_urgent or _is_worth(wanted, rest)):
            return _Way(
                place=place,
                is_open=True,
                in_s=max(each.change_s for each in rest),
                cost=sum(_cost(wanted, each) for each in rest),
                rest=rest,
                behind=tuple(each.name for each in rest),
                why=f"It takes the place of {_list_names(each.name for each in rest)}.",
            )
        rest = rest or self._cheapest(wanted, place, movable)
        behind = tuple(each.name for each in rest)
        stays_s = max(each.stays_left_s for each in rest)
        in_s = max(stays_s, min(max(0.0, wanted.left_s), max(each.work_s for each in rest)))
        if stays_s:
            why = f"{_list_names(behind)} stays loaded for {span(stays_s)} more."
        else:
            why = f"{_list_names(behind)} is needed more, and makes room in {span(wanted.left_s)} at the latest."
        in_s += max(each.change_s for each in rest)
        return _Way(place=place, is_open=False, in_s=in_s, cost=in_s * wanted.counts, behind=behind, why=why)

    def _cheapest(self, wanted: _Standing, place: Place, movable: Iterable[_Standing]) -> Sequence[_Standing]:
        """Return the models whose rest makes enough room and costs the least. Empty if all of them are not enough."""
        room = Counter(self._later)
        chosen: list[_Standing] = []
        for each in sorted(movable, key=lambda each: (_cost(wanted, each), each.name)):
            if not _fits(place, room):
                chosen.append(each)
                room.update(each.place)
        if not _fits(place, room):
            return ()
        for each in reversed(chosen):  # a large one that came last may make the smaller ones needless
            room.subtract(each.place)
            if not _fits(place, room):
                room.update(each.place)
            else:
                chosen = [other for other in chosen if other is not each]
        return chosen

    def _bound_s(self, wanted: _Standing, ahead: AbstractSet[str]) -> float:
        """Return the longest time until the load of a model begins.

        Once it is urgent, only those ahead of it may load in its way. So it waits for one load in progress, for the
        time that models must stay, for their longest run and for their rest; and as much again for each one ahead.
        """
        left_s = max(0.0, wanted.left_s)
        rivals = self._rivals(wanted)
        if left_s > 0:
            sooner = [each for each in rivals if (each.urgent_in_s, each.name) < (left_s, wanted.name)]
            ahead = ahead | {each.name for each in sooner}
        else:
            rivals = [each for each in rivals if each.state != "absent" or each.name in ahead]
        before = [each for each in rivals if each.name in ahead]
        movable = [each for each in rivals if not each.is_held]
        turn_s = (
            max((each.seen.load_s for each in rivals), default=0.0)
            + max((each.stays_s for each in movable), default=0.0)
            + max((each.model.run_limit_s for each in movable), default=0.0)
            + max((each.seen.rest_s for each in movable), default=0.0)
        )
        return left_s + turn_s * (1 + len(before)) + sum(each.seen.load_s for each in before)

    def _rivals(self, wanted: _Standing) -> list[_Standing]:
        """Return the other models that share a device with this one, or with a model that does, and so on."""
        devices, known = set[str]().union(*wanted.model.places), -1
        rivals: list[_Standing] = []
        while known < len(devices):
            known = len(devices)
            rivals = [each for each in self._all.values() if any(devices & place.keys() for place in each.model.places)]
            devices.update(*(place for each in rivals for place in each.model.places))
        return [each for each in rivals if each is not wanted]

    def _put_to_rest(self, each: _Standing) -> None:
        self._rest.append(each.name)
        self._later.update(each.place)
        each.state = "leaving"

    def _at(self, place: Place, state: State) -> list[_Standing]:
        return [each for each in self._all.values() if each.state == state and each.place.keys() & place.keys()]


def _is_worth(wanted: _Standing, rest: Sequence[_Standing]) -> bool:
    """Tell whether a model that is not urgent may take the place of others.

    It may if its account is far behind theirs. Idle models make room if more waits for it than half of what comes for
    them during the swap: such a prediction waits half of the swap on average. Busy models make room if predictions then
    wait less in all, and the swap is shorter than the work that it is for.
    """
    swap_s = wanted.seen.load_s + max(each.seen.rest_s for each in rest)
    behind_s = min(each.least_used_s for each in rest) - wanted.least_used_s
    if FAR_BEHIND * swap_s < behind_s < math.inf:
        return True
    if not any(each.counts for each in rest):
        return wanted.counts > sum(each.model.weight * each.seen.arrivals_per_s * swap_s / 2 for each in rest)
    theirs = sum(each.counts * _away_s(wanted, each) for each in rest)
    return wanted.work_s > swap_s and wanted.counts * max(each.work_s for each in rest) > theirs


def _cost(wanted: _Standing, each: _Standing) -> float:
    """Return how long predictions wait in all if a model makes room: until it has left, and until it is back."""
    away_s = _away_s(wanted, each)
    comes = each.model.weight * each.seen.arrivals_per_s * away_s
    return wanted.counts * each.change_s + (each.counts + comes / 2) * away_s


def _away_s(wanted: _Standing, each: _Standing) -> float:
    """Return how long a model would be away: the other one runs what waits for it, then this one loads again."""
    turn_s = max(wanted.stays_s, wanted.work_s)
    return each.change_s + wanted.seen.load_s + turn_s + wanted.seen.rest_s + each.seen.load_s


def _fits(place: Place, room: Mapping[str, int]) -> bool:
    return all(need <= room[device] for device, need in place.items())


def _list_names(names: Iterable[str]) -> str:
    return ", ".join(names)
