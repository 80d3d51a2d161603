"""Show reports as text, with a column for each policy and number of slots, or as a picture."""

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from director.core.errors import SettingsError
from director.core.ids import LANES
from director.lab.simulate.report import Kept, Report, TraceReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS: Final = (".svg", ".png")
STYLES: Final = {"all": "-", "heaviest": "--", "lightest": ":"}
SIZE: Final = (10.0, 9.0)  # inches
MOST_LINES: Final = 12  # more would have no colour of their own
WIDEST: Final = 100  # characters of a table
GAP: Final = "  "


def tables(trace: TraceReport, reports: Sequence[Report]) -> str:
    """Return all of it; tables are one below the other if they do not fit beside each other."""
    rows = {"": [report.name for report in reports], **_rows(reports)}
    heads = max(len(name) for name in rows)
    width = max(8, *(len(cell) for cells in rows.values() for cell in cells))
    each = max(1, (WIDEST - heads) // (width + len(GAP)))
    found = [
        "\n".join(
            GAP.join([name.ljust(heads), *(cell.rjust(width) for cell in cells[at : at + each])]).rstrip()
            for name, cells in rows.items()
        )
        for at in range(0, len(reports), each)
    ]
    return "\n\n".join([_show_trace(trace), *found])


def _show_trace(trace: TraceReport) -> str:
    lines = [
        f"{trace.predictions:,} predictions of {trace.accounts:,} accounts came in {_span(trace.span_s)}, "
        f"with {_span(trace.work_s)} of runs."
    ]
    notes = {
        "had not ended, and got the mean run time of the others": trace.guessed,
        "were left out: they ended before they were claimed, or were moved": trace.left_out,
        "entries of the log were cut before they were written": trace.missed,
    }
    return "\n".join(lines + [f"{count:,} {text}." for text, count in notes.items() if count])


def _rows(reports: Sequence[Report]) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    for group in dict.fromkeys(chain.from_iterable(report.waits for report in reports)):
        who = {"heaviest": "heaviest 10 %", "lightest": "lightest half"}.get(group, group)
        waits = [report.waits.get(group) for report in reports]
        for what in ("p50", "p90", "p99"):
            rows[f"wait, s: {who} {what}"] = [f"{getattr(wait, what):.2f}" if wait else "–" for wait in waits]
    rows["utilisation, %"] = [f"{100 * report.utilisation:.1f}" for report in reports]
    rows["runs a minute"] = [f"{report.per_minute:.1f}" for report in reports]
    rows["all done after"] = [_span(report.span_s) for report in reports]
    rows["waiting, mean"] = [f"{report.waiting_mean:.1f}" for report in reports]
    rows["waiting, most"] = [f"{report.waiting_most:,}" for report in reports]
    rows["Jain's index of fair shares"] = ["–" if report.jain is None else f"{report.jain:.3f}" for report in reports]
    for code in sorted({code for report in reports for code in report.refused}):
        rows[f"refused: {code}"] = [f"{report.refused.get(code, 0):,}" for report in reports]
    for lane in LANES:
        if any(lane in report.objectives for report in reports):
            rows[f"{lane} started in time, %"] = [_show_objective(report.objectives.get(lane)) for report in reports]
    return rows


def _show_objective(kept: Kept | None) -> str:
    return f"{100 * kept.kept:.1f} {'≥' if kept.ok else '<'} {100 * kept.share:g}" if kept else "–"


def _span(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def check(path: Path) -> None:
    """Raise SettingsError if no picture can be written there: better now than after minutes of play."""
    if path.suffix.lower() not in KINDS:
        raise SettingsError(f"{path} is not the name of a picture: it must end in {' or '.join(KINDS)}.")
    if find_spec("matplotlib") is None:
        raise SettingsError("a plot needs a package: pip install matplotlib. Or leave out --plot.")
    if not path.parent.is_dir():
        raise SettingsError(f"{path} cannot be written: there is no folder {path.parent}.")


def plot(path: Path, reports: Sequence[Report]) -> None:
    """Draw into one SVG or PNG; needs the extra `plot`. The same reports give the same bytes of SVG. Raises
    SettingsError.
    """
    import matplotlib
    from matplotlib.figure import Figure

    # text stays text, so it can be searched; ids depend on what is drawn, not on chance
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "director"}):
        figure = Figure(figsize=SIZE, layout="constrained")
        waits, waiting, used = figure.subplots(3, 1, sharex=True)
        for number, report in enumerate(reports[:MOST_LINES]):
            _draw(waits, waiting, used, report, colour=f"C{number}")
        for axes, text in ((waits, "wait by arrival, p90, s"), (waiting, "waiting"), (used, "slots in use, %")):
            axes.set_ylabel(text)
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
        waits.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small", frameon=False)
        used.set_xlabel("minutes")
        save(figure, path)


def save(figure: "Figure", path: Path) -> None:
    """Write a picture without the time at which it was made. Raises SettingsError."""
    is_svg = path.suffix.lower() == ".svg"
    try:
        figure.savefig(path, dpi=110, metadata={"Date": None} if is_svg else None)
    except OSError as exc:
        raise SettingsError(f"{path} cannot be written: {exc.strerror}.") from exc


def _draw(waits: "Axes", waiting: "Axes", used: "Axes", report: Report, *, colour: str) -> None:
    minutes = [at_s / 60 for at_s in report.series.at_s]
    groups = [name for name in ("heaviest", "lightest") if name in report.waits] or ["all"]
    for name in groups:
        shown = [
            (at, wait) for at, wait in zip(minutes, report.series.wait_p90_s[name], strict=True) if wait is not None
        ]
        label = report.name if name == "all" else f"{report.name}, {name}"
        waits.plot([at for at, _ in shown], [wait for _, wait in shown], STYLES[name], color=colour, label=label)
    waiting.plot(minutes, report.series.waiting, color=colour)
    used.plot(minutes, [100 * part for part in report.series.utilisation], color=colour)
