"""Run the benches: `make bench`, `make bench-check`, `make bench-keep`, `make soak`."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio

from director.lab.chaos.plan import SERVER_KINDS
from tests.bench import interpreter
from tests.bench.benches import gateway, slots
from tests.bench.benches.options import Options
from tests.bench.capacity import inputs_of
from tests.bench.capacity import table as capacity_table
from tests.bench.curves import scale_picture, scale_table
from tests.bench.deaths.command import judge_again, named, try_all
from tests.bench.deaths.faults import FREEZE_S, KINDS
from tests.bench.deaths.page import KEPT as KEPT_DEATHS
from tests.bench.deaths.page import deaths_table, read_report
from tests.bench.deaths.sides import SIDES
from tests.bench.deaths.trial import Trial
from tests.bench.judge import changes, told
from tests.bench.machine import load
from tests.bench.processes import ROOT
from tests.bench.results import Result, append, latest, pooled, read
from tests.bench.results_page import (
    campaign_tables,
    figures_tables,
    keep_campaign,
    keep_proof,
    missing_table,
    proof_tables,
    read_campaign,
    read_proof,
)
from tests.bench.sides.servers import DURABILITY
from tests.bench.soak import SoakOptions, soak, soak_picture
from tests.bench.suite import AT_SCALE, BENCHES, PAIRED, run, told_of
from tests.bench.tables import pace_table, peers_table, put_into, sides_table, targets_table

FOLDER: Final = Path(__file__).parent
KEPT: Final = FOLDER / "history.jsonl"
PAGE: Final = ROOT / "docs/reference/internals/benches.md"
PERFORMANCE: Final = ROOT / "docs/explanation/performance.md"
CAPACITY: Final = ROOT / "docs/explanation/capacity.md"
PICTURES: Final = ROOT / "docs/assets"
RESULTS: Final = ROOT / ".bench" / "results.jsonl"
DEATHS: Final = ROOT / ".bench" / "deaths"


def main(arguments: list[str]) -> int:
    """Return 1 if a ratio has become worse or a bench broke off."""
    given = _parser().parse_args(arguments)
    if given.measures:
        interpreter.use_fastest()
    os.environ["PYTHONPATH"] = str(ROOT)  # of all that is started from here
    code: int = given.act(given)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    acts = parser.add_subparsers(required=True, metavar="COMMAND")

    bench = acts.add_parser("run", help="measure, and print what was found")
    _add_options(bench)
    bench.set_defaults(act=_run, measures=True)

    check = acts.add_parser("check", help="measure without peers, and fail where a ratio is worse than the kept one")
    _add_options(check)
    check.add_argument("--judge", action="store_true", help="measure nothing: judge the latest results")
    check.set_defaults(act=_check, measures=True, no_peers=True, only=list(PAIRED))

    soaking = acts.add_parser(
        "soak", help="half of what it can do, for half an hour, with restarts: does anything grow?"
    )
    soaking.add_argument("--minutes", type=float, default=30.0, metavar="N", help="how long (%(default)s)")
    soaking.add_argument("--durability", choices=tuple(DURABILITY), default="always", help="of Redis (%(default)s)")
    soaking.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="where results go (%(default)s)")
    soaking.set_defaults(act=_soak, measures=True)

    deaths = acts.add_parser("deaths", help="kill workers and Redis under ours and other queues: what do they lose?")
    deaths.add_argument(
        "--sides", default="", metavar="A,B", help=f"of {', '.join(dict.fromkeys(side.queue for side in SIDES))} (all)"
    )
    deaths.add_argument("--seed", type=int, default=1, metavar="N", help="of the faults (%(default)s)")
    deaths.add_argument("--out", type=Path, default=DEATHS, metavar="DIR", help="journals and logs (%(default)s)")
    deaths.add_argument("--jobs", type=int, default=480, metavar="N", help="how many (%(default)s)")
    deaths.add_argument(
        "--kinds", default=",".join(KINDS), metavar="A,B", help="faults before the freeze (%(default)s)"
    )
    deaths.add_argument("--freeze", type=float, default=FREEZE_S, metavar="S", help="how long (%(default)g s)")
    deaths.add_argument("--limit", type=float, default=145.0, metavar="S", help="of each side (%(default)g s)")
    deaths.add_argument("--judge", action="store_true", help="try nothing: judge the journals of the folder")
    deaths.set_defaults(act=_deaths, measures=True)

    keep = acts.add_parser("keep", help="let the latest results be what is compared with, and make the tables of them")
    keep.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="which results (%(default)s)")
    keep.add_argument(
        "--campaign", type=Path, action="append", default=[], metavar="FILE", help="keep this report.json too"
    )
    keep.add_argument("--deaths", type=Path, metavar="FILE", help="keep this report.json of `make deaths` too")
    keep.add_argument("--prove", type=Path, metavar="DIR", help="keep the reports of `make prove` in this folder too")
    keep.set_defaults(act=_keep, measures=False)

    tables = acts.add_parser("tables", help="print the tables of the latest results")
    tables.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="which results (%(default)s)")
    tables.set_defaults(act=_tables, measures=False)
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    usual = [name for name in BENCHES if name not in AT_SCALE]
    slow = f"all but {', '.join(AT_SCALE)}"
    parser.add_argument("--only", type=_names, default=usual, metavar="A,B", help=f"of {', '.join(BENCHES)} ({slow})")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of each side, in turn (%(default)s)")
    parser.add_argument(
        "--part", type=float, default=1.0, metavar="X", help="of the usual length of each (%(default)s)"
    )
    parser.add_argument("--durability", choices=tuple(DURABILITY), default="memory", help="of every side (%(default)s)")
    parser.add_argument("--no-peers", action="store_true", help="leave out what has to be installed")
    parser.add_argument("--waiting", type=int, default=100_000, metavar="N", help="in the full queue (%(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="where results go (%(default)s)")


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in BENCHES]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(BENCHES)}")
    return names


def _run(given: argparse.Namespace) -> int:
    found = _measure(given)
    runs = read(given.results)
    known = latest(runs)
    print(targets_table(known, runs))
    print(
        f"of {len(known)} benches, measured from {min((one.at for one in known.values()), default='now')} on",
        flush=True,
    )
    return 0 if set(found) == set(given.only) else 1


def _check(given: argparse.Namespace) -> int:
    kept = latest(read(KEPT))
    now = latest(read(given.results)) if given.judge else _measure(given)
    found = changes(kept, now)
    if (doubtful := sorted({change.bench for change in found if change.verdict != "ok"})) and not given.judge:
        print(f"once more, and judged by the rounds of both: {', '.join(doubtful)}", flush=True)
        given.only = doubtful
        now |= {bench: pooled(now[bench], again) for bench, again in _measure(given).items()}
        found = changes(kept, now)
    print(told(found) or "There is nothing to compare with: no ratio was kept.")
    return 1 if not found or any(change.is_regression for change in found) else 0


def _measure(given: argparse.Namespace) -> dict[str, Result]:
    options = Options(
        say=_say,
        rounds=given.rounds,
        part=given.part,
        durability=given.durability,
        with_peers=not given.no_peers,
        waiting=given.waiting,
    )
    return run(given.only, options, given.results)


def _soak(given: argparse.Namespace) -> int:
    before, began = load(), time.monotonic()
    options = SoakOptions(say=_say, minutes=given.minutes, durability=given.durability)
    try:
        found, is_flat = anyio.run(soak, options)
    except (ChildProcessError, TimeoutError) as exc:
        _say(f"soak BROKE OFF: {exc}")
        return 1
    result = told_of("soak", found, load_before=before, began=began)
    append(given.results, [result])
    _say(f"soak: {result.what}")
    return 0 if is_flat else 1


def _deaths(given: argparse.Namespace) -> int:
    if given.judge:
        _say(deaths_table(judge_again(given.out)))
        return 0
    kinds = tuple(kind for kind in given.kinds.split(",") if kind)
    trial = Trial(seed=given.seed, jobs=given.jobs, kinds=kinds, freeze_s=given.freeze, limit_s=given.limit)
    report = try_all(named(given.sides), trial, given.out, _say)
    return 1 if report.left_out else 0


def _keep(given: argparse.Namespace) -> int:
    kept = read(KEPT)
    newer = [result for result in read(given.results) if result not in kept]
    append(KEPT, newer)
    for report in given.campaign:
        keep_campaign(report)
    if given.prove:
        keep_proof(given.prove)
    if given.deaths:
        KEPT_DEATHS.write_bytes(given.deaths.read_bytes())
    for page, made in tables_of(latest(kept + newer), kept + newer).items():
        text = page.read_text(encoding="utf-8")
        for name, table in made.items():
            text = put_into(text, name, table)
        page.write_text(text, encoding="utf-8")
    for path, picture in pictures_of(latest(kept + newer)).items():
        path.write_text(picture, encoding="utf-8")
    print(f"kept {', '.join(result.bench for result in newer) or 'nothing new'}; the pages have the tables")
    return 0


def _tables(given: argparse.Namespace) -> int:
    runs = read(given.results)
    for made in tables_of(latest(runs), runs).values():
        print("\n\n".join(made.values()) + "\n")
    return 0


def tables_of(results: dict[str, Result], runs: Sequence[Result] = ()) -> dict[Path, dict[str, str]]:
    return {
        PAGE: {"targets": targets_table(results, runs), "peers": peers_table(results)},
        PERFORMANCE: {
            "pace": pace_table(results),
            "gateway": sides_table(results, "gateway", gateway.COLUMNS),
            "slots": sides_table(results, "slots", slots.COLUMNS),
        },
        CAPACITY: {"capacity": _capacity(results)},
        ROOT / "docs/reference/internals/curves.md": {"curves": scale_table(results)},
        ROOT / "docs/reference/internals/measurements.md": {
            **{f"campaign {kind}": campaign_tables(read_campaign(kind), kind) for kind in SERVER_KINDS},
            "prove": proof_tables(read_proof()),
            "deaths": deaths_table(read_report()),
            "figures": figures_tables(results),
            "missing": missing_table(results),
        },
    }


def pictures_of(results: dict[str, Result]) -> dict[Path, str]:
    """Return the pictures of what was measured."""
    drawn = {"scale": scale_picture, "soak": soak_picture}
    return {PICTURES / f"{name}.svg": draw(results[name]) for name, draw in drawn.items() if name in results}


def _capacity(results: dict[str, Result]) -> str:
    try:
        return capacity_table(inputs_of(results))
    except ValueError as exc:
        return f"Not measured yet: {exc}."


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
