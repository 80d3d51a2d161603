"""Define the target of each figure and judge whether it was reached."""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from tests.bench.benches import first_token, gateway, streaming
from tests.bench.ratios import Ratio, interval
from tests.bench.results import OURS, Result, counts
from tests.bench.sides.gateways import LITELLM

LARGE: Final = 100  # digits behind the point say nothing then


class Target(Struct, frozen=True, kw_only=True):
    """`beside`: a reference; ours is to be a multiple of it. Empty: the value itself."""

    what: str
    bench: str
    figure: str
    bound: float
    beside: str = ""
    unit: str = ""
    is_least: bool = False

    @property
    def wanted(self) -> str:
        bound = f"{'≥' if self.is_least else '≤'} {self.bound:g}"
        return f"{bound} × {self.beside}" if self.beside else f"{bound} {self.unit}".strip()

    def found(self, results: Mapping[str, Result]) -> Ratio | None:
        """Return our multiple of the reference, or our value with its interval. None: it was not measured."""
        result = results.get(self.bench)
        measured = result.figure(self.figure) if result else None
        if measured is None or OURS not in measured.rounds:
            return None
        if self.beside:
            return measured.beside(self.beside) if self.beside in measured.references else None
        return interval(measured.rounds[OURS])

    def judged(self, found: Ratio | None) -> str:
        """Return a verdict. Only an interval that lies on one side of the bound decides."""
        if found is None:
            return "not measured"
        low, high = (found.low, found.high) if found.rounds > 1 else (found.median, found.median)
        if low >= self.bound or high <= self.bound:
            return "reached" if (low >= self.bound) == self.is_least else "**missed**"
        return "not decided"

    def shown(self, found: Ratio | None) -> str:
        if found is None:
            return ""
        if self.beside:
            return f"{found} ×"
        number = f"{found.median:,.0f}" if found.median >= LARGE else f"{found.median:.3g}"
        return f"{number} {self.unit}".strip()

    def over(self, runs: Iterable[Result]) -> str:
        """Return the least and the greatest median of the runs that count."""
        seen = [run for run in runs if run.bench == self.bench]
        found = [self.found({self.bench: run}) for run in seen if counts(run, seen)]
        medians = [each.median for each in found if each is not None]
        return f"{min(medians):.3g}–{max(medians):.3g} in {len(medians)}" if len(medians) > 1 else ""


PACE: Final = "runs a second"
AT_64: Final = "64 connections"
TARGETS: Final = (
    *(
        Target(what="drain", bench="drain", figure=PACE, bound=bound, beside=beside, is_least=True)
        for beside, bound in (("bullmq", 1), ("taskiq", 2.5), ("saq", 2), ("dramatiq", 2))
    ),
    Target(
        what="accepted a second",
        bench="accept",
        figure="accepted a second",
        bound=0.55,
        beside="bare handler",
        is_least=True,
    ),
    Target(
        what=f"end to end, {AT_64}",
        bench="e2e",
        figure=f"predictions a second, {AT_64}",
        bound=0.5,
        beside="prototype",
        is_least=True,
    ),
    *(
        Target(
            what=f"time of {part}, {AT_64}",
            bench="e2e",
            figure=f"processor time of {part}, {AT_64}",
            bound=bound,
            beside="prototype",
        )
        for part, bound in (("Redis", 6), ("the API", 2))
    ),
    *(
        Target(
            what=f"round trips of a prediction, {when}",
            bench="e2e",
            figure=f"round trips of a prediction, {when}",
            bound=4,
        )
        for when in ("1 connection", AT_64)
    ),
    Target(what="added latency, p50", bench="latency", figure="added p50, memory", bound=2, beside="prototype"),
    Target(what="added latency, p99", bench="latency", figure="added p99, memory", bound=10, unit="ms"),
    Target(
        what="a log on the disk adds",
        bench="latency",
        figure="what a log on the disk adds to p50",
        bound=1,
        unit="ms",
    ),
    Target(what="token to its reader, p50", bench="streaming", figure=streaming.P50, bound=4, unit="ms"),
    Target(what="token to its reader, p99", bench="streaming", figure=streaming.P99, bound=10, unit="ms"),
    Target(what="first token added, p50", bench="first_token", figure=first_token.P50, bound=5, unit="ms"),
    Target(what="first token added, p99", bench="first_token", figure=first_token.P99, bound=12, unit="ms"),
    Target(what="call of OpenAI's API, added p99", bench="gateway", figure=gateway.ADDED_P99, bound=2.5, unit="ms"),
    Target(
        what="calls of OpenAI's API",
        bench="gateway",
        figure=gateway.PER_S,
        bound=5,
        beside=LITELLM.name,
        is_least=True,
    ),
    Target(
        what="processor time of a token of OpenAI's API",
        bench="gateway",
        figure=gateway.TOKEN_US,
        bound=0.25,
        beside=LITELLM.name,
    ),
    Target(what="streams without a stall", bench="gateway", figure=gateway.CARRIED, bound=128, is_least=True),
    Target(
        what="tokens a second",
        bench="streaming",
        figure=streaming.PER_S,
        bound=0.8,
        beside=streaming.DIRECT,
        is_least=True,
    ),
    Target(
        what="commands of a prediction in batches of 16", bench="batches", figure="commands of a prediction", bound=22
    ),
    Target(
        what="bytes of a waiting prediction beside input and log",
        bench="memory",
        figure="bytes of a waiting prediction beside input and log",
        bound=800,
        unit="bytes",
    ),
    Target(
        what="bytes of an ended record",
        bench="memory",
        figure="bytes of an ended prediction whose data is removed",
        bound=700,
        unit="bytes",
    ),
    *(
        Target(
            what=f"Redis's time of {call}, full beside empty",
            bench="depth",
            figure=f"Redis's time of {call}, full beside empty",
            bound=1.3,
            unit="×",
        )
        for call in ("claim", "enqueue")
    ),
    Target(what="recovery, lease 15 s", bench="recovery", figure="until all run again, lease 15 s", bound=20, unit="s"),
    Target(what="recovery, lease 3 s", bench="recovery", figure="until all run again, lease 3 s", bound=4, unit="s"),
    Target(
        what="memory of a waiting client", bench="memory", figure="API memory of a waiting client", bound=60, unit="KB"
    ),
    Target(what="memory of an SSE reader", bench="memory", figure="API memory of an SSE reader", bound=60, unit="KB"),
)
