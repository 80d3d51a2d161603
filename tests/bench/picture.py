"""Draw lines as SVG. The same figures give the same bytes, so a test sees whether a picture is of the figures that were
kept: pictures of a library differ from release to release of it. One panel is below the other, so that a telephone
shows words that can be read, and the colours follow the theme of the reader.
"""

from collections.abc import Sequence
from html import escape
from itertools import count, takewhile
from math import floor, log, log10
from typing import Final

from msgspec import Struct

from tests.site.draw import colours

WIDE: Final = 330  # of a panel, without what is written beside it
HIGH: Final = 150
LEFT: Final = 62
TOP: Final = 52
BELOW: Final = 40
GAP: Final = 18
MOST_TICKS: Final = 5
MOST_DOTS: Final = 20
ROOM: Final = 1.06  # above the highest point
# name: light, dark
COLOURS: Final = {
    "ink": ("#333333", "#dde1ea"),
    "paper": ("#ffffff", "#1f2430"),
    "grid": ("#e5e5e5", "#3a4152"),
    "mark": ("#bbbbbb", "#6b7488"),
    "line0": ("#3b5bdb", "#91a7ff"),
    "line1": ("#d9480f", "#ffa94d"),
    "line2": ("#2b8a3e", "#69db7c"),
    "line3": ("#9c36b5", "#e599f7"),
    "line4": ("#0b7285", "#66d9e8"),
}
LINES: Final = [name for name in COLOURS if name.startswith("line")]
STYLE: Final = (
    "svg{font:12px system-ui,sans-serif;%s}text{fill:var(--ink)}.title{font-size:14px;font-weight:600}"
    "@media (prefers-color-scheme:dark){svg{%s}}"
)


class Line(Struct, frozen=True):
    """`is_estimate`: it is dashed and has no dots."""

    name: str
    points: Sequence[tuple[float, float]]
    is_estimate: bool = False


class Panel(Struct, frozen=True, kw_only=True):
    """`by_factor`: equal factors of x have equal widths; else x begins at 0. `marks`: values of x with a grey line."""

    title: str
    x: str
    lines: Sequence[Line]
    by_factor: bool = False
    marks: Sequence[float] = ()


def drawn(panels: Sequence[Panel]) -> str:
    wide, high = LEFT + WIDE + GAP, TOP + HIGH + BELOW
    shown = "".join(
        f'<g transform="translate(0 {number * high})">{_panel(panel)}</g>\n' for number, panel in enumerate(panels)
    )
    style = STYLE % (colours(0, COLOURS), colours(1, COLOURS))
    size = f'viewBox="0 0 {wide} {len(panels) * high}" width="{wide}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n'
        f'<style>{style}</style>\n<rect width="100%" height="100%" fill="var(--paper)"/>\n{shown}</svg>\n'
    )


def ticks(most: float) -> list[float]:
    """Return round numbers from 0 to `most`, at most six."""
    if most <= 0:
        return [0.0]
    least = most / MOST_TICKS
    scale = 10 ** floor(log10(least))
    step = next(each * scale for each in (1, 2, 5, 10) if each * scale >= least * 0.999)
    return list(takewhile(lambda value: value <= most, (number * step for number in count())))


def _panel(panel: Panel) -> str:
    points = [point for line in panel.lines for point in line.points]
    xs = sorted({x for x, _ in points} | (set() if panel.by_factor else {0.0}))
    most = ROOM * max(y for _, y in points) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        part = log(x / xs[0]) / log(xs[-1] / xs[0]) if panel.by_factor else (x - xs[0]) / (xs[-1] - xs[0])
        return round(LEFT + part * WIDE, 1), round(TOP + HIGH * (1 - y / most), 1)

    parts = [f'<text x="{LEFT}" y="16" class="title">{escape(panel.title)}</text>']
    for value in ticks(most):
        _, y = place(xs[0], value)
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + WIDE}" y1="{y}" y2="{y}" stroke="var(--grid)"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{_number(value)}</text>')
    for x_of in panel.marks:
        x, _ = place(x_of, 0)
        parts.append(
            f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{TOP + HIGH}" stroke="var(--mark)" stroke-dasharray="2 3"/>'
        )
    for x_of in xs if panel.by_factor else ticks(xs[-1]):
        x, _ = place(x_of, 0)
        parts.append(f'<text x="{x}" y="{TOP + HIGH + 15}" text-anchor="middle">{_number(x_of)}</text>')
    parts.append(f'<text x="{LEFT + WIDE / 2}" y="{TOP + HIGH + 31}" text-anchor="middle">{escape(panel.x)}</text>')
    at = float(LEFT)
    for line, name in zip(panel.lines, LINES, strict=False):
        colour = f"var(--{name})"
        parts.append(_line(line, colour, [place(*point) for point in line.points]))
        parts.append(f'<text x="{at}" y="36" style="fill:{colour}">{_key(line)} {escape(line.name)}</text>')
        at += 28 + 6.5 * len(line.name)
    return "".join(parts)


def _line(line: Line, colour: str, places: Sequence[tuple[float, float]]) -> str:
    way = " ".join(f"{x},{y}" for x, y in places)
    if line.is_estimate:
        return f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-dasharray="6 4"/>'
    dots = [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in places] if len(places) <= MOST_DOTS else []
    return f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.5"/>{"".join(dots)}'


def _key(line: Line) -> str:
    return "- -" if line.is_estimate else "—"


def _number(value: float) -> str:
    return f"{value:,.10g}"
