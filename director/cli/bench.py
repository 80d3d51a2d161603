"""`director bench`: what a call costs, how many there can be, whether the queue is fair, and what depth costs it."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

from director.cli.arguments import CommandParser, Commands, add_home, add_json
from director.cli.output import print_json

LEAST_BATCH: Final = 500  # behind a smaller one, the 99 others would wait longer for each other than for it

LATENCY: Final = "What a running `up` adds to a direct call of the model server."
THROUGHPUT: Final = "How many predictions a second a running `up` makes, from the request to the answer."
FAIRNESS: Final = """\
Play tenants and lanes through the real scripts on a Valkey of its own, with time walked by hand, and judge how long
each waits and what each is given. Exit code 1 where a bound was not kept."""
DEPTH: Final = """\
Fill a queue on a Valkey of its own, and compare its calls with those of an empty one. A million take some minutes and
1.3 GB of memory. Exit code 1 where a bound was not kept."""


def add(commands: Commands) -> None:
    """Add the commands of this file."""
    bench = commands.add_parser("bench", help="measure speed, fairness and depth", description="Measure the product.")
    what = bench.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=CommandParser)

    latency = what.add_parser("latency", help=LATENCY[0].lower() + LATENCY[1:-1], description=LATENCY)
    latency.add_argument("-n", type=int, default=200, metavar="N", help="predictions of each kind (%(default)s)")
    add_json(latency)
    add_home(latency)
    latency.set_defaults(run=_latency)

    throughput = what.add_parser("throughput", help=THROUGHPUT[0].lower() + THROUGHPUT[1:-1], description=THROUGHPUT)
    throughput.add_argument(
        "--connections", type=_at_least(1), default=16, metavar="N", help="that ask at once (%(default)s)"
    )
    throughput.add_argument(
        "--seconds", type=_at_least(1), default=10, metavar="N", help="how long, in all (%(default)s)"
    )
    add_json(throughput)
    add_home(throughput)
    throughput.set_defaults(run=_throughput)

    fairness = what.add_parser("fairness", help="what one tenant or lane costs the others", description=FAIRNESS)
    fairness.add_argument(
        "--salts", type=_at_least(1), default=20, metavar="N", help="sets of account names (%(default)s)"
    )
    fairness.add_argument(
        "--batch", type=_at_least(LEAST_BATCH), default=10_000, metavar="N", help="of the large tenant (%(default)s)"
    )
    fairness.add_argument("--seed", type=int, default=1, metavar="N", help="of names and run times (%(default)s)")
    fairness.set_defaults(run=_fairness)

    depth = what.add_parser("depth", help="what a full queue costs its calls, and memory", description=DEPTH)
    depth.add_argument(
        "--waiting", type=_at_least(1), default=1_000_000, metavar="N", help="in the full queue (%(default)s)"
    )
    depth.add_argument("--tenants", type=_at_least(1), default=100, metavar="N", help="whose they are (%(default)s)")
    depth.set_defaults(run=_depth)


def _at_least(least: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is too few: give at least {least}")
        return number

    return whole_number


def _latency(given: argparse.Namespace) -> int:
    from director.bench.latency import latency, told
    from director.local.home import Home

    facts = latency(Home(Path(given.home)), rounds=given.n)
    if given.json:
        print_json(facts)
    else:
        print(told(facts))
    return 0


def _throughput(given: argparse.Namespace) -> int:
    from functools import partial

    import anyio

    from director.bench.throughput import throughput, told
    from director.local.home import Home

    measure = partial(throughput, connections=given.connections, seconds=given.seconds)
    facts = anyio.run(measure, Home(Path(given.home)))
    if given.json:
        print_json(facts)
    else:
        print(told(facts))
    return 0


def _fairness(given: argparse.Namespace) -> int:
    import anyio

    from director.bench.fairness import FairnessOptions, fairness

    options = FairnessOptions(salts=given.salts, batch=given.batch, seed=given.seed)
    return 0 if anyio.run(fairness, options, _say) else 1


def _depth(given: argparse.Namespace) -> int:
    import anyio

    from director.bench.depth import DepthOptions, depth

    options = DepthOptions(waiting=given.waiting, tenants=given.tenants)
    return 0 if anyio.run(depth, options, _say) else 1


def _say(line: str) -> None:
    print(line, flush=True)
