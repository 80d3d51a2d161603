"""A report as text: what was played, and a table in which each policy with its slots is a column. Pure."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Final

from director.core.ids import LANES
from director.simulate.report import Report, TraceReport

__all__ = ("told",)

WIDEST: Final = 100
GAP: Final = "  "

Cell = Callable[[Report], str]


def told(trace: TraceReport, reports: Sequence[Report]) -> str:
    """All of it; tables one below the other where they would not fit beside each other."""
    rows = _rows(reports)
    heads = max(len(name) for name in rows)
    width = max(8, *(len(cell(report)) for cell in rows.values() for report in reports))
    width = max(width, *(len(report.name) for report in reports))
    each = max(1, (WIDEST - heads) // (width + len(GAP)))
    tables = [_table(rows, reports[at : at + each], heads, width) for at in range(0, len(reports), each)]
    return "\n\n".join([_played(trace), *tables])


def _played(trace: TraceReport) -> str:
    lines = [
        f"{trace.predictions:,} predictions of {trace.accounts:,} accounts came in {_span(trace.span_s)}, "
        f"with {_span(trace.work_s)} of runs."
    ]
    notes = {
        "had not ended, and took as long as the others on average": trace.guessed,
        "ended without having been claimed, or were moved, and were left out": trace.left_out,
        "lines of the log were missed when it was written": trace.missed,
    }
    return "\n".join(lines + [f"{count:,} {text}." for text, count in notes.items() if count])


def _table(rows: Mapping[str, Cell], reports: Sequence[Report], heads: int, width: int) -> str:
    lines = [["", *(report.name for report in reports)]]
    lines += [[name, *(cell(report) for report in reports)] for name, cell in rows.items()]
    return "\n".join(
        GAP.join([line[0].ljust(heads), *(cell.rjust(width) for cell in line[1:])]).rstrip() for line in lines
    )


def _rows(reports: Sequence[Report]) -> dict[str, Cell]:
    groups = list(dict.fromkeys(chain.from_iterable(report.waits for report in reports)))
    rows: dict[str, Cell] = {}
    for group in groups:
        for what in ("p50", "p90", "p99"):
            rows[f"wait, s: {_who(group)} {what}"] = _wait_cell(group, what)
    rows["utilisation, %"] = lambda report: f"{100 * report.utilisation:.1f}"
    rows["runs a minute"] = lambda report: f"{report.per_minute:.1f}"
    rows["all done after"] = lambda report: _span(report.span_s)
    rows["waiting, mean"] = lambda report: f"{report.waiting_mean:.1f}"
    rows["waiting, most"] = lambda report: f"{report.waiting_most:,}"
    rows["Jain's index of fair shares"] = lambda report: "–" if report.jain is None else f"{report.jain:.3f}"
    for code in sorted({code for report in reports for code in report.refused}):
        rows[f"refused: {code}"] = _refused_cell(code)
    for lane in LANES:
        kept = next((report.objectives[lane] for report in reports if lane in report.objectives), None)
        if kept:
            rows[f"{lane} started in time, %"] = _kept_cell(lane)
    return rows


def _who(group: str) -> str:
    return {"heaviest": "heaviest 10 %", "lightest": "lightest half"}.get(group, group)


def _wait_cell(group: str, what: str) -> Cell:
    def cell(report: Report) -> str:
        wait = report.waits.get(group)
        return "–" if wait is None else f"{getattr(wait, what):.2f}"

    return cell


def _refused_cell(code: str) -> Cell:
    return lambda report: f"{report.refused.get(code, 0):,}"


def _kept_cell(lane: str) -> Cell:
    def cell(report: Report) -> str:
        kept = next((kept for name, kept in report.objectives.items() if name == lane), None)
        return "–" if kept is None else f"{100 * kept.kept:.1f} {'≥' if kept.ok else '<'} {100 * kept.share:g}"

    return cell


def _span(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
