"""Read the journals of a run's folder and join them: requests with answers, runs with ends, faults with mends. A
process that died could not record its end: `gather` derives that from the other journals.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from director.core.states import TERMINAL
from director.lab.chaos import journal
from director.lab.chaos.journal import Answered, Claimed, Line, Sent
from director.lab.chaos.plan import CLOCK_STEP, CUT_MASTER, CUTS, NARROW, SINGLE, SLOW_DISK, ServerKind
from director.lab.chaos.rest import LEFTOVERS, Leftovers

T = TypeVar("T")
Key = TypeVar("Key")
Findings = Iterator[tuple[str, str]]
"""(id of a prediction, or whatever else broke a promise; what is wrong) of one invariant."""
Event = tuple[str, int, str]
"""(kind, at, data) of a prediction, as `journal.Final` has it."""
RULES: Final = "rules.json"
SHARED: Final = ("redis", "all:")  # how targets begin that every part depends on
Stretch = tuple[int, int]
"""(from, until), in milliseconds."""


class Rules(Struct, frozen=True, kw_only=True):
    seed: int = 0
    seconds: float = 0
    lease_s: float = 15
    attempts: int = 3
    slots: int = 8
    slots_of: dict[str, int] = {}  # of model servers with another number of them; journals of former builds lack it
    cancel_s: float = 2
    grace_s: float = 5  # time beyond one lease until a run whose claim was lost has stopped
    write_s: float = 13  # time until an end is written, over narrow links too: the large ends take 8 s
    clock_s: float = 1  # largest difference between a time of the code under test and the server's own
    left_out: str = ""  # the faults that this run could not have, and why
    kind: ServerKind = SINGLE
    is_sampled: bool = False  # what each process uses
    schedule_s: tuple[float, ...] = ()  # the waits between the attempts at a webhook; journals of former builds lack it
    lag_s: float = 0  # how far a replica may be behind its master
    has_calls: bool = False  # of OpenAI's API
    has_batches: bool = False
    has_steps: bool = False  # the server's log has each step; journals of former builds lack it
    is_counted: bool = False  # all directors and keepers count what runs use; journals of former builds lack it

    @property
    def tick_s(self) -> float:
        """Time between two looks of the reaper."""
        return min(1.0, self.lease_s / 10)

    @property
    def recovery_s(self) -> float:
        """Seconds from the death of a holder to the next start: 20 with the default lease, 4 with a lease of 3 s."""
        return self.lease_s + max(1.0, self.lease_s / 3)


class Try(Struct, frozen=True):
    sent: Sent
    answer: Answered = Answered(at=0, key="", action="create", status=0)

    @property
    def ok(self) -> bool:
        return 200 <= self.answer.status < 300


class Run(Struct, frozen=True, kw_only=True):
    """`outcome` is '' without a recorded end. `asked` is when the server was asked to stop the run, or 0. `odd` names
    its odd answer.
    """

    id: str
    run: str
    server: str
    pid: int
    began: int
    ended: int
    outcome: str = ""
    asked: int = 0
    odd: str = ""
    tokens: int = 0


class Window(Struct, frozen=True, kw_only=True):
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
    def is_cut(self) -> bool:
        return self.kind in CUTS

    @property
    def is_outage(self) -> bool:
        """Whether Redis answered none of its clients."""
        if self.target.startswith("redis"):
            return self.is_kill or self.is_freeze or self.kind in (CUT_MASTER, SLOW_DISK)
        return self.is_cut and self.target.startswith("all:")

    def overlaps(self, begin: float, end: float) -> bool:
        return self.begin <= end and begin <= self.end


class ServerClock(Struct, frozen=True):
    """The server's clock compared with the machine's, from `since` on. `steps` holds (when, ms), by the machine's
    clock. A step back is longer than the run, so a time of the server belongs to exactly one stretch between two
    steps.
    """

    since: int = 0
    steps: tuple[tuple[int, int], ...] = ()

    def machine(self, server_ms: int) -> int:
        """Return the machine's time at this time of the server. A time from just before a step stays before it."""
        if not self.steps:
            return server_ms
        begin, end, offset = min(
            self._stretches(), key=lambda each: max(each[0] - server_ms + each[2], server_ms - each[2] - each[1], 0)
        )
        return round(min(max(begin, server_ms - offset), end))

    def server(self, at: int) -> int:
        return at + sum(ms for when, ms in self.steps if when <= at)

    def find_time(self, server_ms: int, *, since: int) -> float:
        """Return when the server's clock first showed this time or a later one, from `since` on; infinity for never."""
        for begin, end, offset in self._stretches():
            at = max(begin, since, server_ms - offset)
            if at <= end:
                return at
        return math.inf

    def _stretches(self) -> Iterator[tuple[int, float, int]]:
        begin, offset = self.since, 0
        for when, ms in self.steps:
            yield begin, when - 1, offset
            begin, offset = when, offset + ms
        yield begin, math.inf, offset


class Evidence(Struct, frozen=True, kw_only=True):
    rules: Rules
    creates: dict[str, list[Try]]  # by idempotency key
    by_id: dict[str, list[Try]]  # creates and cancels whose answer named the prediction
    runs: dict[str, list[Run]]
    webhooks: dict[str, list[journal.Delivered]]
    followed: frozenset[str]
    visits: dict[str, list[journal.Visited]]
    heard: dict[str, list[journal.Heard]]
    listed: dict[str, journal.Listed]
    seen: dict[str, list[journal.Seen]]
    held: list[journal.Held]
    samples: list[journal.Sampled]
    rested: list[journal.Rested]
    faults: list[Window]
    healed: int | None
    arrivals: dict[str, journal.Arrived]
    claims: dict[str, list[Claimed]]
    breakers: dict[str, list[Stretch]]  # of each queue: the times in which it handed nothing out
    reigns: list[journal.Reign]
    unmade: dict[str, list[journal.Unmade]]
    finals: dict[str, journal.Final]
    spoken: dict[str, list[journal.Spoken]]  # by run
    calls: dict[str, list[journal.Called]]  # by the prediction, or by their tag if it is unknown
    leftovers: Leftovers | None
    until: int
    batches: dict[str, journal.Batched] = {}  # as they are shown at rest
    steps: dict[str, list[journal.Stepped]] = {}  # in the order of the server
    clock: ServerClock = ServerClock()

    def was_hit(self, begin: float, end: float) -> bool:
        crashes = (run.ended for run in self.every_run() if run.outcome == "crashed")
        return any(fault.overlaps(begin, end) for fault in self.faults) or any(begin <= at <= end for at in crashes)

    def was_hindered(
        self,
        since: float,
        until: float,
        parts: Iterable[str],
        *,
        all_of: tuple[str, ...] = ("redis", "all:"),
        pid: int = 0,
    ) -> bool:
        """Return whether a fault other than a narrow link hit one of these parts, this process, or all of a kind."""
        needed = set(parts)
        return any(
            fault.target in needed or fault.target.startswith(all_of) or (pid > 0 and fault.pid == pid)
            for fault in self.faults
            if fault.kind != NARROW and fault.overlaps(since, until)
        )

    def slots(self, server: str) -> int:
        return self.rules.slots_of.get(server, self.rules.slots)

    def accepted(self) -> dict[str, list[Try]]:
        return group((each for tries in self.creates.values() for each in tries if each.ok), by_answer)

    def plans(self) -> dict[str, str]:
        return {prediction_id: tries[0].sent.plan for prediction_id, tries in self.accepted().items()}

    def status(self, prediction_id: str) -> str:
        final = self.finals.get(prediction_id)
        return "" if final is None else final.record.get("status", "")

    def is_terminal(self, prediction_id: str) -> bool:
        return self.status(prediction_id) in TERMINAL

    def ends(self, prediction_id: str) -> list[int]:
        final = self.finals.get(prediction_id)
        return [at for kind, at, _ in final.events if kind == "completed"] if final else []

    def every_run(self) -> Iterator[Run]:
        for runs in self.runs.values():
            yield from runs


def depends_on(server: str) -> tuple[str, ...]:
    director = f"director-{server.rpartition('-')[2]}"
    return server, director, f"{director}:redis", f"{director}:cog"


def pid_of(holder: str) -> int:
    """Return the process id in a director's name, `<host>-<pid>-<random>`, or 0 if the name has none."""
    parts = holder.split("-")
    return int(parts[-2]) if len(parts) > 2 and parts[-2].isdecimal() else 0


def group(items: Iterable[T], key: Callable[[T], Key]) -> dict[Key, list[T]]:
    found: dict[Key, list[T]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return found


def stretches(steps: Iterable[tuple[int, T]], is_on: Callable[[T], bool]) -> Iterator[Stretch]:
    began: int | None = None
    for at, step in steps:
        now_on = is_on(step)
        if now_on and began is None:
            began = at
        elif began is not None and not now_on:
            yield began, at
            began = None


by_answer: Callable[[Try], str] = attrgetter("answer.id")
_id: Callable[[Any], str] = attrgetter("id")
_at: Callable[[Any], int] = attrgetter("at")
_number: Callable[[Any], int] = attrgetter("number")


def gather(folder: Path, rules: Rules | None = None, leftovers: Leftovers | None = None) -> Evidence:
    """Read what is in the folder, except for the rules and leftovers that are given."""
    if rules is None:
        rules = msgspec.json.decode((folder / RULES).read_bytes(), type=Rules) if (folder / RULES).exists() else Rules()
    written = [line for path in sorted(folder.glob("*.jsonl*")) for line in journal.read(path)]
    clock = _clock(written)
    lines = sorted((_by_the_machine(line, clock) for line in written), key=_at)
    if leftovers is None and (folder / LEFTOVERS).exists():
        leftovers = msgspec.json.decode((folder / LEFTOVERS).read_bytes(), type=Leftovers)
    until = lines[-1].at if lines else 0
    healed = max((line.at for line in _only(lines, journal.Healed)), default=None)
    faults = _windows(_only(lines, journal.Fault), until if healed is None else healed)
    requests = [line for line in lines if isinstance(line, Sent | Answered)]
    tries = [Try(*pair) for pair in _pair(requests, lambda line: isinstance(line, Sent), attrgetter("key", "action"))]
    finals = {final.id: final for final in _only(lines, journal.Final)}
    tagged = {final.tag: final.id for final in finals.values() if final.tag}
    return Evidence(
        rules=rules,
        creates=group((each for each in tries if each.sent.action == "create"), attrgetter("sent.key")),
        by_id=group((each for each in tries if each.answer.id), by_answer),
        runs=_runs(lines, faults, until, tagged),
        webhooks=group(_only(lines, journal.Delivered), _id),
        followed=frozenset(line.id for line in _only(lines, journal.Followed)),
        visits=group(_only(lines, journal.Visited), _id),
        heard=group(_only(lines, journal.Heard), _id),
        listed={listed.id: listed for listed in _only(lines, journal.Listed)},
        seen=group(_only(lines, journal.Seen), _id),
        held=_only(lines, journal.Held),
        samples=_only(lines, journal.Sampled),
        rested=_only(lines, journal.Rested),
        faults=faults,
        healed=healed,
        arrivals={arrived.id: arrived for arrived in _only(lines, journal.Arrived)},
        claims=group(sorted(_only(lines, Claimed), key=_number), _id),
        breakers=_breakers(_only(lines, journal.Breaker), until),
        reigns=_only(lines, journal.Reign),
        unmade=group(_only(lines, journal.Unmade), _id),
        finals=finals,
        spoken=group(_only(lines, journal.Spoken), attrgetter("run")),
        calls=group(_only(lines, journal.Called), lambda call: tagged.get(call.key, call.id or call.key)),
        leftovers=leftovers,
        until=until,
        batches={each.id: each for each in _only(lines, journal.Batched)},
        steps=group(sorted(_only(lines, journal.Stepped), key=_number), _id),
        clock=clock,
    )


def _clock(written: list[Line]) -> ServerClock:
    begun = [line for line in _only(written, journal.Fault) if line.kind == CLOCK_STEP and line.phase == "begin"]
    since = min((line.at for line in written if not isinstance(line, journal.ServerLine)), default=0)
    return ServerClock(since, tuple((line.at, int(line.detail) * 1000) for line in sorted(begun, key=_at)))


def _by_the_machine(line: Line, clock: ServerClock) -> Line:
    if isinstance(line, Claimed):
        return replace(line, at=clock.machine(line.at), delivered=line.delivered and clock.machine(line.delivered))
    if isinstance(line, journal.ServerLine):
        return replace(line, at=clock.machine(line.at))
    if isinstance(line, journal.Final):
        return replace(line, events=[(kind, clock.machine(at), data) for kind, at, data in line.events])
    return line


def _only(lines: Iterable[Line], kind: type[T]) -> list[T]:
    return [line for line in lines if isinstance(line, kind)]


def _pair(lines: Iterable[T], begins: Callable[[T], bool], key: Callable[[T], object]) -> list[list[Any]]:
    """Join each beginning with its end: the first line of the same key that no earlier beginning has. It may lack."""
    pairs: list[list[Any]] = []
    waiting: dict[object, list[list[Any]]] = defaultdict(list)
    for line in lines:
        if begins(line):
            pairs.append([line])
            waiting[key(line)].append(pairs[-1])
        elif waiting[key(line)]:
            waiting[key(line)].pop(0).append(line)
    return pairs


def _breakers(changes: list[journal.Breaker], until: int) -> dict[str, list[Stretch]]:
    """A breaker without a closing line stays open until the end."""
    times: dict[str, list[Stretch]] = defaultdict(list)
    for change in sorted(changes, key=_number):
        if change.is_open:
            times[change.queue].append((change.at, until))
        elif times[change.queue]:
            times[change.queue][-1] = times[change.queue][-1][0], change.at
    return times


def _windows(faults: list[journal.Fault], healed: int) -> list[Window]:
    return [
        Window(
            kind=fault.kind,
            target=fault.target,
            pid=fault.pid,
            begin=fault.at,
            end=ends[0].at if ends else max(fault.at, healed),
        )
        for fault, *ends in _pair(faults, lambda line: line.phase == "begin", attrgetter("kind", "target"))
    ]


def _runs(lines: list[Line], faults: list[Window], until: int, tagged: dict[str, str]) -> dict[str, list[Run]]:
    """`tagged`: predictions by the tags of their calls, which a server knows them by."""
    started = _only(lines, journal.CogStarted)
    ends = {end.run: end for end in _only(lines, journal.CogEnded)}
    deaths = _deaths(started, ends, faults)
    tokens = Counter[str]()
    for said in _only(lines, journal.Spoken):
        tokens[said.run] += said.tokens
    runs = []
    for start in started:
        run = Run(
            id=tagged.get(start.id, start.id),
            run=start.run,
            server=start.server,
            pid=start.pid,
            began=start.at,
            ended=until,
            tokens=tokens[start.run],
        )
        if end := ends.get(start.run):
            run = replace(run, ended=end.at, outcome=end.outcome, asked=end.asked, odd=end.odd)
            run = replace(run, tokens=run.tokens + end.tokens)
        elif later := [at for at in deaths[start.pid] if at >= start.at]:
            run = replace(run, ended=min(later))
        runs.append(run)
    return group(runs, _id)


def _deaths(
    started: list[journal.CogStarted], ends: dict[str, journal.CogEnded], faults: list[Window]
) -> dict[int, list[int]]:
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
