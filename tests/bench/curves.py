"""Make curves of the bench `scale`: the measured rates, the rates that their processor time allows on the cores of this
machine, and an estimate for machines with a core for each process.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from tests.bench.benches.scale import BUSIEST, OF_ONE, PARTS, RATE, TRIPS, named
from tests.bench.picture import Line, Panel, drawn
from tests.bench.results import Result
from tests.bench.tables import about, lined, where_and_when

MICRO: Final = 1e6
REDIS: Final = "Redis"


class Curve(Struct, frozen=True, kw_only=True):
    """`grows`: the part whose processes are counted. `beyond`: counts that are only estimated."""

    by: str
    grows: str
    title: str
    beyond: tuple[int, ...]


CURVES: Final = (
    Curve(by="directors", grows="the directors", title="Waiting work, by directors", beyond=(16, 32)),
    Curve(by="API processes", grows="the API", title="POST without a wait, by API processes", beyond=(8, 16)),
    Curve(by="models", grows="", title="Waiting work, by models, two directors", beyond=()),
    Curve(by="masters", grows=REDIS, title="12 models, by Cluster masters", beyond=(6, 12)),
)


class Point(Struct, frozen=True, kw_only=True):
    """`per_s` and `trips` are None where nothing was measured. `us`: processor time of each part. `trips`: round trips
    of one prediction. `share`: of the busiest master.
    """

    count: int
    per_s: float | None
    us: Mapping[str, float]
    share: float = 1.0
    trips: float | None = None

    def here(self, cores: int) -> float:
        """Return the rate that the processor time allows on these cores."""
        return cores * MICRO / sum(self.us.values())

    def estimate(self, grows: str) -> float:
        """Return the rate at which the first part is full, with a core for each process. Where Redis grows, or nothing,
        there are as many directors as it takes.
        """
        alone = {REDIS: MICRO / self.us[REDIS] / self.share}
        if grows and grows != REDIS:
            alone[grows] = self.count * MICRO / self.us[grows]
        return min(alone.values())


def points(result: Result, curve: Curve) -> list[Point]:
    rate = result.figure(named(RATE, curve.by))
    if rate is None:
        return []
    parts = {part: result.figure(named(f"{OF_ONE}{part}", curve.by)) for part in PARTS}
    share, trips = (result.figure(named(name, curve.by)) for name in (BUSIEST, TRIPS))
    return [
        Point(
            count=int(count),
            per_s=rate.median(count),
            us={part: figure.median(count) for part, figure in parts.items() if figure},
            share=share.median(count) if share else 1.0,
            trips=trips.median(count) if trips else None,
        )
        for count in rate.rounds
    ]


def beyond(curve: Curve, last: Point) -> list[Point]:
    """Return points with the costs of the last measured one. More masters stay as uneven as these were."""
    return [
        Point(
            count=count, per_s=None, us=last.us, share=last.share * last.count / count if curve.grows == REDIS else 1.0
        )
        for count in curve.beyond
    ]


def scale_table(results: Mapping[str, Result]) -> str:
    result = results.get("scale")
    if result is None:
        return "Not measured yet."
    lines: list[str] = []
    for curve in CURVES:
        found = points(result, curve)
        parts = [part for part in PARTS if found and part in found[0].us]
        heads = (
            curve.by,
            "measured, a second",
            f"{result.machine.cores} cores ÷ time",
            "estimate",
            "cores busy with it",
            "round trips",
            *(f"{part}, µs" for part in parts),
        )
        rows = [_row(each, curve, parts, result.machine.cores) for each in [*found, *beyond(curve, found[-1])]]
        better = "Rates: more is better. µs of one prediction: less is better."
        lines += [f"**{curve.title}.** {better} {where_and_when(result)}.", "", *lined(heads, rows), ""]
    return "\n".join([*lines, about(result)])


def _row(point: Point, curve: Curve, parts: Sequence[str], cores: int) -> Sequence[str]:
    estimate = f"{point.estimate(curve.grows):,.0f}"
    if point.per_s is None:
        return (f"{point.count}", "", "", estimate, *[""] * (len(parts) + 2))
    return (
        f"{point.count}",
        f"{point.per_s:,.0f}",
        f"{point.here(cores):,.0f}",
        estimate,
        f"{point.per_s * sum(point.us.values()) / MICRO:.2f}",
        "" if point.trips is None else f"{point.trips:.2f}",
        *(f"{point.us[part]:,.0f}" for part in parts),
    )


def scale_picture(result: Result) -> str:
    panels = []
    for curve in CURVES:
        found = points(result, curve)
        measured = [(float(each.count), each.per_s or 0.0) for each in found]
        here = [(float(each.count), each.here(result.machine.cores)) for each in found]
        estimated = [(float(each.count), each.estimate(curve.grows)) for each in [*found, *beyond(curve, found[-1])]]
        lines = (
            Line("measured", measured),
            Line(f"{result.machine.cores} cores ÷ time", here, is_estimate=True),
            Line("estimate", estimated, is_estimate=True),
        )
        panels.append(Panel(title=curve.title, x=curve.by, lines=lines, by_factor=True))
    return drawn(panels)
