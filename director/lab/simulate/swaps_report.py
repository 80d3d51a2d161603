"""Report on plays of several models that share devices: a row for each rule, and a picture of what was loaded when."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from director.core.devices import Device
from director.core.errors import SettingsError
from director.core.figures import percentile
from director.core.pool_file import PoolFile
from director.core.words import several, span
from director.lab.simulate.show import save
from director.lab.simulate.swaps import RULES, Play, Swaps, Timed
from director.lab.simulate.trace import Trace

TITLES: Final = {
    "director": "director",
    "fcfs": "first come, first served",
    "lru": "least recently used",
    "collation": "collation alone",
}
COLOURS: Final = {"loading": "#d9a441", "loaded": "#3b7dd8", "leaving": "#b8b8b8"}
HEADS: Final = ("rule", "runs a minute", "wait p50, s", "wait p95, s", "wait most, s", "swaps", "lost to swaps, s")
ROW_INCHES: Final = 0.16


class SwapReport(Struct, frozen=True, kw_only=True):
    """One play. `lost_s`: the time that models took to load and to leave, in all. `late_s`: by how much a load began
    after the bound that the planner gave; 0 unless its rules are broken.
    """

    rule: str
    predictions: int
    per_minute: float
    p50_s: float
    p95_s: float
    most_s: float
    swaps: int
    lost_s: float
    late_s: float
    played: Swaps


def time_models(pool: PoolFile) -> list[Timed]:
    """Return the models of a pool file that share devices. Raises SettingsError if no model does."""
    found = [Timed(model=each.hosted.model, load_s=each.hosted.launch.load_s) for each in pool.tables if each.hosted]
    if not found:
        raise SettingsError("no model of this pool file shares devices: none has `command` or `folder`.")
    return found


def slots_at_once(devices: Sequence[Device], models: Sequence[Timed]) -> int:
    """Return how many slots about fit on the devices at once: what made traffic is measured by."""
    memory = sum(device.memory for device in devices)
    taken = sum(sum(each.model.places[0].values()) for each in models) / len(models)
    fit = len(models) if taken == 0 else min(len(models), memory / taken)
    return max(1, round(fit * sum(each.model.slots for each in models) / len(models)))


def simulate_swaps(
    devices: Sequence[Device], models: Sequence[Timed], trace: Trace, rules: Sequence[str] = tuple(RULES)
) -> list[SwapReport]:
    """Play the trace by each rule. Raises SettingsError if it names a model that the pool file does not have."""
    if strange := set(trace.models) - {each.model.name for each in models}:
        raise SettingsError(f"the pool file has no model {min(strange)!r} that shares devices.")
    return [report(Play(rule, devices, models, trace).run(), trace) for rule in rules]


def report(played: Swaps, trace: Trace) -> SwapReport:
    waits = [started_s - at_ms / 1000 for started_s, at_ms in zip(played.started_s, trace.at_ms, strict=True)]
    return SwapReport(
        rule=played.rule,
        predictions=len(trace),
        per_minute=round(60 * len(trace) / played.ended_s, 2),
        p50_s=round(percentile(waits, 0.5), 3),
        p95_s=round(percentile(waits, 0.95), 3),
        most_s=round(max(waits), 3),
        swaps=played.loads,
        lost_s=round(played.loading_s + played.leaving_s, 3),
        late_s=round(played.late_s, 3),
        played=played,
    )


def swaps_text(trace: Trace, reports: Sequence[SwapReport]) -> str:
    accounts, work_s = len(set(trace.account)), sum(trace.run_ms) / 1000
    rows = [HEADS] + [
        (
            TITLES[each.rule],
            *(f"{value:.1f}" for value in (each.per_minute, each.p50_s, each.p95_s, each.most_s)),
            f"{each.swaps}",
            f"{each.lost_s:.0f}",
        )
        for each in reports
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    came = f"{len(trace):,} predictions of {several(accounts, 'account')} for {len(set(trace.model))} models"
    return "\n".join([f"{came} came in {span(trace.at_ms[-1] / 1000)}, with {span(work_s)} of runs.", "", *lines])


def plot_swaps(path: Path, models: Sequence[Timed], reports: Sequence[SwapReport]) -> None:
    """Draw which models were loaded, for each rule. Needs the extra `plot`. Raises SettingsError."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    names = [each.model.name for each in models]
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "director"}):
        height = 0.9 + len(reports) * (0.6 + ROW_INCHES * len(names))
        figure = Figure(figsize=(10.0, height), layout="constrained")
        axes = figure.subplots(len(reports), 1, squeeze=False)[:, 0]
        for each, axis in zip(reports, axes, strict=True):
            for state, colour in COLOURS.items():
                for row, name in enumerate(names):
                    spans = [
                        (begin_s / 60, (end_s - begin_s) / 60)
                        for loaded, what, begin_s, end_s in each.played.spans
                        if (loaded, what) == (name, state)
                    ]
                    axis.broken_barh(spans, (row - 0.4, 0.8), color=colour)
            axis.set_yticks(range(len(names)), names, fontsize="x-small")
            axis.invert_yaxis()
            figures = f"{each.per_minute:.1f} runs a minute, p95 wait {each.p95_s:.0f} s, {each.swaps} swaps"
            axis.set_title(f"{TITLES[each.rule]}: {figures}", fontsize="small", loc="left")
        axes[-1].set_xlabel("minutes")
        patches = [Patch(color=colour, label=state) for state, colour in COLOURS.items()]
        figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False, fontsize="small")
        save(figure, path)
