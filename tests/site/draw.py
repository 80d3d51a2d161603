"""Draw the pictures of the documentation: `python -m tests.site.draw` makes docs/assets/drawings/NAME.svg from each
NAME.toml beside this file.

A picture is 440 units wide, so that it can be read on a telephone. It has these parts, in any number:

- `[[box]]`: `at` (left, top), `size`, `text` (lines; the first is bold), `kind`, and a `name` that arrows may use.
- `[[arrow]]`: `path`, at least two points, each `[x, y]` or a side of a box, as `"api.right"`. Its `text` goes to `at`.
- `[[text]]`: words at a point, with `anchor` start, middle or end.
- `[[row]]`: one tile for each letter of `tiles`, from `at` to the right.

`about` says in words what the picture shows. The picture follows the theme of its reader: standing alone by
`prefers-color-scheme`, and in a page of the site by the switch of the site (see `inline`).
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

SOURCES: Final = Path(__file__).parent / "drawings"
PICTURES: Final = Path(__file__).parents[2] / "docs/assets/drawings"
WIDTH: Final = 440
FONT: Final = 14
SMALL: Final = 12.5
LINE: Final = 17
TIP: Final = 7

# name: light, dark
COLOURS: Final = {
    "ink": ("#1d2433", "#e6e9f0"),
    "soft": ("#566074", "#a9b2c3"),
    "line": ("#7b869b", "#8791a6"),
    "paper": ("#ffffff", "#232733"),
    "plain": ("#f1f3f8", "#2d3342"),
    "own": ("#e3e8fb", "#313a68"),
    "own-line": ("#4a5cc7", "#93a2f5"),
    "good": ("#dcf3e4", "#1f4633"),
    "good-line": ("#2a8a54", "#63c98f"),
    "bad": ("#fbe3e0", "#592b2b"),
    "bad-line": ("#c0392b", "#f08a7e"),
    "warm": ("#fdf0d5", "#4d3f1f"),
    "warm-line": ("#a86f00", "#e0b25c"),
}
RULES: Final = f"""
svg.drawing{{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;font-size:{FONT}px}}
svg.drawing text{{fill:var(--ink)}}
svg.drawing .head{{font-weight:600}}
svg.drawing .small{{font-size:{SMALL}px;fill:var(--soft)}}
svg.drawing .bad-text{{fill:var(--bad-line)}}
svg.drawing .good-text{{fill:var(--good-line)}}
svg.drawing rect{{stroke-width:1.4;stroke:var(--line);fill:var(--plain)}}
svg.drawing .own{{fill:var(--own);stroke:var(--own-line)}}
svg.drawing .good{{fill:var(--good);stroke:var(--good-line)}}
svg.drawing .bad{{fill:var(--bad);stroke:var(--bad-line)}}
svg.drawing .warm{{fill:var(--warm);stroke:var(--warm-line)}}
svg.drawing .group{{fill:none;stroke-dasharray:5 4}}
svg.drawing .bare{{fill:none;stroke:none}}
svg.drawing path{{fill:none;stroke:var(--line);stroke-width:1.6}}
svg.drawing .tip{{fill:var(--line);stroke:none}}
svg.drawing .dashed{{stroke-dasharray:5 4}}
svg.drawing .bad-arrow{{stroke:var(--bad-line)}}
svg.drawing .bad-tip{{fill:var(--bad-line);stroke:none}}
""".strip().replace("\n", "")
DARK: Final = "@media (prefers-color-scheme:dark){svg.drawing{%s}}"
TILES: Final = {"A": "own", "B": "warm", "C": "good", "↻": "plain"}
NARROW: Final = frozenset("ijlt.,:;'|!()[]I f")
WIDE: Final = frozenset("mwMW…→")
PICTURE: Final = re.compile(r"!\[[^\]]*\]\((?:\.\./)*assets/drawings/([\w-]+)\.svg\)")


class DrawingError(ValueError):
    """A source cannot be drawn: a word does not fit, or a name is unknown."""


def colours(theme: int, table: Mapping[str, tuple[str, str]] = COLOURS) -> str:
    return ";".join(f"--{name}:{both[theme]}" for name, both in table.items())


def style() -> str:
    return f"<style>{RULES}svg.drawing{{{colours(0)}}}{DARK % colours(1)}</style>"


def inline(page: str) -> str:
    """Return a page with its pictures in place of the links to them. In the site the switch of the theme decides, which
    a picture that stands alone cannot see.
    """
    of_site = f"[data-md-color-scheme=slate] svg.drawing{{{colours(1)}}}"

    def picture(found: re.Match[str]) -> str:
        svg = (PICTURES / f"{found[1]}.svg").read_text(encoding="utf-8").replace(DARK % colours(1), of_site)
        return f"<div data-search-exclude>\n{svg}</div>"

    return PICTURE.sub(picture, page)


def width_of(words: str, size: float) -> float:
    """Return about how wide these words are. Fonts differ, so it is rather too much."""
    return size * sum(0.33 if c in NARROW else 0.85 if c in WIDE else 0.7 if c.isupper() else 0.57 for c in words)


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def line_of(words: str, x: float, y: float, *, kind: str = "", anchor: str = "middle") -> str:
    if not 0 <= left_of(words, x, kind, anchor) <= WIDTH - width_of(words, SMALL if "small" in kind else FONT):
        raise DrawingError(f"This leaves the picture: {words}")
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text x="{number(x)}" y="{number(y)}" text-anchor="{anchor}"{of_kind}>{escape(words, quote=False)}</text>'


def left_of(words: str, x: float, kind: str, anchor: str) -> float:
    share = {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
    return x - share * width_of(words, SMALL if "small" in kind else FONT)


def box(one: Mapping[str, Any]) -> Iterator[str]:
    (x, y), (wide, high), kind = one["at"], one["size"], one.get("kind", "plain")
    yield f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" rx="{one.get("round", 7)}" class="{kind}"/>'
    lines = one.get("text", "").splitlines()
    anchor = one.get("anchor", "middle")
    start = y + 19 if kind == "group" else y + (high - LINE * (len(lines) - 1)) / 2 + 5
    for index, words in enumerate(lines):
        of_line = "head" if index == 0 and not one.get("light") else "small"
        if width_of(words, FONT if of_line == "head" else SMALL) > wide - 8:
            raise DrawingError(f"This does not fit into its box: {words}")
        yield line_of(
            words, x + (wide / 2 if anchor == "middle" else 10), start + LINE * index, kind=of_line, anchor=anchor
        )


def point(where: Any, boxes: Mapping[str, Mapping[str, Any]]) -> tuple[float, float]:
    if not isinstance(where, str):
        return where[0], where[1]
    name, _, side = where.partition(".")
    if name not in boxes:
        raise DrawingError(f"No box {name}")
    side, _, moved = side.partition("+")
    (x, y), (wide, high), by = boxes[name]["at"], boxes[name]["size"], float(moved or 0)
    return {
        "left": (x, y + high / 2 + by),
        "right": (x + wide, y + high / 2 + by),
        "top": (x + wide / 2 + by, y),
        "bottom": (x + wide / 2 + by, y + high),
    }[side]


def arrow(one: Mapping[str, Any], boxes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    points = [point(each, boxes) for each in one["path"]]
    kind = one.get("kind", "")
    yield f'<path class="{kind}" d="M{" L".join(f"{number(x)} {number(y)}" for x, y in points)}"/>'
    ends = [(points[-2], points[-1])] + ([(points[1], points[0])] if one.get("both") else [])
    if not one.get("blunt"):
        yield from (tip(*each, kind="bad-tip" if "bad" in kind else "tip") for each in ends)
    if words := one.get("text"):
        x, y = one["at"]
        for index, each in enumerate(words.splitlines()):
            of_text = "small bad-text" if "bad" in kind else "small"
            yield line_of(each, x, y + 16 * index, kind=of_text, anchor=one.get("anchor", "start"))


def tip(before: tuple[float, float], end: tuple[float, float], *, kind: str) -> str:
    (x, y), (to_x, to_y) = before, end
    far = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5
    along_x, along_y = (to_x - x) / far, (to_y - y) / far
    back_x, back_y, half = to_x - TIP * along_x, to_y - TIP * along_y, TIP * 0.55
    corners = [
        end,
        (back_x - half * along_y, back_y + half * along_x),
        (back_x + half * along_y, back_y - half * along_x),
    ]
    return f'<path class="{kind}" d="M{" L".join(f"{number(x)} {number(y)}" for x, y in corners)}Z"/>'


def row(one: Mapping[str, Any]) -> Iterator[str]:
    (x, y), (wide, high) = one["at"], one["size"]
    for index, letter in enumerate(one["tiles"]):
        left = x + index * (wide + 4)
        yield f'<rect x="{left}" y="{y}" width="{wide}" height="{high}" rx="5" class="{TILES.get(letter, "own")}"/>'
        yield line_of(letter, left + wide / 2, y + high / 2 + 5, kind="head")


def words_of(one: Mapping[str, Any]) -> Iterator[str]:
    x, y = one["at"]
    for index, words in enumerate(one["text"].splitlines()):
        yield line_of(words, x, y + LINE * index, kind=one.get("kind", ""), anchor=one.get("anchor", "start"))


def draw(source: str) -> str:
    """Return the picture of a source as SVG. Raises DrawingError where words do not fit."""
    told = tomllib.loads(source)
    boxes = {one["name"]: one for one in told.get("box", []) if "name" in one}
    parts = [
        *(part for one in told.get("arrow", []) for part in arrow(one, boxes)),  # below the boxes that they pass
        *(part for one in told.get("box", []) for part in box(one)),
        *(part for one in told.get("row", []) for part in row(one)),
        *(part for one in told.get("text", []) for part in words_of(one)),
    ]
    size = f'width="{WIDTH}" viewBox="0 0 {WIDTH} {told["height"]}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" {size} role="img" '
        f'aria-label="{escape(told["about"])}">\n{style()}\n' + "\n".join(parts) + "\n</svg>\n"
    )


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for source in sorted(SOURCES.glob("*.toml")):
        (PICTURES / f"{source.stem}.svg").write_text(draw(source.read_text(encoding="utf-8")), encoding="utf-8")
        print(PICTURES / f"{source.stem}.svg")


if __name__ == "__main__":
    main()
