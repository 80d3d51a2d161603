"""A director at one moment in the words that operators read: over HTTP, in a page, in a terminal. Asks nobody."""

from msgspec import Struct

from director.core.ids import QueueName
from director.core.view import iso
from director.store.directors import DirectorFound

__all__ = ("BeatView", "DirectorView", "ServerView", "director_view")


class ServerView(Struct, frozen=True, kw_only=True):
    """A model server as its director sees it: `state` is in force `since`. `detail`: why it is given no work.

    `failed_starts`: in a row, without a moment between in which it could run anything.
    """

    url: str
    state: str
    since: str
    slots: int
    detail: str
    failed_starts: int


class BeatView(Struct, frozen=True, kw_only=True):
    """What a director last told one queue: its slots there, and how its servers stand."""

    queue: QueueName
    at: str
    slots: int
    state: str
    held: int | None


class DirectorView(Struct, frozen=True, kw_only=True):
    """One director. `alive`: it gave a sign of life lately. `held`: the claims that it had then.

    `version` (of the software), `since` and `held` are null where its release does not tell them.
    """

    name: str
    alive: bool
    seen_at: str
    since: str | None
    version: str | None
    state: str
    slots: int
    held: int | None
    queues: list[BeatView]
    servers: list[ServerView]
    more_servers: int


def director_view(found: DirectorFound) -> DirectorView:
    last = found.last
    about = last.about
    return DirectorView(
        name=found.name,
        alive=found.is_alive,
        seen_at=iso(last.at_ms),
        since=None if about.since_ms is None else iso(about.since_ms),
        version=about.version or None,
        state=last.state,
        slots=last.slots,
        held=found.held,
        queues=[
            BeatView(queue=beat.queue, at=iso(beat.at_ms), slots=beat.slots, state=beat.state, held=beat.about.held)
            for beat in found.beats
        ],
        servers=[
            ServerView(
                url=server.url,
                state=server.state,
                since=iso(server.since_ms),
                slots=server.slots,
                detail=server.detail,
                failed_starts=server.failed_starts,
            )
            for server in about.servers
        ],
        more_servers=about.more,
    )
