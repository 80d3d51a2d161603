"""Let operators list, cancel and retry predictions of all accounts, one or many, with the scope `operate`. The log of
changes has each call, with its operator and the number of predictions. A call that handles many says where to go on.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import asdict, replace
from starlette.responses import Response

from api.accounts.auth import name_operator
from api.predictions.intake import file_at
from api.predictions.listing import FILTERS, Filters, parse_created_ms
from api.web.errors import InvalidField, invalid_field, invalid_input, not_found
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
from api.web.route import CURSOR, Answer, Body, Parameter, one_of, operates, oversees
from director.core.errors import SettingsError
from director.core.ids import PredictionId, is_prediction_id, new_ticket
from director.core.schema import Page
from director.core.states import Status
from director.core.view import PATHS
from director.store.across import BulkAnswer, Filter, PredictionBrief, Walked

PATH: Final = "/admin/predictions"
MOST_IDS: Final = 500
CODE: Final = r"^[a-z0-9_]{1,64}$"
KINDS: Final = {name.removesuffix("s"): kind for kind, name in PATHS.items()}
ONE: Final = "`refused` says why it was left alone."
MANY: Final = (
    "Name them in `ids`, or by a filter, or take `all`. One call looks at 2,000 of the newest and handles up to 500. "
    "Send its `next` as `cursor` to go on; null: nothing is left."
)
DONE: Final = {200: Answer("What was done, what was left alone and why, and where to go on.", BulkAnswer)}
ASKED: Final = (
    *(parameter for parameter in FILTERS if parameter.name not in ("account", "limit", "source")),
    Parameter("account", "Only those of this account.", next(one.type for one in FILTERS if one.name == "account")),
    Parameter("code", "Only those that ended with this error code.", Annotated[str, Meta(pattern=CODE)]),
    Parameter("kind", "Runs of this kind; without it predictions.", one_of(*KINDS)),
    Parameter("previews", "With the beginnings of input and output, where they are short.", one_of("true", "false")),
)


Condition = Annotated[str, Meta(min_length=1)] | UnsetType
"""An empty one is refused: as no condition it would make a call reach far more than its author meant."""


class ManyPredictions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which ones: those named, or those that match every condition, or `all`. `cursor`: `next` of the last answer."""

    ids: Annotated[tuple[str, ...], Meta(max_length=MOST_IDS)] = ()
    is_all: bool = field(default=False, name="all")
    account: Condition = UNSET
    model: Condition = UNSET
    version: Condition = UNSET
    kind: Condition = UNSET
    status: Condition = UNSET
    code: Annotated[str, Meta(pattern=CODE)] | UnsetType = UNSET
    created_after: Condition = UNSET
    created_before: Condition = UNSET
    cursor: str = ""


CONDITIONS: Final = frozenset(ManyPredictions.__struct_fields__) - {"ids", "is_all", "cursor"}


@oversees(
    "/admin/predictions",
    name="admin.predictions.list",
    summary="List predictions of all accounts",
    about=(
        "Pages have up to 100, the newest first, without input and output: `GET /predictions/{id}` has those. One "
        "request looks at 2,000 of the newest, so with a filter a page may be short and have a `next` all the same."
    ),
    parameters=ASKED,
    answers={200: Answer("A page, newest first.", Page[PredictionBrief])},
    refusals={422},
)
async def list_all(request: Request) -> Response:
    cursor, given = cursor_of(request, is_place=is_prediction_id), dict(request.query_params)
    below = None if cursor is None else PredictionId(cursor.at)
    wanted = _filter(given)
    if (previews := given.get("previews", "false")) not in ("true", "false"):
        raise invalid_field("enum", "previews", "Must be true or false")
    page = await _page(request, wanted, below, count=PAGE_SIZE)
    if previews == "true":
        page = replace(page, results=await request.services.across.with_previews(page.results))
    older = Cursor(page.next) if page.next else None
    kept = {one.name: given[one.name] for one in ASKED if one is not CURSOR and given.get(one.name)}
    return page_response(request, PATH, page.results, older=older, kept=kept)


def _serve(verb: str, about: str) -> None:
    @operates(
        f"/admin/predictions/{{id}}/{verb}",
        name=f"admin.predictions.{verb}",
        summary=f"{verb.title()} a prediction of any account",
        about=f"{about} {ONE}",
        site="home",
        of=prediction_id_of,
        answers=DONE,
    )
    async def change_one(request: Request) -> Response:
        """Answer 404 for an unknown one."""
        done = await _change(request, verb, [request.prediction_id], None)
        if [one.why for one in done.refused] == ["unknown"]:
            raise not_found()
        return json_response(done)

    @operates(
        f"/admin/predictions/{verb}",
        name=f"admin.predictions.{verb}_many",
        summary=f"{verb.title()} predictions of any account",
        about=f"{about} {MANY}",
        body=Body(ManyPredictions),
        answers=DONE,
    )
    async def change_many(request: Request) -> Response:
        given = await decode_body(request, ManyPredictions, max_bytes=request.services.settings.max_body_bytes)
        asked = {name: value for name, value in asdict(given).items() if value and name in CONDITIONS}
        if [bool(given.ids), bool(asked), given.is_all].count(True) != 1:
            raise invalid_field("required", "", 'Either "ids", a filter or "all" is required')
        if given.ids:
            return json_response(await _change(request, verb, _ids(given), None))
        return json_response(await _change_found(request, verb, given, asked))


async def _change_found(request: Request, verb: str, given: ManyPredictions, asked: Mapping[str, str]) -> BulkAnswer:
    if given.cursor and not is_prediction_id(given.cursor):
        raise invalid_field("format", "cursor", "Is not a cursor of this list")
    wanted, below = _filter(asked), PredictionId(given.cursor) if given.cursor else None
    if verb == "retry" and not wanted.status:  # what succeeded or was canceled is run again only by its status
        wanted = replace(wanted, status=Status.FAILED)
    page = await _page(request, replace(wanted, is_terminal=verb == "retry"), below, count=MOST_IDS)
    if not page.results:
        return BulkAnswer(done=0, refused=[], next=page.next)
    return replace(await _change(request, verb, [one.id for one in page.results], wanted), next=page.next)


_serve("cancel", "One that waits is canceled at once. One that runs is asked to stop.")
_serve(
    "retry",
    "A dead letter returns to its queue. Any other prediction that has ended stays as it is. A new prediction with the "
    "same input is made for the same account, within its limits. One end is retried once: a second call within a "
    "day gives the same id. Without a `status`, a filter and `all` take those that failed.",
)


async def _change(request: Request, verb: str, ids: list[PredictionId], wanted: Filter | None) -> BulkAnswer:
    services, by = request.services, name_operator(request.account)
    if verb == "cancel":
        return await services.across.cancel(ids, by=by, wanted=wanted)
    return await services.across.retry(
        ids, by=by, ticket=new_ticket, enter=partial(file_at, services), site=services.site, wanted=wanted
    )


async def _page(request: Request, wanted: Filter, below: PredictionId | None, *, count: int) -> Walked:
    try:
        return await request.services.across.page(wanted, below=below, count=count)
    except SettingsError as exc:
        raise invalid_field("required", "account", str(exc)) from exc


def _ids(given: ManyPredictions) -> list[PredictionId]:
    if bad := [f"ids.{place}" for place, name in enumerate(given.ids) if not is_prediction_id(name)]:
        raise invalid_input([InvalidField("format", where, "Is not the id of a prediction") for where in bad])
    return [PredictionId(name) for name in dict.fromkeys(given.ids)]


def _filter(given: Mapping[str, str]) -> Filter:
    """Read the conditions. Raises a 422 that names every wrong one."""
    found = Filters.parse(given).given
    if (kind := given.get("kind", "")) and kind not in KINDS:
        raise invalid_field("format", "kind", f"Must be one of {', '.join(KINDS)}")
    after, before = (parse_created_ms(found.get(name, "")) for name in ("created_after", "created_before"))
    return Filter(
        account=found.get("account", ""),
        model=found.get("model", ""),
        version=found.get("version", ""),
        status=found.get("status", ""),
        code=given.get("code", ""),
        kind=KINDS[kind] if kind else "",
        created_after_ms=after,
        created_before_ms=before,
    )
