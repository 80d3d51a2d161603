"""What operators see of directors, over HTTP: who is there, since when, with which servers, and what each holds.

For tokens with the scope `admin` alone. Asks no director: their beats tell. Changes nothing.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from api.answers import json_response
from api.auth import authenticate
from api.pages import PAGE_SIZE, Cursor, cursor_of, link
from api.parts import parts_of
from api.problems import InvalidField
from api.refusals import invalid_input
from director.core.directors import DirectorFound
from director.core.ids import QueueName
from director.core.schema import Page
from director.core.view import iso

__all__ = ("DirectorView", "director_view", "list_directors")

PATH: Final = "/admin/directors"


class ServerView(Struct, frozen=True, kw_only=True):
    """A model server as its director sees it: `state` is in force `since`. `detail`: why it is given no work."""

    url: str
    state: str
    since: str
    slots: int
    detail: str


class BeatView(Struct, frozen=True, kw_only=True):
    """What a director last told one queue: its slots there, and how its servers stand."""

    queue: QueueName
    at: str
    slots: int
    state: str


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
        held=about.held,
        queues=[
            BeatView(queue=beat.queue, at=iso(beat.at_ms), slots=beat.slots, state=beat.state) for beat in found.beats
        ],
        servers=[
            ServerView(
                url=server.url,
                state=server.state,
                since=iso(server.since_ms),
                slots=server.slots,
                detail=server.detail,
            )
            for server in about.servers
        ],
        more_servers=about.more,
    )


async def list_directors(request: Request) -> Response:
    """GET /admin/directors?queue=&cursor=: by name, of one queue or of all."""
    await authenticate(request, "admin")
    parts, queue, cursor = parts_of(request), request.query_params.get("queue", ""), cursor_of(request)
    queues = await parts.queues.all()
    if queue and queue not in queues:
        raise invalid_input([InvalidField("enum", "queue", "There is no such queue")])
    found = await parts.directors.of([QueueName(queue)] if queue else queues)
    rest = [one for one in found if cursor is None or one.name > cursor.at]
    page, more = rest[:PAGE_SIZE], rest[PAGE_SIZE:]
    kept: Mapping[str, str] = {"queue": queue} if queue else {}
    following = link(request, PATH, Cursor(page[-1].name), kept) if more else None
    return json_response(Page(next=following, previous=None, results=[director_view(one) for one in page]))
