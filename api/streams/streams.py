"""GET /streams/{address}: a prediction as it happens, as server-sent events.

The address is the permission: no token is asked for, and any page of a browser may read a stream whose address it has.
An answer that is cut off before `done` breaks the connection instead of ending it: official clients take an orderly end
for the whole of an output.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.answers import carry
from api.parts import Parts, parts_of
from api.refusals import data_removed, moved, not_found, too_many_streams
from api.streams.stream_events import Mark
from api.streams.tickets import read_address
from director.core.ids import PredictionId

__all__ = ("preflight", "stream")

CORS: Final = {"Access-Control-Allow-Origin": "*"}
PREFLIGHT: Final = {
    "Access-Control-Allow-Methods": "GET",
    "Access-Control-Allow-Headers": "Authorization, Cache-Control, Last-Event-ID",
    "Access-Control-Max-Age": "86400",
}
STREAM: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would hold it back
}
RETRY_AFTER_S: Final = 5


async def preflight(request: Request) -> Response:
    """OPTIONS: what a browser asks before it sends Last-Event-ID."""
    carry(request, CORS)
    return Response(status_code=204, headers=PREFLIGHT)


async def stream(request: Request) -> Response:
    """GET: from the start, or after Last-Event-ID; 204 for who was told the end, so that browsers do not come again."""
    carry(request, CORS)
    parts = parts_of(request)
    address = read_address(request.path_params["address"])
    if address is None:
        raise not_found()
    mark = Mark.parse(request.headers.get("last-event-id") or request.query_params.get("last_event_id", ""))
    known = await parts.readers.standing(address.id)
    if known is None or not address.opens(known.ticket):
        raise not_found()
    if known.moved:
        raise moved()
    if known.is_removed:
        raise data_removed()
    if mark.end == "done" and known.is_terminal:
        return Response(status_code=204)
    if request.method == "HEAD":
        return Response(headers=STREAM)
    if parts.readers.is_full:
        raise too_many_streams(RETRY_AFTER_S)
    return EventStream(parts, address.id, mark, is_over=known.is_terminal)


class EventStream(Response):
    """The answer, as long as it takes."""

    def __init__(self, parts: Parts, prediction_id: PredictionId, mark: Mark, *, is_over: bool) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(STREAM)
        self._read = partial(parts.readers.read, prediction_id, mark, is_over=is_over)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if not await self._read(partial(_send_piece, send)):
                _hang_up(scope)
            await send({"type": "http.response.body", "body": b""})
            tasks.cancel_scope.cancel()


async def _send_piece(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def _hang_up(scope: Scope) -> None:
    hang_up: Callable[[], Any] | None = scope["state"].get("hang_up")
    if hang_up is not None:  # a server that is not ours may have no such thing: then the end looks like one
        hang_up()
