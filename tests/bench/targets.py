"""Define the target of each figure and judge whether it was reached."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from tests.bench.ratios import Ratio
from tests.bench.results import Result

LARGE: Final = 100  # digits behind the point say nothing then


class Target(Struct, frozen=True, kw_only=True):
    """`beside`: a reference; ours is to be a multiple of it. Empty: the value itself. `why`: what hinders it."""

    what: str
    bench: str
    figure: str
    bound: float
    beside: str = ""
    unit: str = ""
    is_least: bool = False
    why: str = ""

    @property
    def wanted(self) -> str:
        bound = f"{'≥' if self.is_least else '≤'} {self.bound:g}"
        return f"{bound} × {self.beside}" if self.beside else f"{bound} {self.unit}".strip()


class Verdict(Struct, frozen=True, kw_only=True):
    """`found` is empty if nothing was measured."""

    target: Target
    found: float | None = None
    ratio: Ratio | None = None
    unit: str = ""

    @property
    def is_reached(self) -> bool | None:
        if self.found is None:
            return None
        return self.found >= self.target.bound if self.target.is_least else self.found <= self.target.bound

    @property
    def shown(self) -> str:
        if self.found is None:
            return "not measured"
        if self.ratio is not None:
            return f"{self.ratio} ×"
        number = f"{self.found:,.0f}" if self.found >= LARGE else f"{self.found:.3g}"
        return f"{number} {self.unit}".strip()


def verdict(target: Target, results: Mapping[str, Result]) -> Verdict:
    result = results.get(target.bench)
    measured = result.figure(target.figure) if result else None
    if measured is None or not measured.rounds.get("ours"):
        return Verdict(target=target)
    if not target.beside:
        return Verdict(target=target, found=measured.median(), unit=measured.unit)
    if target.beside not in measured.references:
        return Verdict(target=target)
    beside = measured.beside(target.beside)
    return Verdict(target=target, found=beside.median, ratio=beside)


PACE: Final = "runs a second"
# By perf and cProfile; the tables are in the READMEs of lua, director and api
SCRIPTS: Final = (
    "half of Redis's time is the interpreter of its scripts and the memory that it asks for, a quarter their commands: "
    "34 for a claim and a finish, where the prototype has 6, for leases, fencing, turns, counters, events and the log. "
    "It would need scripts as functions of the server, several ends in one call, and fewer indexes"
)
WHY_DRAIN: Final = (
    "Redis takes ten times, the director three to four times as long for each as in the prototype; " + SCRIPTS
)
WHY_BULLMQ: Final = "of its processor a run takes as much there as here, and of Redis's half"
WHY_E2E: Final = (
    "on two cores the time of all processes counts: 1.2 ms for each, 0.4 in the prototype; the most of it is Redis's, "
    "then the API's, of which the kernel's write of an answer is a quarter"
)
WHY_ACCEPT: Final = (
    "of the API's processor one takes 1.6 times as much; the rest is Redis on the other core, 0.2 ms for 22 commands "
    "beside one, a tenth of it closures that functions of the server would not make again"
)
WHY_P50: Final = (
    "three round trips as there; longer ones, and more Python in each of both processes: the same as in a drain"
)
WHY_DISK: Final = (
    "two syncs lie one after the other, that of the create with its claim and that of the end, and no answer leaves "
    "before it is kept"
)
TARGETS: Final = (
    Target(what="drain", bench="drain", figure=PACE, bound=1.3, beside="taskiq", is_least=True),
    Target(what="drain", bench="drain", figure=PACE, bound=2, beside="arq", is_least=True),
    Target(what="drain", bench="drain", figure=PACE, bound=0.6, beside="prototype", is_least=True, why=WHY_DRAIN),
    Target(
        what="drain, a stretch", bench="drain", figure=PACE, bound=1, beside="bullmq", is_least=True, why=WHY_BULLMQ
    ),
    Target(
        what="end to end, 64 connections",
        bench="e2e",
        figure="predictions a second, 64 connections",
        bound=0.6,
        beside="prototype",
        is_least=True,
        why=WHY_E2E,
    ),
    Target(
        what="added latency, p50", bench="latency", figure="added p50, memory", bound=2, beside="prototype", why=WHY_P50
    ),
    Target(what="added latency, p99", bench="latency", figure="added p99, memory", bound=10, unit="ms"),
    Target(
        what="a log on the disk adds",
        bench="latency",
        figure="what a log on the disk adds to p50",
        bound=1,
        unit="ms",
        why=WHY_DISK,
    ),
    Target(
        what="accept rate",
        bench="accept",
        figure="accepted a second",
        bound=0.5,
        beside="bare handler",
        is_least=True,
        why=WHY_ACCEPT,
    ),
    Target(
        what="Redis's time of a prediction, 64 connections",
        bench="e2e",
        figure="processor time of Redis, 64 connections",
        bound=120,
        unit="µs",
        why=SCRIPTS,
    ),
    *(
        Target(
            what=f"round trips of a prediction, {when}",
            bench="e2e",
            figure=f"round trips of a prediction, {when}",
            bound=4,
        )
        for when in ("1 connection", "64 connections")
    ),
    Target(
        what="bytes of a waiting prediction beside its input",
        bench="memory",
        figure="bytes of a waiting prediction beside its input",
        bound=1_200,
        unit="bytes",
    ),
    Target(what="recovery, lease 15 s", bench="recovery", figure="until all run again, lease 15 s", bound=20, unit="s"),
    Target(what="recovery, lease 3 s", bench="recovery", figure="until all run again, lease 3 s", bound=4, unit="s"),
    Target(what="claim, full beside empty", bench="depth", figure="p99 of claim, full beside empty", bound=2, unit="×"),
    Target(
        what="enqueue, full beside empty", bench="depth", figure="p99 of enqueue, full beside empty", bound=2, unit="×"
    ),
    Target(
        what="memory of a waiting client", bench="memory", figure="API memory of a waiting client", bound=60, unit="KB"
    ),
    Target(what="memory of an SSE reader", bench="memory", figure="API memory of an SSE reader", bound=60, unit="KB"),
)
