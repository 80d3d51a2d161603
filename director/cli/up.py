"""`director up` and `director down`: the whole service on one machine."""

import argparse
from pathlib import Path

from director.cli.arguments import Commands, add_home, port_number
from director.cli.output import say


def add(commands: Commands) -> None:
    """Add the commands of this file."""
    up = commands.add_parser("up", help="start everything on this machine, until Ctrl-C", description=UP)
    up.add_argument("--host", default="127.0.0.1", help="address the API listens on (%(default)s)")
    up.add_argument("--port", type=port_number, default=8080, help="port the API listens on; 0: any free (%(default)s)")
    add_home(up)
    up.add_argument("--no-example", action="store_true", help="do not serve the example models")
    backend = up.add_mutually_exclusive_group()
    backend.add_argument("--redis", metavar="URL", default="", help="use this running server instead of starting one")
    backend.add_argument(
        "--redis-server", metavar="PROGRAM", default="", help="start this redis-server or valkey-server instead"
    )
    up.add_argument("--verbose", action="store_true", help="show the logs of all parts")
    up.set_defaults(run=_up)

    down = commands.add_parser("down", help=DOWN[0].lower() + DOWN[1:-1], description=DOWN)
    add_home(down)
    down.set_defaults(run=_down)


UP = """\
Start Valkey, the API, the keeper and two example models with their directors, and say how to ask them.
All data stays in the home: the next `director up` goes on where this one ended."""


DOWN = "Stop a `director up`, and whatever one left behind."


def _up(given: argparse.Namespace) -> int:
    from director.local.up import Options, up

    options = Options(
        host=given.host,
        port=given.port,
        home=Path(given.home),
        has_examples=not given.no_example,
        redis_url=given.redis,
        redis_server=given.redis_server,
        is_verbose=given.verbose,
    )
    return up(options, say)


def _down(given: argparse.Namespace) -> int:
    from director.local.home import Home
    from director.local.up import down

    print("stopped" if down(Home(Path(given.home))) else f"nothing runs in {given.home}")
    return 0
