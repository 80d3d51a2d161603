"""Commands that try the service with other loads and faults: `director simulate` and `director chaos`."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from director.cli.arguments import Commands, add_json
from director.cli.output import harmless, print_json, progress

if TYPE_CHECKING:
    from director.simulate.trace import Trace


MOST_SLOTS: Final = 4096
MOST_PLAYS: Final = 12
MADE: Final = ("heavy-light", "batches", "even", "lanes", "constant")
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
"""
CHAOS: Final = """\
Start a whole service on this machine, let callers use it, and kill, freeze, cut off and fill its parts. Then repair
all of it, and let a checker name the promises that were broken. The checker reads only Redis and the journals of
callers, model servers and webhook receivers. The exit code is 1 if a promise was broken. The same seed makes the same
faults."""


def add(commands: Commands) -> None:
    _add_simulate(commands)
    _add_chaos(commands)


def _add_simulate(commands: Commands) -> None:
    command = commands.add_parser(
        "simulate",
        help="replay recorded or made traffic with other slots and policies",
        description=TEXT,
        epilog=FORMATS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        examples=(
            "director simulate audit.jsonl --queue acme/painter:0123456789ab --slots 4,8,16",
            "director simulate trace.jsonl --policy fair --policy fifo --plot waits.svg",
            "director simulate --made heavy-light --minutes 30 --slots 4 --policy weights.toml",
        ),
    )
    command.add_argument("file", nargs="?", metavar="FILE", help="an audit log, or a trace")
    command.add_argument("--queue", default="", help="the queue to replay, if an audit log has several")
    command.add_argument(
        "--slots", type=_slots, default=(4,), metavar="N[,N…]", help="slots; a replay for each number (4)"
    )
    command.add_argument(
        "--policy",
        action="append",
        metavar="NAME|FILE",
        help="fair, fifo or a TOML file; repeat it for another replay (fair)",
    )
    command.add_argument("--plot", metavar="FILE", help="draw the result as .svg or .png; needs director[plot]")
    add_json(command)
    made = command.add_argument_group("made traffic, instead of a file")
    made.add_argument("--made", choices=MADE, metavar="SHAPE", help=", ".join(MADE))
    made.add_argument("--minutes", type=float, default=30.0, metavar="N", help="minutes of arrivals (%(default)g)")
    made.add_argument(
        "--load",
        type=float,
        default=1.1,
        metavar="X",
        help="arriving work ÷ capacity of the first --slots (%(default)g)",
    )
    made.add_argument("--accounts", type=int, default=20, metavar="N", help="accounts beside a heavy one (%(default)s)")
    made.add_argument("--run-s", type=float, default=2.0, metavar="S", help="average duration of a run (%(default)g)")
    made.add_argument(
        "--seed", type=int, default=1, metavar="N", help="the same seed makes equal traffic (%(default)s)"
    )
    command.set_defaults(run=_simulate)


def _add_chaos(commands: Commands) -> None:
    chaos = commands.add_parser(
        "chaos",
        help="break every part, and check that nothing is lost",
        description=CHAOS,
        examples=("director chaos --seconds 60 --seed 7",),
    )
    chaos.add_argument("--seed", type=int, default=1, metavar="N", help="seed of load and faults (%(default)s)")
    chaos.add_argument("--seconds", type=float, default=60.0, metavar="S", help="length of the load (%(default)g)")
    chaos.add_argument("--lease", type=float, default=15.0, metavar="S", help="lease of a claim (%(default)g)")
    chaos.add_argument("--tenants", type=int, default=40, metavar="N", help="number of accounts (%(default)s)")
    chaos.add_argument(
        "--faketime", default="", metavar="FILE", help="libfaketime.so.1, which steps the server's clock (looked for)"
    )
    chaos.add_argument("--json", default="", metavar="FILE", help="write the report there")
    chaos.add_argument("--home", default="", metavar="DIR", help="a new folder for data, journals and logs")
    chaos.add_argument("--keep", action="store_true", help="keep that folder also if every promise was kept")
    chaos.set_defaults(run=_chaos)


def _slots(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() and len(part) < 5 and 1 <= int(part) <= MOST_SLOTS for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} are not slots: give numbers from 1 to {MOST_SLOTS}, as in 4,8,16")
    return tuple(dict.fromkeys(int(part) for part in parts))


def _simulate(given: argparse.Namespace) -> int:
    import anyio
    import msgspec

    from director.core.errors import SettingsError
    from director.simulate.play import tried
    from director.simulate.report import simulate, trace_report
    from director.simulate.show import check, plot, told

    picture = Path(given.plot) if given.plot else None
    if picture is not None:
        check(picture)
    policies = [tried(text) for text in given.policy or ("fair",)]
    if len(policies) * len(given.slots) > MOST_PLAYS:
        raise SettingsError(f"that is {len(policies) * len(given.slots)} replays: at most {MOST_PLAYS} at once.")
    trace = _trace(given)
    with progress() as show:

        def played(name: str, done: int) -> None:
            show(f"» {name}: {done:,} of {len(trace):,}")
            if not done and not sys.stderr.isatty():
                print(f"» {name}", file=sys.stderr, flush=True)

        reports = anyio.run(simulate, trace, policies, given.slots, played, backend_options={"use_uvloop": True})
    if picture is not None:
        plot(picture, reports)
    if given.json:
        print_json({"trace": msgspec.to_builtins(trace_report(trace)), "plays": msgspec.to_builtins(reports)})
    else:
        print(harmless(told(trace_report(trace), reports), sys.stdout))
    return 0


def _trace(given: argparse.Namespace) -> "Trace":
    import msgspec

    from director.core.errors import SettingsError
    from director.simulate.reading import read
    from director.simulate.trace import MadeOptions, made

    if bool(given.file) == bool(given.made):
        raise SettingsError("give either a FILE or --made.")
    if given.file:
        return read(Path(given.file), queue=given.queue)
    options = {name: getattr(given, name) for name in ("seed", "minutes", "load", "accounts", "run_s")}
    try:
        return made(msgspec.convert({"shape": given.made, "slots": given.slots[0], **options}, MadeOptions))
    except msgspec.ValidationError as exc:
        raise SettingsError(f"{exc}.") from exc


def _chaos(given: argparse.Namespace) -> int:
    import msgspec

    from director.chaos.checker import text
    from director.chaos.run import chaos
    from director.chaos.scene import Options

    options = Options(
        seed=given.seed,
        seconds=given.seconds,
        lease_s=given.lease,
        tenants=given.tenants,
        home=Path(given.home) if given.home else None,
        is_kept=given.keep,
        faketime=given.faketime,
    )
    report = chaos(options, lambda line: print(line, flush=True))
    print(text(report))
    if given.json:
        Path(given.json).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return 0 if report.ok else 1
