"""What the journals of a run say together: tries and their answers, runs with their ends, faults with theirs.

Pure, and judges nothing: that is for invariants.py. gather.py puts it together.
"""

import math
from collections import defaultdict
from collections.abc import Iterator

from msgspec import Struct

from director.chaos.journal import Answered, Arrived, Claimed, Delivered, Final, Heard, Listed, Sent, Visited
from director.chaos.rest import Leftovers
from director.core.states import TERMINAL

__all__ = ("Event", "Evidence", "Rules", "Run", "ServerClock", "Try", "Window", "leaned_on", "pid_of")

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
