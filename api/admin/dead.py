"""Let operators list, show, revive and drop dead letters: one, many or all.

Only for tokens with the scope `admin`, which then cover all accounts. A call that handles many stops after a time and
says from where the next call continues, so that no caller waits without end.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Final

from msgspec import Meta, Raw, Struct, field
from msgspec.structs import asdict
from starlette.responses import Response

from api.auth import named
from api.contract import CURSOR, PREDICTION_ID
from api.errors import InvalidField, invalid_input, not_found
from api.request import Request, decode_json, prediction_id_of, read_body
from api.response import PAGE_SIZE, Cursor, cursor_of, json_response, link
from api.route import Answer, Body, Parameter, Route
from director.core.ids import PredictionId, QueueName, is_prediction_id
from director.core.schema import Page
from director.store.dead import Asked, DeadLetter, DeadLetters, Done, Place

PATH: Final = "/admin/dead"
MOST_IDS: Final = 1_000
LONGEST_S: Final = 20.0  # below the usual timeout of a proxy in front

DONE: Final = {200: Answer("What was done.", Done)}

Slices = AsyncIterator[list[Place]]
Act = Callable[..., Awaitable[Done]]


class ManyLetters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which letters: those named, or `all` of one queue or of every one. `cursor`: the `next` of the last answer."""

    ids: Annotated[tuple[str, ...], Meta(max_length=MOST_IDS)] = ()
    queue: str = ""
    is_all: bool = field(default=False, name="all")
    rate: Annotated[float, Meta(gt=0)] | None = None
    cursor: str = ""


class WholeLetter(DeadLetter, frozen=True, kw_only=True):
    """A letter and the input that it would run on again; null once that was removed."""

    input: Raw | None


@Route(
    "GET",
    "/admin/dead",
    name="admin.dead.list",
    summary="List dead letters of all accounts",
    scopes=("admin",),
    site="asked",
    parameters=(CURSOR, Parameter("queue", "Only of this queue.")),
    answers={200: Answer("A page, newest first.", Page[DeadLetter])},
)
async def list_dead(request: Request) -> Response:
    dead = request.services.dead
    queue, cursor = request.query_params.get("queue", ""), cursor_of(request)
    before = None if cursor is None else _place(cursor.at)
    letters = await dead.page(await _queues(request, queue), before=before, count=PAGE_SIZE)
    kept: Mapping[str, str] = {"queue": queue} if queue else {}
    following = link(request, PATH, Cursor(letters.next), kept) if letters.next else None
    return json_response(Page(next=following, previous=None, results=letters.results))


@Route(
    "GET",
    "/admin/dead/{id}",
    name="admin.dead.get",
    summary="Get a dead letter, with its input",
    scopes=("admin",),
    site="asked",
    parameters=PREDICTION_ID,
    answers={200: Answer("The letter.", WholeLetter)},
)
async def get_dead(request: Request) -> Response:
    dead = request.services.dead
    shown = await dead.show(prediction_id_of(request))
    if shown is None:
        raise not_found()
    return json_response(WholeLetter(**asdict(shown.letter), input=shown.input))


@Route(
    "POST",
    "/admin/dead/{id}/revive",
    name="admin.dead.revive",
    summary="Return a dead letter to its queue",
    scopes=("admin",),
    site="asked",
    parameters=PREDICTION_ID,
    answers=DONE,
)
async def revive_one_dead(request: Request) -> Response:
    dead, by = request.services.dead, named(request.account)
    return await _one(request, dead, partial(dead.revive, by=by))


@Route(
    "POST",
    "/admin/dead/{id}/drop",
    name="admin.dead.drop",
    summary="Give a dead letter up",
    scopes=("admin",),
    site="asked",
    parameters=PREDICTION_ID,
    answers=DONE,
)
async def drop_one_dead(request: Request) -> Response:
    dead, by = request.services.dead, named(request.account)
    return await _one(request, dead, partial(dead.drop, by=by))


@Route(
    "POST",
    "/admin/dead/revive",
    name="admin.dead.revive_many",
    summary="Return dead letters to their queues",
    scopes=("admin",),
    site="asked",
    body=Body(ManyLetters),
    answers=DONE,
)
async def revive_dead(request: Request) -> Response:
    dead, by = request.services.dead, named(request.account)
    return await _many(request, dead, partial(dead.revive, by=by))


@Route(
    "POST",
    "/admin/dead/drop",
    name="admin.dead.drop_many",
    summary="Give dead letters up",
    scopes=("admin",),
    site="asked",
    body=Body(ManyLetters),
    answers=DONE,
)
async def drop_dead(request: Request) -> Response:
    dead, by = request.services.dead, named(request.account)
    return await _many(request, dead, partial(dead.drop, by=by))


async def _one(request: Request, dead: DeadLetters, act: Act) -> Response:
    """Answer 200 with what was done. Raises a 404 for a prediction that is no dead letter, or whose input is gone."""
    ids = [prediction_id_of(request)]
    done = await act(_slices(await dead.named(ids)), asked=Asked(ids=ids))
    if not done.done:
        raise not_found()
    return json_response(done)


async def _many(request: Request, dead: DeadLetters, act: Act) -> Response:
    body = await read_body(request, max_bytes=request.services.settings.max_body_bytes)
    asked = decode_json(body, ManyLetters)
    if bool(asked.ids) == asked.is_all:
        raise invalid_input([InvalidField("required", "", 'Either "ids" or "all" is required')])
    if bad := [f"ids.{place}" for place, name in enumerate(asked.ids) if not is_prediction_id(name)]:
        raise invalid_input([InvalidField("format", where, "Is not the id of a prediction") for where in bad])
    before = _place(asked.cursor) if asked.cursor else None
    ids = [PredictionId(name) for name in dict.fromkeys(asked.ids)]
    if asked.is_all:
        slices = dead.every(await _queues(request, asked.queue), before=before)
    else:
        slices = _slices(await dead.named(ids))
    which = Asked(ids=ids, queue=asked.queue if asked.is_all else "")
    return json_response(await act(slices, asked=which, rate=asked.rate, within_s=LONGEST_S))


async def _slices(places: list[Place]) -> Slices:
    yield places


async def _queues(request: Request, queue: str) -> list[QueueName]:
    """Return the named queue, or all. Raises a 422 for an unknown one."""
    known = await request.services.catalog.queues()
    if not queue:
        return known
    if queue not in known:
        raise invalid_input([InvalidField("enum", "queue", "There is no such queue")])
    return [QueueName(queue)]


def _place(text: str) -> Place:
    place = Place.parse(text)
    if place is None:
        raise invalid_input([InvalidField("format", "cursor", "Is not a cursor of this list")])
    return place
