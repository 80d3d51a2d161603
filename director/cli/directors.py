"""`director directors`: who is there, with how many slots, what each holds, and how its servers stand.

Reads Redis itself, and asks no director: their beats tell.
"""

import argparse
from typing import TYPE_CHECKING

from director.cli.arguments import Commands, add_json, add_redis
from director.cli.backend import Backend, on_backend
from director.cli.pipe import print_json

if TYPE_CHECKING:
    from director.diagnosis.director_view import DirectorView

__all__ = ("add",)


def add(commands: Commands) -> None:
    """Add the command of this file."""
    directors = commands.add_parser(
        "directors",
        help="show who runs predictions: slots, what each holds, its servers",
        description="Show every director with its servers. One that is silent is shown until a keeper forgets it.",
    )
    directors.add_argument("--queue", default="", metavar="QUEUE", help="those of this queue only")
    directors.set_defaults(run=_directors)
    add_json(directors)
    add_redis(directors)


def _directors(given: argparse.Namespace) -> int:
    from director.cli.director_text import lines
    from director.cli.tables import line_width
    from director.core.clock import SystemClock

    async def read(backend: Backend) -> "list[DirectorView]":
        from director.diagnosis.director_view import director_view

        queues = [await backend.queue(given.queue)] if given.queue else await backend.queues.all()
        return [director_view(one) for one in await backend.directors.of(queues)]

    found = on_backend(given, read)
    if given.json:
        print_json(found)
    elif found:
        print("\n".join(lines(found, now_ms=SystemClock().now_ms(), width=line_width())))
    else:
        print("no directors: `director run` starts one")
    return 0
