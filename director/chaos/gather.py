"""Read the journals of a run's folder, and put together what belongs together.

Judges nothing. What nobody wrote down, because a process died before, is closed where the others show that it ended.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from director.chaos.evidence import Evidence, Rules, Run, ServerClock, Try, Window
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

__all__ = ("gather",)

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
