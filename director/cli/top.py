"""`director top`: a live screen of all queues and directors, in a terminal.

Reads Redis itself, so it works while no API does.
"""

import argparse
from typing import TYPE_CHECKING

from director.cli.arguments import Commands, add_json, add_redis
from director.cli.backend import Backend, on_backend
from director.cli.output import print_json

if TYPE_CHECKING:
    from director.diagnosis.overview import Snapshot


def add(commands: Commands) -> None:
    """Add the command of this file."""
    top = commands.add_parser(
        "top",
        help="watch queues and directors live, in the whole terminal",
        description="Watch queues and directors live. Where that is no terminal: one screen, as with --once.",
    )
    top.add_argument("--once", action="store_true", help="print one screen with all queues, and end")
    top.set_defaults(run=_top)
    add_json(top)
    add_redis(top)


def _top(given: argparse.Namespace) -> int:
    from director.cli.output import line_width
    from director.cli.terminal import is_interactive
    from director.cli.top_watch import once, watch

    async def look(backend: Backend) -> "Snapshot":
        return await backend.overview.look()

    if given.json:
        print_json(on_backend(given, look))
    elif given.once or not is_interactive():
        print("\n".join(on_backend(given, lambda backend: once(backend, width=line_width()))))
    else:
        on_backend(given, watch)
    return 0
