"""A prediction's events in pages: what happened to it, in order, each with its number.

For its owner alone: events carry what the model put out. A page is bounded in events and in bytes.
"""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from api.auth import authenticate
from api.errors import InvalidField, Moved, Problem, data_removed, invalid_input, no_webhook, not_found, not_terminal
from api.request import prediction_id_of
from api.response import json_response
from api.services import Parts
from api.sites.sites import where_it_is
from director.broker.scripts import Redelivered
from director.core.event_log import EventView, shown_event
from director.core.ids import PredictionId
from director.diagnosis.story import Owed, tell
from director.store.accounts import Account

PAGE: Final = 100
MOST_IN_PAGE: Final = 1_000
MOST_BYTES: Final = 1 << 20
MOST_AFTER: Final = 1 << 53  # where numbers of Lua and of JavaScript stop being whole


class Events(Struct, frozen=True, kw_only=True):
    """One page. `next`: the number to ask for what comes `after`, now or once there is more."""

    events: tuple[EventView, ...]
    next: int
    data_removed: bool = False


async def get_events(request: Request) -> Response:
    """GET /predictions/{id}/events?after=&limit=. What an operator revived begins again with number 1."""
    account = await authenticate(request, "read")
    prediction_id = prediction_id_of(request)
    after = number_of(request, "after", default=0, least=0, most=MOST_AFTER)
    limit = number_of(request, "limit", default=PAGE, least=1, most=MOST_IN_PAGE)

    async def read(parts: Parts) -> Response:
        page = await parts.scripts.replay(prediction_id, after=after, count=limit, most_bytes=MOST_BYTES, whole=False)
        if page is not None and page.account == account.name and page.has_more and not page.events:
            page = await parts.scripts.replay(prediction_id, after=after, count=1, most_bytes=MOST_BYTES)
        if page is None or page.account != account.name:
            raise not_found()
        if page.moved:
            raise Moved(page.moved)
        if not page.last:
            return json_response(Events(events=(), next=after, data_removed=True))
        following = page.events[-1].seq if page.events else after
        return json_response(Events(events=tuple(map(shown_event, page.events)), next=following))

    return await where_it_is(request, prediction_id, read)


def number_of(request: Request, name: str, *, default: int, least: int, most: int) -> int:
    """A number of the query; 422 where it is none of these."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and least <= int(text[:20]) <= most):
        raise invalid_input([InvalidField("number", name, f"Must be a whole number from {least} to {most}")])
    return int(text)


# How the webhook of a prediction's end is going, and to have it delivered once more.
#
# Shows a receiver's host and never its URL, which may hold a secret.

REFUSALS: Final[Mapping[Redelivered, Callable[[], Problem]]] = {
    "unknown": not_found,
    "running": not_terminal,
    "unwanted": no_webhook,
    "removed": data_removed,
}


class Webhooks(Struct, frozen=True):
    """`webhook` is null where the caller wanted none."""

    id: PredictionId
    webhook: Owed | None
    data_removed: bool


async def get_webhooks(request: Request) -> Response:
    """GET /predictions/{id}/webhooks: every attempt to tell its end, and when the next one is. For operators of all."""
    account, prediction_id = await authenticate(request, "read", "admin"), prediction_id_of(request)
    return await where_it_is(request, prediction_id, lambda parts: _shown(parts, prediction_id, account))


async def redeliver(request: Request) -> Response:
    """POST /predictions/{id}/webhooks/redeliver: tell its end again, now. For operators of all."""
    account, prediction_id = await authenticate(request, "run", "admin"), prediction_id_of(request)
    whose = None if "admin" in account.scopes else account.name

    async def owe(parts: Parts) -> Response:
        answer = await parts.scripts.redeliver(prediction_id, account=whose)
        if refusal := REFUSALS.get(answer):
            raise refusal()
        return await _shown(parts, prediction_id, account)

    return await where_it_is(request, prediction_id, owe)


async def _shown(parts: Parts, prediction_id: PredictionId, account: Account) -> Response:
    known = await parts.scripts.story(prediction_id)
    if known is None or (known.record.account != account.name and "admin" not in account.scopes):
        raise not_found()
    if known.record.moved:
        raise Moved(known.record.moved)
    return json_response(Webhooks(prediction_id, tell(known).webhook, data_removed=not known.events))
