"""Let operators list, show, revive and drop dead letters, with the scope `operate`. A call that handles many stops
after a time and says where the next continues.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Final

from msgspec import Meta, Raw, Struct, field
from msgspec.structs import asdict
from starlette.responses import Response

from api.accounts.auth import name_operator
from api.web.errors import InvalidField, invalid_field, invalid_input, not_found, secrets_gone
from api.web.http import (
    PAGE_SIZE,
    Cursor,
    Request,
    cursor_of,
    decode_body,
    json_response,
    page_response,
    prediction_id_of,
)
from api.web.route import CURSOR, Answer, Body, Parameter, operates, oversees
from director.core.ids import PredictionId, QueueName, is_prediction_id
from director.core.schema import Page
from director.store.dead import Asked, DeadCursor, DeadLetter, DeadLetters, Done

PATH: Final = "/admin/dead"
MOST_IDS: Final = 1_000
LONGEST_S: Final = 20.0  # below the usual timeout of a proxy in front
ONE: Final = "A prediction that is no dead letter, or whose input is gone, is a 404."
MANY: Final = "Name the letters in `ids`, or take `all`. A long call stops early: send its `next` as `cursor` to go on."
DONE: Final = {200: Answer("What was done.", Done)}
Slices = AsyncIterator[list[DeadCursor]]


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


@oversees(
    "/admin/dead",
    name="admin.dead.list",
    summary="List dead letters of all accounts",
    about=(
        "A dead letter is a prediction that used up its attempts. It is kept with the history of each attempt until"
        " an operator revives or drops it."
    ),
    parameters=(CURSOR, Parameter("queue", "Only of this queue.")),
    answers={200: Answer("A page, newest first.", Page[DeadLetter])},
)
async def list_dead(request: Request) -> Response:
    dead = request.services.dead
    queue, cursor = request.query_params.get("queue", ""), cursor_of(request)
    before = None if cursor is None else _read_cursor(cursor.at)
    letters = await dead.page(await _queues(request, queue), before=before, count=PAGE_SIZE)
    older, kept = Cursor(letters.next) if letters.next else None, {"queue": queue} if queue else None
    return page_response(request, PATH, letters.results, older=older, kept=kept)


@oversees(
    "/admin/dead/{id}",
    name="admin.dead.get",
    summary="Get a dead letter, with its input",
    about="The answer has the input that the prediction would run on again.",
    answers={200: Answer("The letter.", WholeLetter)},
)
async def get_dead(request: Request) -> Response:
    shown = await request.services.dead.show(prediction_id_of(request))
    if shown is None:
        raise not_found()
    return json_response(WholeLetter(**asdict(shown.letter), input=shown.input))


def _serve(verb: str, act: Callable[..., Awaitable[Done]], *, one: str, many: str, about: str) -> None:
    @operates(
        f"/admin/dead/{{id}}/{verb}",
        name=f"admin.dead.{verb}",
        summary=one,
        about=f"{about} {ONE}",
        answers=DONE,
    )
    async def decide_on_one(request: Request) -> Response:
        """Answer 404 for a prediction that is no dead letter, or whose input is gone; 409 if its secrets are gone."""
        ids, dead = [prediction_id_of(request)], request.services.dead
        slices = _slices(await dead.find(ids))
        done = await act(dead, slices, by=name_operator(request.account), asked=Asked(ids=ids))
        if done.secret:
            raise secrets_gone()
        if not done.done:
            raise not_found()
        return json_response(done)

    @operates(
        f"/admin/dead/{verb}",
        name=f"admin.dead.{verb}_many",
        summary=many,
        about=f"{about} {MANY}",
        body=Body(ManyLetters),
        answers=DONE,
    )
    async def decide_on_many(request: Request) -> Response:
        dead = request.services.dead
        given = await decode_body(request, ManyLetters, max_bytes=request.services.settings.max_body_bytes)
        slices, asked = await _select(request, given)
        done = await act(
            dead, slices, by=name_operator(request.account), asked=asked, rate=given.rate, within_s=LONGEST_S
        )
        return json_response(done)


_serve(
    "revive",
    DeadLetters.revive,
    one="Revive a dead letter",
    many="Revive dead letters",
    about="The prediction returns to its queue with all its attempts. Repair the cause first.",
)
_serve(
    "drop",
    DeadLetters.drop,
    one="Drop a dead letter",
    many="Drop dead letters",
    about="The letter is removed for good. Its prediction stays failed.",
)


async def _select(request: Request, given: ManyLetters) -> tuple[Slices, Asked]:
    if bool(given.ids) == given.is_all:
        raise invalid_field("required", "", 'Either "ids" or "all" is required')
    if bad := [f"ids.{place}" for place, name in enumerate(given.ids) if not is_prediction_id(name)]:
        raise invalid_input([InvalidField("format", where, "Is not the id of a prediction") for where in bad])
    before = _read_cursor(given.cursor) if given.cursor else None
    if given.is_all:
        return request.services.dead.every(await _queues(request, given.queue), before=before), Asked(queue=given.queue)
    ids = [PredictionId(name) for name in dict.fromkeys(given.ids)]
    if before is not None:
        if before.id not in ids:
            raise invalid_field("enum", "cursor", "Is of none of these ids")
        ids = ids[ids.index(before.id) + 1 :]
    return _slices(await request.services.dead.find(ids)), Asked(ids=ids)


async def _slices(cursors: list[DeadCursor]) -> Slices:
    yield cursors


async def _queues(request: Request, queue: str) -> list[QueueName]:
    known = await request.services.catalog.queues()
    if not queue:
        return known
    if queue not in known:
        raise invalid_field("enum", "queue", "There is no such queue")
    return [QueueName(queue)]


def _read_cursor(text: str) -> DeadCursor:
    cursor = DeadCursor.parse(text)
    if cursor is None:
        raise invalid_field("format", "cursor", "Is not a cursor of this list")
    return cursor
