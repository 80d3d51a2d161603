"""GET /streams/{address}: a prediction as it happens, as server-sent events.

The address is the permission: no token is asked for, and any page of a browser may read a stream whose address it has.
"""

from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api.answers import carry, raw
from api.parts import Parts
from api.predictions.answers import RETRY_AFTER_S, STREAM, EventStream
from api.predictions.stream_events import Mark
from api.predictions.tickets import Address, read_address
from api.refusals import data_removed, moved, not_found, too_many_streams
from api.sites.sites import where_it_is

__all__ = ("preflight", "stream")

CORS: Final = raw({"Access-Control-Allow-Origin": "*"})
PREFLIGHT: Final = {
    "Access-Control-Allow-Methods": "GET",
    "Access-Control-Allow-Headers": "Authorization, Cache-Control, Last-Event-ID",
    "Access-Control-Max-Age": "86400",
}


async def preflight(request: Request) -> Response:
    """OPTIONS: what a browser asks before it sends Last-Event-ID."""
    carry(request, CORS)
    return Response(status_code=204, headers=PREFLIGHT)


async def stream(request: Request) -> Response:
    """GET: from the start, or after Last-Event-ID; 204 for who was told the end, so that browsers do not come again."""
    carry(request, CORS)
    address = read_address(request.path_params["address"])
    if address is None:
        raise not_found()
    return await where_it_is(request, address.id, lambda parts: _streamed(request, parts, address))


async def _streamed(request: Request, parts: Parts, address: Address) -> Response:
    mark = Mark.parse(request.headers.get("last-event-id") or request.query_params.get("last_event_id", ""))
    known = await parts.readers.standing(address.id)
    if known is None or not address.opens(known.ticket):
        raise not_found()
    if known.moved:
        raise moved(known.moved)
    if known.is_removed:
        raise data_removed()
    was_told_all = mark.end == "done" and mark.seq >= known.next - 1  # and not of a run before it was revived
    if was_told_all and known.is_terminal:
        return Response(status_code=204)
    if request.method == "HEAD":
        return Response(headers=STREAM)
    if parts.readers.is_full:
        raise too_many_streams(RETRY_AFTER_S)
    return EventStream(partial(parts.readers.read, address.id, mark, is_over=known.is_terminal))
