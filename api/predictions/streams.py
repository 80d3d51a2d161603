"""Serve GET /streams/{address}: a prediction's events while it runs, as server-sent events. The address is the
permission: no token is needed, and any web page may read it.
"""

import hmac
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, Literal

import anyio
from msgspec import Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.services.stream_events import Frames, Mark
from api.services.stream_readers import Push
from api.web.errors import Moved, data_removed, not_found
from api.web.http import Request, until_gone
from api.web.route import Answer, Parameter, Route
from director.core.ids import PredictionId, is_prediction_id

STREAM: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would buffer it
}

Tell = Callable[[Callable[[bytes], Awaitable[None]]], Awaitable[bool]]
"""Sends all of a stream, a piece at a time; False where that was cut off."""


class EventStream(Response):
    """A response of server-sent events that `tell` sends. It breaks the connection where it stops early, since official
    clients take an orderly end for the end of the stream.
    """

    def __init__(self, tell: Tell, headers: Mapping[str, str] = {}) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({**STREAM, **headers})
        self._tell = tell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            is_whole = await self._tell(Pieces(scope, send))
            # other ASGI servers may lack it: then an early stop looks like the end
            if not is_whole and (hang_up := scope["state"].get("hang_up")) is not None:
                hang_up()
            await send({"type": "http.response.body", "body": b""})
            tasks.cancel_scope.cancel()


class Pieces:
    """Sends a body in pieces. `push` sends one at once, where the protocol can and the connection takes it now."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self.push: Push = scope["state"].get("push", _push_nothing)

    async def __call__(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})


def _push_nothing(_: bytes) -> bool:
    return False


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    await until_gone(receive)
    scope.cancel()


# A ticket makes the address of a stream unguessable. It is kept in the prediction's record alone, and never logged.
# An address has 52 characters, the id and its ticket, as Replicate's have.

ADDRESS: Final = re.compile(r"([0-9a-z]{26})([a-z2-7]{26})")


class Address(Struct, frozen=True):
    id: PredictionId
    ticket: str

    def opens(self, ticket: str) -> bool:
        """Return whether this is the ticket in the prediction's record. A record without a ticket opens for nothing."""
        return bool(ticket) and hmac.compare_digest(self.ticket, ticket)


def read_address(text: str) -> Address | None:
    """Read the last part of a stream's URL. Returns None if it cannot be ours, so that a guess asks Redis nothing."""
    match = ADDRESS.fullmatch(text)
    if match is None or not is_prediction_id(match[1]):
        return None
    return Address(PredictionId(match[1]), match[2])


class StreamEvent(Struct, frozen=True):
    """One server-sent event. `data`: of output one item, of logs a text, of others an object as JSON."""

    id: str
    event: Literal["output", "logs", "error", "done"]
    data: str


def _prediction_of(request: Request) -> PredictionId:
    address = read_address(request.path_params["address"])
    if address is None:
        raise not_found()
    return address.id


@Route(
    "GET",
    "/streams/{address}",
    name="streams.read",
    summary="Follow a prediction as it happens",
    about=(
        "The address is `urls.stream` of a prediction and needs no token. Events of output, logs and the end arrive"
        " as server-sent events. A reader that lost its connection sends the id of its last event and continues "
        "there."
    ),
    parameters=(
        Parameter("Last-Event-ID", "Go on after this event.", place="header"),
        Parameter(
            "last_event_id",
            "The same, for clients that cannot send the header. Spelled as polyfills do, it counts too: `lastEventId`, "
            "`lastEventID`, `Last-Event-ID`, `evs_last_event_id`.",
        ),
    ),
    answers={
        200: Answer("Its output and logs, from the start or after an event.", StreamEvent, STREAM["Content-Type"]),
        204: Answer("The end was sent already."),
    },
    refusals={410, 503},
    is_open=True,
    of=_prediction_of,
)
async def stream(request: Request) -> Response:
    """Answer 204 to a reader that already has the end, so that browsers do not connect again."""
    readers, address = request.services.readers, read_address(request.path_params["address"])
    mark = Mark.parse(request.headers.get("last-event-id") or _id_in_query(request))
    known = await readers.scripts.replay(request.prediction_id, after=0, count=0, most_bytes=0)
    if address is None or known is None or not address.opens(known.ticket):
        raise not_found()
    if known.moved:
        raise Moved(known.moved)
    if known.is_removed:
        raise data_removed()
    # and not of a run before the prediction was revived
    has_end = mark.end == "done" and mark.seq >= known.next - 1
    if has_end and known.is_terminal:
        return Response(status_code=204)
    if request.method == "HEAD":
        return Response(headers=STREAM)
    readers.make_room(known.account)
    tell = partial(readers.read, request.prediction_id, Frames(mark), account=known.account, is_over=known.is_terminal)
    return EventStream(tell)


UNSPELLED: Final = re.compile(r"[_-]")
RESUMES: Final = frozenset({"lasteventid", "evslasteventid"})


def _id_in_query(request: Request) -> str:
    """Return the id in the query, however a polyfill spells its name. Of several the last is the newest."""
    found = [text for name, text in request.query_params.multi_items() if UNSPELLED.sub("", name).lower() in RESUMES]
    return found[-1] if found else ""
