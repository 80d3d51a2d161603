"""`director bench`: measure the latency and the throughput of a running `director up`."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

from director.cli.arguments import CommandParser, Commands, add_home, add_json
from director.cli.output import print_json

LATENCY: Final = "Measure what a running `up` adds to a direct call of the model server."
THROUGHPUT: Final = "Measure how many predictions a second a running `up` makes, from the request to the answer."


def add(commands: Commands) -> None:
    bench = commands.add_parser(
        "bench",
        help="measure speed",
        description="Measure the product.",
        examples=("director bench latency",),
    )
    what = bench.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=CommandParser)

    latency = what.add_parser(
        "latency",
        help=LATENCY[0].lower() + LATENCY[1:-1],
        description=LATENCY,
        examples=("director bench latency -n 500",),
    )
    latency.add_argument("-n", type=int, default=200, metavar="N", help="predictions of each kind (%(default)s)")
    add_json(latency)
    add_home(latency)
    latency.set_defaults(run=_latency)

    throughput = what.add_parser(
        "throughput",
        help=THROUGHPUT[0].lower() + THROUGHPUT[1:-1],
        description=THROUGHPUT,
        examples=("director bench throughput --connections 64",),
    )
    throughput.add_argument(
        "--connections", type=_at_least(1), default=16, metavar="N", help="concurrent callers (%(default)s)"
    )
    throughput.add_argument(
        "--seconds", type=_at_least(1), default=10, metavar="N", help="length of the measurement (%(default)s)"
    )
    add_json(throughput)
    add_home(throughput)
    throughput.set_defaults(run=_throughput)


def _at_least(least: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is too few: give at least {least}")
        return number

    return whole_number


def _latency(given: argparse.Namespace) -> int:
    from director.bench.speed import latency, latency_text
    from director.local.home import Home

    facts = latency(Home(Path(given.home)), rounds=given.n)
    if given.json:
        print_json(facts)
    else:
        print(latency_text(facts))
    return 0


def _throughput(given: argparse.Namespace) -> int:
    from director.bench.speed import throughput, throughput_text
    from director.local.home import Home

    facts = throughput(Home(Path(given.home)), connections=given.connections, seconds=given.seconds)
    if given.json:
        print_json(facts)
    else:
        print(throughput_text(facts))
    return 0
