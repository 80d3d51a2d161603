"""What operators see of directors, over HTTP: who is there, since when, with which servers, and what each holds.

For tokens with the scope `admin` alone. Asks no director: their beats tell. Changes nothing.
"""

from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api.answers import json_response
from api.auth import authenticate
from api.pages import PAGE_SIZE, Cursor, cursor_of, link
from api.problems import InvalidField
from api.refusals import invalid_input
from api.sites.sites import parts_asked
from director.core.ids import QueueName
from director.core.schema import Page
from director.diagnosis.director_view import director_view

__all__ = ("list_directors",)

PATH: Final = "/admin/directors"


async def list_directors(request: Request) -> Response:
    """GET /admin/directors?queue=&cursor=: by name, of one queue or of all."""
    await authenticate(request, "admin")
    parts, queue, cursor = parts_asked(request), request.query_params.get("queue", ""), cursor_of(request)
    queues = await parts.queues.all()
    if queue and queue not in queues:
        raise invalid_input([InvalidField("enum", "queue", "There is no such queue")])
    found = await parts.directors.of([QueueName(queue)] if queue else queues)
    rest = [one for one in found if cursor is None or one.name > cursor.at]
    page, more = rest[:PAGE_SIZE], rest[PAGE_SIZE:]
    kept: Mapping[str, str] = {"queue": queue} if queue else {}
    following = link(request, PATH, Cursor(page[-1].name), kept) if more else None
    return json_response(Page(next=following, previous=None, results=[director_view(one) for one in page]))
