"""What the journals of a run say together: tries and their answers, runs with their ends, faults with theirs.

Pure, and judges nothing: that is for invariants.py. gather.py puts it together.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from director.chaos.faults import CLOCK_STEP
from director.chaos.journal import (
    Answered,
    Arrived,
    Breaker,
    Claimed,
    CogEnded,
    CogStarted,
    Delivered,
    Fault,
    Final,
    Followed,
    Healed,
    Heard,
    Line,
    Listed,
    Sent,
    Visited,
    read,
)
from director.chaos.rest import LEFTOVERS, Leftovers
from director.core.states import TERMINAL

Event = tuple[str, int, str]
"""(kind, at, data) of a prediction, as `Final` has it."""


class Rules(Struct, frozen=True, kw_only=True):
    """What the run was told to do, and what its promises were."""

    seed: int = 0
    seconds: float = 0
    lease_s: float = 15
    attempts: int = 3
    slots: int = 8
    cancel_s: float = 2
    grace_s: float = 5  # for a run whose claim was lost to be stopped, beyond one lease
    write_s: float = 13  # for an end to be written, however narrow the links are: the large ones take 8 s
    clock_s: float = 1  # most that a time of the code under test may differ from the server's own
    left_out: str = ""  # faults that this run could not have, and why

    @property
    def recovery_s(self) -> float:
        """From the death of a holder to the next start: 20 s with the default lease, 4 s with one of 3 s."""
        return self.lease_s + max(1.0, self.lease_s / 3)


class Try(Struct, frozen=True):
    """One request of the client, and the answer where one came."""

    sent: Sent
    answer: Answered | None = None

    @property
    def status(self) -> int:
        return 0 if self.answer is None else self.answer.status

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def id(self) -> str:
        return "" if self.answer is None else self.answer.id

    @property
    def shown(self) -> str:
        return "" if self.answer is None else self.answer.shown


class Run(Struct, frozen=True, kw_only=True):
    """One run on a model server. `outcome` is '' when it ended with its server, or not within what was written.

    `asked`: when it was told to stop, 0 for never.
    """

    id: str
    run: str
    server: str
    pid: int
    began: int
    ended: int
    outcome: str = ""
    asked: int = 0


class Window(Struct, frozen=True, kw_only=True):
    """A fault from its beginning to its mending."""

    kind: str
    target: str
    pid: int
    begin: int
    end: int

    @property
    def is_kill(self) -> bool:
        return self.kind.startswith(("kill", "crash"))

    @property
    def is_freeze(self) -> bool:
        return self.kind.startswith("stop")

    @property
    def is_outage(self) -> bool:
        """Nobody could reach Redis, not only one of its clients."""
        if self.target.startswith("redis"):
            return self.is_kill or self.is_freeze
        return self.kind == "partition" and self.target.startswith("all:")

    def overlaps(self, begin: float, end: float) -> bool:
        return self.begin <= end and begin <= self.end


class ServerClock(Struct, frozen=True):
    """The server's clock against that of the machine, from `since` on. `steps`: (when, ms), in order, by the machine's.

    A step back is longer than the run, so a time of the server's belongs to one stretch between two steps.
    """

    since: int = 0
    steps: tuple[tuple[int, int], ...] = ()

    def machine(self, server_ms: int) -> int:
        """The machine's time at this time of the server's. What was read just before a step stays before it."""
        if not self.steps:
            return server_ms
        begin, end, offset = min(self._stretches(), key=lambda each: _beyond(server_ms - each[2], each[0], each[1]))
        return round(min(max(begin, server_ms - offset), end))

    def server(self, at: int) -> int:
        """The server's time at this time of the machine's."""
        return at + sum(ms for when, ms in self.steps if when <= at)

    def reached(self, server_ms: int, *, since: int) -> float:
        """When the server's clock first showed this time or a later one, from `since` on."""
        for begin, end, offset in self._stretches():
            at = max(begin, since, server_ms - offset)
            if at <= end:
                return at
        return math.inf

    def _stretches(self) -> Iterator[tuple[int, float, int]]:
        """(first, last, how far ahead the server's clock is)."""
        begin, offset = self.since, 0
        for when, ms in self.steps:
            yield begin, when - 1, offset
            begin, offset = when, offset + ms
        yield begin, math.inf, offset


def _beyond(at: float, begin: float, end: float) -> float:
    return max(begin - at, at - end, 0)


class Evidence(Struct, frozen=True, kw_only=True):
    """All of it, by what it is about. `until`: when the last line was written."""

    rules: Rules
    creates: dict[str, list[Try]]  # by key
    by_id: dict[str, list[Try]]  # creates and cancels, where an answer named the prediction
    runs: dict[str, list[Run]]
    told: dict[str, list[Delivered]]
    followed: frozenset[str]
    visits: dict[str, list[Visited]]
    heard: dict[str, list[Heard]]
    listed: dict[str, Listed]
    faults: list[Window]
    healed: int | None
    arrivals: dict[str, Arrived]
    claims: dict[str, list[Claimed]]
    breakers: dict[str, list[tuple[int, int]]]  # queue → from when until when it handed nothing out
    finals: dict[str, Final]
    leftovers: Leftovers | None
    until: int
    clock: ServerClock = ServerClock()

    def was_hit(self, begin: float, end: float) -> bool:
        """Did anything break in this time: a planned fault, or a model server by what it ran?"""
        crashes = (run.ended for run in self.every_run() if run.outcome == "crashed")
        return any(fault.overlaps(begin, end) for fault in self.faults) or any(begin <= at <= end for at in crashes)

    def accepted(self) -> dict[str, list[Try]]:
        """id → the creates that were answered with it and a 2xx."""
        found: dict[str, list[Try]] = defaultdict(list)
        for tries in self.creates.values():
            for each in tries:
                if each.ok:
                    found[each.id].append(each)
        return found

    def status(self, prediction_id: str) -> str:
        """Its status at rest; '' without a record."""
        final = self.finals.get(prediction_id)
        return "" if final is None else final.record.get("status", "")

    def is_terminal(self, prediction_id: str) -> bool:
        return self.status(prediction_id) in TERMINAL

    def every_run(self) -> Iterator[Run]:
        for runs in self.runs.values():
            yield from runs


def leaned_on(server: str) -> tuple[str, ...]:
    """What a run on this server needs: the server, the director of the same number beside it, and its way to Redis."""
    director = f"director-{server.rpartition('-')[2]}"
    return server, director, f"{director}:redis"


def pid_of(holder: str) -> int:
    """The process of a director, by its name: `<host>-<pid>-<random>`; 0 where it says none."""
    parts = holder.split("-")
    return int(parts[-2]) if len(parts) > 2 and parts[-2].isdecimal() else 0


# Read the journals of a run's folder, and put together what belongs together.
#
# Judges nothing. What nobody wrote down, because a process died before, is closed where the others show that it ended.

Kind = TypeVar("Kind")
OfOne = TypeVar("OfOne", Delivered, Heard, Visited)


def gather(folder: Path, rules: Rules, leftovers: Leftovers | None = None) -> Evidence:
    """Read every journal of a folder, and what was left in Redis where it is not given."""
    written = [line for path in sorted(folder.glob("*.jsonl")) for line in read(path)]
    clock = _clock(written)
    lines = sorted((_by_the_machine(line, clock) for line in written), key=_at)
    if leftovers is None and (folder / LEFTOVERS).exists():
        leftovers = msgspec.json.decode((folder / LEFTOVERS).read_bytes(), type=Leftovers)
    until = lines[-1].at if lines else 0
    healed = max((line.at for line in _only(lines, Healed)), default=None)
    faults = _windows(_only(lines, Fault), until if healed is None else healed)
    tries = _tries(line for line in lines if isinstance(line, Sent | Answered))
    creates: dict[str, list[Try]] = defaultdict(list)
    by_id: dict[str, list[Try]] = defaultdict(list)
    for each in tries:
        if each.sent.action == "create":
            creates[each.sent.key].append(each)
        if each.id:
            by_id[each.id].append(each)
    return Evidence(
        rules=rules,
        creates=creates,
        by_id=by_id,
        runs=_runs(lines, faults, until),
        told=_by_prediction(_only(lines, Delivered)),
        followed=frozenset(line.id for line in _only(lines, Followed)),
        visits=_by_prediction(_only(lines, Visited)),
        heard=_by_prediction(_only(lines, Heard)),
        listed={listed.id: listed for listed in _only(lines, Listed)},
        faults=faults,
        healed=healed,
        arrivals={arrived.id: arrived for arrived in _only(lines, Arrived)},
        claims=_claims(lines),
        breakers=_breakers(_only(lines, Breaker), until),
        finals={final.id: final for final in _only(lines, Final)},
        leftovers=leftovers,
        until=until,
        clock=clock,
    )


def _clock(written: list[Line]) -> ServerClock:
    begun = [line for line in _only(written, Fault) if line.kind == CLOCK_STEP and line.phase == "begin"]
    since = min((line.at for line in written if not isinstance(line, Arrived | Breaker | Claimed)), default=0)
    return ServerClock(since, tuple((line.at, int(line.detail) * 1000) for line in sorted(begun, key=_at)))


def _at(line: Line) -> int:
    return line.at


def _by_the_machine(line: Line, clock: ServerClock) -> Line:
    """Times that the server told, by the clock that all else is written down by."""
    if isinstance(line, Arrived | Breaker):
        return replace(line, at=clock.machine(line.at))
    if isinstance(line, Claimed):
        return replace(line, at=clock.machine(line.at), delivered=line.delivered and clock.machine(line.delivered))
    if isinstance(line, Final):
        return replace(line, events=[(kind, clock.machine(at), data) for kind, at, data in line.events])
    return line


def _only(lines: Iterable[Line], kind: type[Kind]) -> list[Kind]:
    return [line for line in lines if isinstance(line, kind)]


def _by_prediction(lines: Iterable[OfOne]) -> dict[str, list[OfOne]]:
    found: dict[str, list[OfOne]] = defaultdict(list)
    for line in lines:
        found[line.id].append(line)
    return found


def _tries(lines: Iterable[Line]) -> list[Try]:
    """Each request with the answer that followed it under its key."""
    tries: list[Try] = []
    waiting: dict[tuple[str, str], list[int]] = defaultdict(list)
    for line in lines:
        if isinstance(line, Sent):
            waiting[line.key, line.action].append(len(tries))
            tries.append(Try(line))
        elif isinstance(line, Answered) and (unanswered := waiting[line.key, line.action]):
            number = unanswered.pop(0)
            tries[number] = Try(tries[number].sent, line)
    return tries


def _claims(lines: list[Line]) -> dict[str, list[Claimed]]:
    """Claims by prediction, in the server's order: of two in one millisecond too."""
    claims: dict[str, list[Claimed]] = defaultdict(list)
    for claimed in sorted(_only(lines, Claimed), key=lambda line: line.number):
        claims[claimed.id].append(claimed)
    return claims


def _breakers(changes: list[Breaker], until: int) -> dict[str, list[tuple[int, int]]]:
    """One that was open at the end was so to the end."""
    times: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for change in sorted(changes, key=lambda line: line.number):
        if change.is_open:
            times[change.queue].append((change.at, until))
        elif times[change.queue]:
            times[change.queue][-1] = times[change.queue][-1][0], change.at
    return times


def _windows(faults: Iterable[Fault], healed: int) -> list[Window]:
    """A fault that nobody saw the end of lasts until all was healed."""
    windows: list[Window] = []
    begun: dict[tuple[str, str], list[Fault]] = defaultdict(list)
    for fault in faults:
        if fault.phase == "begin":
            begun[fault.kind, fault.target].append(fault)
        elif earlier := begun[fault.kind, fault.target]:
            windows.append(_window(earlier.pop(0), fault.at))
    windows += [_window(fault, max(fault.at, healed)) for unmended in begun.values() for fault in unmended]
    return sorted(windows, key=lambda window: window.begin)


def _window(fault: Fault, end: int) -> Window:
    return Window(kind=fault.kind, target=fault.target, pid=fault.pid, begin=fault.at, end=end)


def _runs(lines: list[Line], faults: list[Window], until: int) -> dict[str, list[Run]]:
    """Runs by prediction, in order. One that told no end ended with its server's process."""
    started = _only(lines, CogStarted)
    ends = {end.run: end for end in _only(lines, CogEnded)}
    deaths = _deaths(started, ends, faults)
    runs: dict[str, list[Run]] = defaultdict(list)
    for start in started:
        end = ends.get(start.run)
        died = min((at for at in deaths[start.pid] if at >= start.at), default=until)
        runs[start.id].append(
            Run(
                id=start.id,
                run=start.run,
                server=start.server,
                pid=start.pid,
                began=start.at,
                ended=died if end is None else end.at,
                outcome="" if end is None else end.outcome,
                asked=0 if end is None else end.asked,
            )
        )
    return runs


def _deaths(started: list[CogStarted], ends: dict[str, CogEnded], faults: list[Window]) -> dict[int, list[int]]:
    """Process of a model server → when it died: killed, crashed by a run, or followed by another process."""
    deaths: dict[int, list[int]] = defaultdict(list)
    serving: dict[str, int] = {}
    for start in started:
        if (before := serving.get(start.server)) not in (None, start.pid):
            deaths[before or 0].append(start.at)
        serving[start.server] = start.pid
        if (end := ends.get(start.run)) is not None and end.outcome == "crashed":
            deaths[start.pid].append(end.at)
    for fault in faults:
        if fault.is_kill and fault.pid:
            deaths[fault.pid].append(fault.begin)
    return deaths


# A promise that was broken: which, for whom, how, and what the journals say about it. Pure.


class Breach(Struct, frozen=True):
    """`id` is a prediction's, or whatever else broke it: a queue, a key, a server. `evidence` is in order of time."""

    invariant: str
    id: str
    what: str
    evidence: tuple[str, ...] = ()
