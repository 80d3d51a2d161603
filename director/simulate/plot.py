"""Reports as a picture, an SVG or a PNG by its name: waits, queue length and use of the slots over time.

Needs the extra `plot`; all else of a simulation does without. The same reports are the same bytes of SVG.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from director.core.errors import SettingsError
from director.simulate.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ("check", "plot")

KINDS: Final = (".svg", ".png")
STYLES: Final = {"all": "-", "heaviest": "--", "lightest": ":"}
SIZE: Final = (10.0, 9.0)  # inches
MOST_LINES: Final = 12  # more have no colour of their own


def check(path: Path) -> None:
    """Could a picture be drawn there? Raises SettingsError: better before minutes of play than after."""
    if path.suffix.lower() not in KINDS:
        raise SettingsError(f"{path} is no picture's name: it ends in {' or '.join(KINDS)}.")
    if find_spec("matplotlib") is None:
        raise SettingsError("a plot needs matplotlib: install director[plot], or leave out --plot.")
    if not path.parent.is_dir():
        raise SettingsError(f"{path} cannot be written: there is no folder {path.parent}.")


def plot(path: Path, reports: Sequence[Report]) -> None:
    """Draw them into one picture. Raises SettingsError."""
    import matplotlib
    from matplotlib.figure import Figure

    # text stays text, and is found by whoever searches; ids are made of what is drawn, not by chance
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "director"}):
        figure = Figure(figsize=SIZE, layout="constrained")
        waits, waiting, used = figure.subplots(3, 1, sharex=True)
        for number, report in enumerate(reports[:MOST_LINES]):
            _draw(waits, waiting, used, report, colour=f"C{number}")
        for axes, text in (
            (waits, "wait by arrival, p90, s"),
            (waiting, "waiting"),
            (used, "slots in use, %"),
        ):
            axes.set_ylabel(text)
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
        waits.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small", frameon=False)
        used.set_xlabel("minutes")
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
