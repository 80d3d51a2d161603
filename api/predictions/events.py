"""List the events of a prediction in pages, and show and redeliver its webhook.

Only the owner may read events, because they carry what the model put out. A page is bounded in events and in bytes.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct
from starlette.responses import Response

from api.contract import PREDICTION_ID
from api.errors import InvalidField, Moved, Problem, data_removed, invalid_input, no_webhook, not_found, not_terminal
from api.request import Request, prediction_id_of
from api.response import json_response
from api.route import Answer, Parameter, Route
from director.broker.replies import Redelivered
from director.core.ids import PredictionId
from director.core.schema import Known
from director.core.view import EventView, shown_event
from director.diagnosis.story import Owed, tell

PAGE: Final = 100
MOST_IN_PAGE: Final = 1_000
MOST_BYTES: Final = 1 << 20
MOST_AFTER: Final = 1 << 53  # above this, numbers of Lua and JavaScript are not exact


class Events(Struct, frozen=True, kw_only=True):
    """One page. `next`: the number to ask for what comes `after`, now or once there is more."""

    events: tuple[EventView, ...]
    next: int
    data_removed: bool = False


@Route(
    "GET",
    "/predictions/{id}/events",
    name="predictions.events",
    summary="List what happened to a prediction, in order and numbered",
    scopes=("read",),
    of=prediction_id_of,
    parameters=(
        *PREDICTION_ID,
        Parameter("after", "The `next` of the page before.", Annotated[int, Meta(ge=0, le=MOST_AFTER)]),
        Parameter("limit", "At most so many; 100 without.", Annotated[int, Meta(ge=1, le=MOST_IN_PAGE)]),
    ),
    answers={200: Answer("A page.", Events)},
    refusals={422},
)
async def get_events(request: Request) -> Response:
    """List the events. After an operator revived the prediction, they begin again with number 1."""
    after = number_of(request, "after", default=0, least=0, most=MOST_AFTER)
    limit = number_of(request, "limit", default=PAGE, least=1, most=MOST_IN_PAGE)
    scripts, account = request.services.scripts, request.account
    page = await scripts.replay(request.prediction_id, after=after, count=limit, most_bytes=MOST_BYTES, whole=False)
    if page is not None and page.account == account.name and page.has_more and not page.events:
        page = await scripts.replay(request.prediction_id, after=after, count=1, most_bytes=MOST_BYTES)
    if page is None or page.account != account.name:
        raise not_found()
    if page.moved:
        raise Moved(page.moved)
    if not page.last:
        return json_response(Events(events=(), next=after, data_removed=True))
    following = page.events[-1].seq if page.events else after
    return json_response(Events(events=tuple(map(shown_event, page.events)), next=following))


def number_of(request: Request, name: str, *, default: int, least: int, most: int) -> int:
    """Read a whole number from the query. Raises a 422 for another text and for a number out of bounds."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and least <= int(text[:20]) <= most):
        raise invalid_input([InvalidField("number", name, f"Must be a whole number from {least} to {most}")])
    return int(text)


# The delivery of the webhook for a prediction's end, and its redelivery.
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


@Route(
    "GET",
    "/predictions/{id}/webhooks",
    name="predictions.webhooks",
    summary="Tell how the webhook of a prediction's end goes",
    scopes=("read", "admin"),
    of=prediction_id_of,
    parameters=PREDICTION_ID,
    answers={200: Answer("Every attempt, and when the next one is.", Webhooks)},
)
async def get_webhooks(request: Request) -> Response:
    known = await story_of(request)
    return json_response(Webhooks(request.prediction_id, tell(known).webhook, data_removed=not known.events))


@Route(
    "POST",
    "/predictions/{id}/webhooks/redeliver",
    name="predictions.webhooks.redeliver",
    summary="Tell the end of a prediction to its webhook again",
    scopes=("run", "admin"),
    of=prediction_id_of,
    parameters=PREDICTION_ID,
    answers={200: Answer("It is told at once.", Webhooks)},
    refusals={409, 410},
)
async def redeliver(request: Request) -> Response:
    account = request.account
    whose = None if "admin" in account.scopes else account.name
    if refusal := REFUSALS.get(await request.services.scripts.redeliver(request.prediction_id, account=whose)):
        raise refusal()
    return await get_webhooks(request)


async def story_of(request: Request) -> Known:
    """Return the story of the path's prediction to its owner or an operator; else raise 404."""
    known, account = await request.services.scripts.story(request.prediction_id), request.account
    if known is None or (known.record.account != account.name and "admin" not in account.scopes):
        raise not_found()
    if known.record.moved:
        raise Moved(known.record.moved)
    return known
