"""Commands that try or measure the service: `director simulate`, `chaos`, `prove` and `bench`. Their imports are most
of the product, so each is made only when its command runs.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from director.cli.arguments import HOME, JSON, arg, command, flag, group, whole
from director.cli.output import harmless
from director.cli.tables import Answer, progress
from director.core.errors import SettingsError
from director.local.home import Home

if TYPE_CHECKING:
    from director.lab.chaos.campaign import CampaignReport
    from director.lab.chaos.checker import Report
    from director.lab.simulate.trace import Trace

MOST_SLOTS: Final = 4096
MOST_PLAYS: Final = 12
MADE: Final = ("heavy-light", "batches", "even", "lanes", "constant", "turns")
RULES: Final = ("director", "fcfs", "lru", "collation")
MOST_SEEDS: Final = 1_000
MOST_WORKERS: Final = 64
MOST_LEASE_S: Final = 600
REPORT: Final = arg("--json FILE", "write the report there", default="")
SERVER_KINDS: Final = ("single", "sentinel", "cluster")
KIND: Final = arg(
    "--kind KIND", f"Redis of the run: {', '.join(SERVER_KINDS)} (single)", choices=SERVER_KINDS, default="single"
)
FAKETIME: Final = arg("--faketime FILE", "libfaketime.so.1, which steps the server's clock (searched for)", default="")
MADE_TITLE: Final = "made traffic, instead of a file"
TEXT: Final = """\
Replay the predictions of a queue with other slots or policies, through the real scripts on a server in memory and
with a simulated clock. Shows the waits, the use of the slots and the shares that would have been. Touches no other
server."""
FORMATS: Final = """\
FILE was written by `director audit --to FILE`, or has lines like
  {"at_s": 0.5, "account": "acme", "lane": "normal", "cost": 1, "run_s": 2.5}
A policy is `fair` (the default of queues), `fifo` (one line for all, for comparison), or a TOML file:
  streams = 16
  size = 2                      # streams of an account's shard
  mode = "bounded"              # or absorb, reject
  max_queued = 200
  objectives.normal = { share = 0.95, within_s = 10 }
  accounts.acme = { weight = 3, max_running = 2, max_queued = 50 }
  accounts."*" = { weight = 1 } # every other
With --pool, lines of a trace also have "model", and a policy is director, fcfs (first come, first served), lru (least
recently used) or collation (all that waits for a loaded model first). Without --policy all four are played.
"""


def _slots(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() and len(part) < 5 and 1 <= int(part) <= MOST_SLOTS for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} are not slots: give numbers from 1 to {MOST_SLOTS}, as in 4,8,16")
    return tuple(dict.fromkeys(int(part) for part in parts))


@command(
    "simulate",
    arg("file FILE", "an audit log, or a trace", nargs="?"),
    arg("--queue", "the queue to replay, if an audit log has several", default=""),
    arg("--slots N[,N…]", "slots; a replay for each number (4)", type=_slots, default=(4,)),
    arg("--pool FILE", "a pool file: play which of its models are loaded, in place of a queue"),
    arg("--policy NAME|FILE", "fair, fifo or a TOML file; repeat it for another replay (fair)", action="append"),
    arg("--plot FILE", "draw the result as .svg or .png; needs matplotlib"),
    JSON,
    arg("--made SHAPE", ", ".join(MADE), choices=MADE, section=MADE_TITLE),
    arg("--minutes N", "minutes of arrivals (%(default)g)", type=float, default=30.0, section=MADE_TITLE),
    arg(
        "--load X",
        "arriving work ÷ capacity of the first --slots (%(default)g)",
        type=float,
        default=1.1,
        section=MADE_TITLE,
    ),
    arg("--accounts N", "accounts beside a heavy one (%(default)s)", type=int, default=20, section=MADE_TITLE),
    arg("--run-s S", "average duration of a run (%(default)g)", type=float, default=2.0, section=MADE_TITLE),
    arg("--seed N", "the same seed makes equal traffic (%(default)s)", type=int, default=1, section=MADE_TITLE),
    about=TEXT,
    epilog=FORMATS,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    examples=(
        "audit.jsonl --queue acme/painter:0123456789ab --slots 4,8,16",
        "trace.jsonl --policy fair --policy fifo --plot waits.svg",
        "--made heavy-light --minutes 30 --slots 4 --policy weights.toml",
        "--pool pool.toml --made even --minutes 10 --plot swaps.svg",
    ),
)
def _simulate(given: argparse.Namespace) -> int:
    return _simulate_swaps(given) if given.pool else _simulate_queue(given)


def _simulate_swaps(given: argparse.Namespace) -> int:
    from director.core.pool_file import read_pool
    from director.core.settings import DirectorSettings
    from director.lab.simulate.show import check
    from director.lab.simulate.swaps_report import plot_swaps, simulate_swaps, slots_at_once, swaps_text, time_models

    picture = Path(given.plot) if given.plot else None
    if picture is not None:
        check(picture)
    rules = list(dict.fromkeys(given.policy or RULES))
    if strange := [rule for rule in rules if rule not in RULES]:
        raise SettingsError(f"{strange[0]!r} is no policy beside --pool. Choose from: {', '.join(RULES)}.")
    pool = read_pool(Path(given.pool), DirectorSettings())
    models = time_models(pool)
    names = tuple(each.model.name for each in models)
    trace = _trace(given, slots=slots_at_once(pool.devices, models), models=names)
    reports = simulate_swaps(pool.devices, models, trace, rules)
    if picture is not None:
        plot_swaps(picture, models, reports)
    return Answer({"plays": reports}, lambda: harmless(swaps_text(trace, reports), sys.stdout)).show(is_json=given.json)


def _simulate_queue(given: argparse.Namespace) -> int:
    import anyio

    from director.lab.simulate.play import try_policy
    from director.lab.simulate.report import simulate, trace_report
    from director.lab.simulate.show import check, plot, tables

    picture = Path(given.plot) if given.plot else None
    if picture is not None:
        check(picture)
    policies = [try_policy(text) for text in given.policy or ("fair",)]
    if len(policies) * len(given.slots) > MOST_PLAYS:
        raise SettingsError(f"that is {len(policies) * len(given.slots)} replays: at most {MOST_PLAYS} at once.")
    trace = _trace(given, slots=given.slots[0])
    with progress() as show:

        def show_progress(name: str, done: int) -> None:
            show(f"» {name}: {done:,} of {len(trace):,}")
            if not done and not sys.stderr.isatty():
                print(f"» {name}", file=sys.stderr, flush=True)

        reports = anyio.run(simulate, trace, policies, given.slots, show_progress, backend_options={"use_uvloop": True})
    if picture is not None:
        plot(picture, reports)
    described = trace_report(trace)
    body = {"trace": described, "plays": reports}
    return Answer(body, lambda: harmless(tables(described, reports), sys.stdout)).show(is_json=given.json)


def _trace(given: argparse.Namespace, *, slots: int, models: Sequence[str] = ()) -> "Trace":
    from director.lab.simulate.reading import read
    from director.lab.simulate.trace import MadeOptions, make_trace

    if bool(given.file) == bool(given.made):
        raise SettingsError("give either a FILE or --made.")
    if given.file:
        return read(Path(given.file), queue=given.queue)
    options = {name: getattr(given, name) for name in ("seed", "minutes", "load", "accounts", "run_s")}
    try:
        return make_trace(
            msgspec.convert({"shape": given.made, "slots": slots, "models": models, **options}, MadeOptions)
        )
    except msgspec.ValidationError as exc:
        raise SettingsError(f"{exc}.") from exc


@command(
    "chaos",
    arg("--seed N", "seed of load and faults (%(default)s)", type=int, default=1),
    arg("--seconds S", "length of the load (%(default)g)", type=float, default=60.0),
    arg("--lease S", "lease of a claim (%(default)g)", type=float, default=15.0),
    arg("--tenants N", "number of accounts (%(default)s)", type=int, default=40),
    KIND,
    FAKETIME,
    REPORT,
    arg("--home DIR", "a new folder for data, journals and logs", default=""),
    flag("--keep", "keep that folder also if every promise was kept"),
    examples=("--seconds 60 --seed 7", "--kind sentinel"),
)
def _chaos(given: argparse.Namespace) -> int:
    """Start a whole service on this machine, let callers use it, and kill, freeze, cut off and fill its parts. Then
    repair all of it, and let a checker name the promises that were broken. The checker reads only Redis and the
    journals of callers, model servers and webhook receivers. The exit code is 1 if a promise was broken. The same seed
    makes the same faults.
    """
    from director.lab.chaos.checker import text
    from director.lab.chaos.run import chaos
    from director.lab.chaos.scene import Options

    options = Options(
        seed=given.seed,
        seconds=given.seconds,
        lease_s=given.lease,
        tenants=given.tenants,
        home=Path(given.home) if given.home else None,
        is_kept=given.keep,
        faketime=given.faketime,
        kind=given.kind,
    )
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    report = chaos(options, _say)
    code = _print_report(report, text(report), given.json)
    if code and load > cores:
        _say(f"The machine was busy before: load {load:.0f} on {cores} cores. That may break rules about times.")
    return code


def _leases(text: str) -> tuple[float, ...]:
    try:
        leases = tuple(float(part) for part in text.split(","))
    except ValueError:
        leases = ()
    if not leases or not all(1 <= lease <= MOST_LEASE_S for lease in leases):
        raise argparse.ArgumentTypeError(f"{text!r} are not leases: give seconds from 1 to {MOST_LEASE_S}, as in 15,3")
    return leases


@command(
    "chaos campaign",
    arg("--out DIR", "folder of the campaign; a folder that has one continues it", required=True),
    arg("--seeds N", "number of runs, with the seeds 1 to N (%(default)s)", type=whole(MOST_SEEDS), default=10),
    arg("--predictions N", "predictions of all runs together (%(default)s)", type=whole(), default=200_000),
    arg("--leases S[,S…]", "leases of a claim, of one run after the other (15,3)", type=_leases, default=(15.0, 3.0)),
    arg(
        "--disk GB",
        "largest size of DIR; no run begins that may exceed it by its 4 GB, 12 on Sentinel (%(default)g)",
        type=float,
        default=20.0,
    ),
    KIND,
    FAKETIME,
    examples=("--out campaign", "--seeds 3 --predictions 60000 --out small"),
)
def _campaign(given: argparse.Namespace) -> int:
    """Run several seeds of `chaos`, one after the other, and report on all of them in DIR/report.json.
    The seeds are written down before the first run, and each run is reported, whatever its outcome. An interrupted
    campaign goes on where it was. The exit code is 1 if a promise was broken, a run broke off, or predictions are
    missing.
    """
    from director.lab.chaos.campaign import Campaign, campaign, keep, text

    wanted = Campaign(
        seeds=tuple(range(1, given.seeds + 1)), predictions=given.predictions, leases=given.leases, kind=given.kind
    )
    out, is_ok = Path(given.out), False
    for report in campaign(wanted, out, disk_gb=given.disk, faketime=given.faketime, say=_say):
        keep(report, out)
        print(text(report), flush=True)
        is_ok = report.ok
    return 0 if is_ok else 1


@command(
    "chaos check",
    arg("folder DIR", "folder of a campaign, or home of a run"),
    REPORT,
    examples=("campaign",),
)
def _check(given: argparse.Namespace) -> int:
    """Judge the journals of a campaign again, or those of one run that was kept. Nothing is used of what the runs
    reported. The exit code is 1 if a promise was broken, or a run of a campaign reported something else.
    """
    from director.lab.chaos import checker
    from director.lab.chaos.campaign import JOURNALS, check_again, text

    folder = Path(given.folder)
    if (folder / JOURNALS).is_dir():
        run = checker.check(folder / JOURNALS)
        return _print_report(run, checker.text(run), given.json)
    report = check_again(folder, _say)
    return _print_report(report, text(report), given.json)


def _print_report(report: "Report | CampaignReport", shown: str, file: str) -> int:
    print(shown)
    if file:
        Path(file).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return 0 if report.ok else 1


def _say(line: str) -> None:
    print(line, flush=True)


@command(
    "prove",
    arg("worlds WORLD", "the worlds to explore (all)", nargs="*"),
    arg("--workers N", "processes, each with a Valkey of its own (%(default)s)", type=whole(MOST_WORKERS), default=1),
    arg("--seconds S", "longest time of one world; then it is explored in part", type=float),
    REPORT,
    examples=("", "takeover cancel --workers 2"),
)
def _prove(given: argparse.Namespace) -> int:
    """Try every order of calls in small worlds, on the scripts as they are and a real Valkey, in virtual time. Each
    state is judged, and each must have a way to rest. A breach is shown with the shortest calls that lead to it. The
    exit code is 1 if there is one.
    """
    from director.lab.prove.explore import explore
    from director.lab.prove.report import HEAD, row, text
    from director.lab.prove.worlds import WORLDS

    if unknown := [name for name in given.worlds if name not in WORLDS]:
        raise SettingsError(f"{unknown[0]!r} is no world. Choose from: {', '.join(WORLDS)}.")
    print(HEAD)
    found = []
    for name in given.worlds or WORLDS:
        with progress() as show:
            found.append(explore(name, WORLDS[name], workers=given.workers, seconds=given.seconds, show=show))
        print(row(found[-1]), flush=True)
    print(text(found))
    if given.json:
        Path(given.json).write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    return 0 if all(each.breach is None for each in found) else 1


group("bench", "latency", about="Measure the product.")


@command(
    "bench latency",
    arg("-n N", "predictions of each kind (%(default)s)", type=int, default=200),
    JSON,
    HOME,
    examples=("-n 500",),
)
def _latency(given: argparse.Namespace) -> int:
    """Measure what a running `up` adds to a direct call of the model server."""
    from director.lab.bench.speed import latency, latency_text

    facts = latency(Home(Path(given.home)), rounds=given.n)
    return Answer(facts, lambda: latency_text(facts)).show(is_json=given.json)


@command(
    "bench throughput",
    arg("--connections N", "concurrent callers (%(default)s)", type=whole(), default=16),
    arg("--seconds N", "length of the measurement (%(default)s)", type=whole(), default=10),
    JSON,
    HOME,
    examples=("--connections 64",),
)
def _throughput(given: argparse.Namespace) -> int:
    """Measure how many predictions a second a running `up` makes, from the request to the answer."""
    from director.lab.bench.speed import throughput, throughput_text

    facts = throughput(Home(Path(given.home)), connections=given.connections, seconds=given.seconds)
    return Answer(facts, lambda: throughput_text(facts)).show(is_json=given.json)
