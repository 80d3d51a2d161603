"""Turn results into tables for the terminal and for the page of the benches between its marks."""

import re
from collections.abc import Mapping, Sequence
from statistics import median

from tests.bench.ratios import spread
from tests.bench.results import OURS, Measured, Result
from tests.bench.targets import LARGE, TARGETS


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
    lines = [f"| | {pace.name} | Director runs |", "|---|---|---|"]
    for side in sorted(pace.rounds, key=lambda side: -median(pace.rounds[side])):
        beside = f"{pace.beside(side)} × as many" if side in pace.references else ""
        lines.append(f"| {'**Director**' if side == OURS else side} | {pace.median(side):,.0f} | {beside} |")
    return "\n".join([*lines, "", about(result)])


def peers_table(results: Mapping[str, Result]) -> str:
    result = results.get("drain")
    if result is None:
        return "Not measured yet."
    names = [figure.name for figure in result.figures]
    heads = " | ".join(f"{figure.name}{f', {figure.unit}' if figure.unit else ''}" for figure in result.figures)
    lines = [f"| | {heads} | ours is |", f"|---|{'---|' * len(names)}---|"]
    pace = result.figures[0]
    for side in sorted(pace.rounds, key=lambda side: -median(pace.rounds[side])):
        cells = [f"{figure.median(side):,.0f}" if side in figure.rounds else "" for figure in result.figures]
        beside = f"{pace.beside(side)} ×" if side in pace.references else ""
        lines.append(f"| {side} | {' | '.join(cells)} | {beside} |")
    return "\n".join([*lines, "", about(result)])


def sides_table(results: Mapping[str, Result], bench: str, columns: Mapping[str, str]) -> str:
    """Return the medians of some figures, with a row for each side. `columns`: the head of each figure."""
    result = results.get(bench)
    if result is None:
        return f'Not measured yet: `make bench ARGS="--only {bench}"`.'
    figures = [figure for name in columns if (figure := result.figure(name)) is not None]
    sides = dict.fromkeys(side for figure in figures for side in figure.rounds)
    heads = [f"{columns[figure.name]}{f', {figure.unit}' if figure.unit else ''}" for figure in figures]
    rows = [
        ("**Director**" if side == OURS else side, *(_median(figure, side) for figure in figures))
        for side in sorted(sides, key=lambda side: (side != OURS, side))
    ]
    return "\n".join([*lined(["", *heads], rows), "", f"{result.what}.", "", about(result)])


def _median(figure: Measured, side: str) -> str:
    if side not in figure.rounds:
        return ""
    value = figure.median(side)
    return f"{value:,.0f}" if value >= LARGE else f"{value:.2g}"


def about(result: Result) -> str:
    machine = result.machine
    facts = [result.at[:10], f"commit {result.commit}", f"{machine.cores} × {machine.cpu}", machine.redis]
    facts += [f"python {machine.python}", f"durability {_durability(result)}"]
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
