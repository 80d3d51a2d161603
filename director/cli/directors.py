"""`director directors`: who is there, with how many slots, what each holds, and how its servers stand.

Reads Redis itself, and asks no director: their beats tell.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from director.cli.arguments import Commands, add_json, add_redis
from director.cli.backend import Backend, on_backend
from director.cli.output import fitted, folded, print_json, printable
from director.core.words import since

if TYPE_CHECKING:
    from director.diagnosis.views import DirectorView


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
    pass
    from director.cli.output import line_width
    from director.core.clock import SystemClock

    async def read(backend: Backend) -> "list[DirectorView]":
        from director.diagnosis.views import director_view

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


# Directors in the words and tables that a person reads. Asks nobody.

if TYPE_CHECKING:
    from director.diagnosis.views import DirectorView, ServerView


COLUMNS: Final = ("director", "state", "slots", "holds", "version", "up", "last sign", "queues")
WORDS: Final = ("director", "state", "version", "queues")
SILENT: Final = "silent"
HANG: Final = 4  # what is too long goes on there: why a server is not ready stands at the end


def lines(found: "Sequence[DirectorView]", *, now_ms: int, width: int | None) -> list[str]:
    """A line for each director; below the table, one for each of their servers."""
    table = fitted(COLUMNS, [_row(one, now_ms) for one in found], width=width, words=WORDS)
    servers = [
        f"  {one.name}  {line}"
        for one in found
        for line in [*(_server(each, now_ms) for each in one.servers), *_more(one.more_servers)]
    ]
    if servers:
        table += ["", "servers", *folded(map(printable, servers), hang=HANG, width=width).splitlines()]
    return table


def _row(one: "DirectorView", now_ms: int) -> list[str]:
    return [
        one.name,
        one.state if one.alive else SILENT,
        str(one.slots),
        "-" if one.held is None else str(one.held),
        one.version or "-",
        "-" if one.since is None else since(one.since, now_ms),
        since(one.seen_at, now_ms),
        ", ".join(beat.queue for beat in one.queues),
    ]


def _server(server: "ServerView", now_ms: int) -> str:
    why = f": {server.detail}" if server.detail else ""
    return f"{server.url}  {server.state} for {since(server.since, now_ms)}, {server.slots} slots{why}"


def _more(count: int) -> list[str]:
    return [f"and {count} more"] if count else []
