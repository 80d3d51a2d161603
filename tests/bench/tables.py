"""Turn results into tables for the terminal and for the page of the benches between its marks."""

import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from tests.bench.ratios import spread
from tests.bench.results import OURS, Measured, Result
from tests.bench.targets import LARGE, TARGETS

# whether less is better → its mark in a table, and its words
DIRECTIONS: Final[Mapping[bool, tuple[str, str]]] = {
    False: ("↑", "more is better"),
    True: ("↓", "less is better"),
}


def measured(result: Result) -> str:
    (before, after), cpus = result.load, result.machine.cores
    lines = [
        f"{result.bench}: {result.what}",
        f"  {result.at}, {result.commit}, {result.machine.redis}, python {result.machine.python}",
        f"  {result.took_s:.0f} s, load {before} → {after} on {cpus} CPUs; durability {_durability(result)}",
    ]
    if result.is_doubtful:
        lines.append("  THE MACHINE WAS BUSY WITH SOMETHING ELSE: conclude nothing from this")
    for figure in result.figures:
        lines.append(f"  {figure.name}{f', {figure.unit}' if figure.unit else ''}")
        lines += [_side(figure, side, values) for side, values in figure.rounds.items()]
    lines += [f"  {side} was left out: {why}" for side, why in result.left_out.items()]
    return "\n".join(lines)


def targets_table(results: Mapping[str, Result], runs: Sequence[Result] = ()) -> str:
    lines = ["| what | target | found | in how many runs | |", "|---|---|---|---|---|"]
    for target in TARGETS:
        found = target.found(results)
        cells = (target.what, target.wanted, target.shown(found), target.over(runs), target.judged(found))
        lines.append(f"| {' | '.join(cells)} |")
    benches = [results[name] for name in dict.fromkeys(target.bench for target in TARGETS) if name in results]
    return "\n".join(
        [*lines, *[""][: len(benches)], *(f"- `{one.bench}`: {one.what}. {about(one)}" for one in benches)]
    )


def pace_table(results: Mapping[str, Result]) -> str:
    result = results.get("drain")
    if result is None:
        return "Not measured yet."
    pace = result.figures[0]
    lines = [caption(result, [pace]), "", f"| | {pace.name} | Director runs |", "|---|---|---|"]
    for side in sorted(pace.rounds, key=lambda side: -median(pace.rounds[side])):
        beside = f"{pace.beside(side)} × as many" if side in pace.references else ""
        lines.append(f"| {'**Director**' if side == OURS else side} | {pace.median(side):,.0f} | {beside} |")
    return "\n".join([*lines, "", about(result, is_captioned=True)])


def peers_table(results: Mapping[str, Result]) -> str:
    result = results.get("drain")
    if result is None:
        return "Not measured yet."
    heads = [_titled(figure, figure.name, result.figures) for figure in result.figures]
    lines = [
        caption(result, result.figures),
        "",
        f"| | {' | '.join(heads)} | ours is |",
        f"|---|{'---|' * len(heads)}---|",
    ]
    pace = result.figures[0]
    for side in sorted(pace.rounds, key=lambda side: -median(pace.rounds[side])):
        cells = [f"{figure.median(side):,.0f}" if side in figure.rounds else "" for figure in result.figures]
        beside = f"{pace.beside(side)} ×" if side in pace.references else ""
        lines.append(f"| {side} | {' | '.join(cells)} | {beside} |")
    return "\n".join([*lines, "", about(result, is_captioned=True)])


def sides_table(results: Mapping[str, Result], bench: str, words: Mapping[str, str]) -> str:
    """Return the medians of some figures, with a column for each side. `words`: of each figure."""
    result = results.get(bench)
    if result is None:
        return f'Not measured yet: `make bench ARGS="--only {bench}"`.'
    figures = [figure for name in words if (figure := result.figure(name)) is not None]
    sides = sorted({side for figure in figures for side in figure.rounds}, key=lambda side: (side != OURS, side))
    rows = [
        (_titled(figure, words[figure.name], figures), *(_median(figure, side) for side in sides)) for figure in figures
    ]
    head = ["", *("**Director**" if side == OURS else side for side in sides)]
    return "\n".join(
        [caption(result, figures), "", *lined(head, rows), "", f"{result.what}.", "", about(result, is_captioned=True)]
    )


def caption(result: Result, figures: Sequence[Measured]) -> str:
    """Return the line above a table: which direction is better, what the values are, of which machine and day."""
    both = [f"{arrow} {word}" for arrow, word in DIRECTIONS.values()] if _differ(figures) else []
    better = ", ".join(both) or DIRECTIONS[figures[0].less_is_better][1].capitalize()
    return f"{better}. Medians on {where_and_when(result)}."


def where_and_when(result: Result) -> str:
    return f"{result.machine.cores} × {result.machine.cpu}, {result.at[:10]}"


def _titled(figure: Measured, words: str, beside: Sequence[Measured]) -> str:
    """Return the words of a figure, its unit, and which direction is better where the table has both."""
    unit = f", {figure.unit}" if figure.unit else ""
    arrow = f"\u00a0{DIRECTIONS[figure.less_is_better][0]}" if _differ(beside) else ""
    return f"{words}{unit}{arrow}"


def _differ(figures: Sequence[Measured]) -> bool:
    return len({figure.less_is_better for figure in figures}) > 1


def _median(figure: Measured, side: str) -> str:
    if side not in figure.rounds:
        return ""
    value = figure.median(side)
    return f"{value:,.0f}" if value >= LARGE else f"{value:.2g}"


def about(result: Result, *, is_captioned: bool = False) -> str:
    """Return how a result was measured. A caption has said its machine and its day."""
    machine = result.machine
    facts = [] if is_captioned else [result.at[:10]]
    facts += [f"commit {result.commit}"] + ([] if is_captioned else [f"{machine.cores} × {machine.cpu}"])
    facts += [machine.redis, f"python {machine.python}", f"durability {_durability(result)}"]
    left_out = "".join(f" Left out: {side} ({why})." for side, why in result.left_out.items())
    doubt = " **The machine was busy with something else.**" if result.is_doubtful else ""
    return f"{', '.join(facts)}, load {result.load[0]} before, {result.load[1]} after.{doubt}{left_out}"


def lined(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def put_into(text: str, name: str, table: str) -> str:
    mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not mark.search(text):
        raise ValueError(f"no place for a table {name!r}")
    return mark.sub(lambda found: f"{found[1]}{table}\n{found[2]}", text)


def _side(figure: Measured, side: str, values: Sequence[float]) -> str:
    beside = f"  ours is {figure.beside(side)} ×" if side in figure.references else ""
    wide = f" ± {spread(values) / 2:.0%}" if len(values) > 1 else ""
    return f"    {side:14}{median(values):>12,.4g}{wide:>8}{beside}"


def _durability(result: Result) -> str:
    levels = set(result.durability.values())
    if len(levels) == 1:
        return f"{levels.pop()} on all sides"
    return ", ".join(f"{side}: {level}" for side, level in sorted(result.durability.items(), key=_ours_first))


def _ours_first(side: tuple[str, str]) -> tuple[bool, str]:
    return not side[0].startswith(OURS), side[0]
