"""Directors in the words and tables that a person reads. Asks nobody."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from director.cli.pipe import printable
from director.cli.tables import fitted, folded
from director.core.words import since

if TYPE_CHECKING:
    from director.diagnosis.director_view import DirectorView, ServerView

__all__ = ("lines",)

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
