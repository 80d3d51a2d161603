"""GET /admin/live: what goes on in the whole service, as server-sent events, for operators who watch.

For tokens with the scope `admin` alone, and only as long as they have it. Who watches counts as a reader of a stream:
there is a bound of them all, and whoever takes nothing for a minute is let go.
"""

import logging
from functools import partial
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import Response

from api.auth import authenticate, may_still
from api.parts import parts_of
from api.predictions.answers import RETRY_AFTER_S, STREAM, EventStream
from api.predictions.events import number_of
from api.predictions.stream_events import KEEP_ALIVE
from api.predictions.stream_readers import KEEP_ALIVE_S, PIECE_BYTES, STALL_S, Send
from api.refusals import too_many_streams

__all__ = ("MOST_SNAPSHOTS", "follow_live")

log = logging.getLogger(__name__)

MOST_SNAPSHOTS: Final = 1_000


async def follow_live(request: Request) -> Response:
    """A `snapshot` at once, then one each few seconds; `away` while Redis is. `snapshots=`: so many, and the end."""
    await authenticate(request, "admin")
    count = number_of(request, "snapshots", default=0, least=1, most=MOST_SNAPSHOTS)
    if request.method == "HEAD":
        return Response(headers=STREAM)
    if parts_of(request).readers.is_full:
        raise too_many_streams(RETRY_AFTER_S)
    return EventStream(partial(_tell, request, count))


async def _tell(request: Request, count: int, send: Send) -> bool:
    """True where it came to its end, False where it is cut off."""
    parts = parts_of(request)
    number = told = 0
    with parts.readers.holding() as place, parts.watching.watcher():
        while await may_still(request, "admin"):
            data = KEEP_ALIVE
            with anyio.move_on_after(KEEP_ALIVE_S):
                event = await parts.watching.after(number)
                number, data, told = event.number, event.data, told + 1
            if not await _is_taken(data, send):
                return False
            if count and told >= count:
                break
    return not place.cancelled_caught


async def _is_taken(data: bytes, send: Send) -> bool:
    """A piece at a time, so that one who reads slowly is told from one who does not read."""
    try:
        for start in range(0, len(data), PIECE_BYTES):
            with anyio.fail_after(STALL_S):
                await send(data[start : start + PIECE_BYTES])
    except TimeoutError:
        log.info("a watcher that takes nothing is let go")
        return False
    return True
