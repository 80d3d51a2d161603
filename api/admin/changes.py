"""Show what operators changed: who, when and what, oldest or newest first.

Only for tokens with the scope `admin`. Reads only. What became of predictions is in other logs: see `director audit`.
"""

import re
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from api.errors import InvalidField, invalid_input
from api.predictions.events import number_of
from api.request import Request
from api.response import json_response
from api.route import Answer, Parameter, Route
from director.core.view import iso
from director.store.changes import FIRST, Change

PAGE: Final = 100
MOST_IN_PAGE: Final = 1_000
Order = Literal["asc", "desc"]
ORDERS: Final = get_args(Order)
PLACE: Final = re.compile(r"[0-9]{1,15}-[0-9]{1,15}")


class ChangeView(Struct, frozen=True, kw_only=True):
    """One change on the wire. `entry` says where it stands; a `void` one takes back the other with its `id`."""

    entry: str
    id: str
    at: str
    by: str
    kind: str
    account: str | None
    queue: str | None
    detail: dict[str, Any]

    @classmethod
    def of(cls, change: Change) -> "ChangeView":
        return cls(
            entry=change.entry,
            id=change.id,
            at=iso(change.at),
            by=change.by,
            kind=change.kind,
            account=change.account or None,
            queue=change.queue or None,
            detail=msgspec.json.decode(change.detail),
        )


class ChangesView(Struct, frozen=True, kw_only=True):
    """One page. `next`: what to ask for `after`; oldest first, that leads on to what comes; newest first, it is null
    once there is no more.
    """

    changes: list[ChangeView]
    next: str | None


@Route(
    "GET",
    "/admin/audit",
    name="admin.audit.list",
    summary="List what operators changed: who, when and what",
    scopes=("admin",),
    site="asked",
    parameters=(
        Parameter("after", "The `next` of the page before.", Annotated[str, Meta(pattern="^[0-9]{1,15}-[0-9]{1,15}$")]),
        Parameter("order", "`asc`, the oldest first, or `desc`.", Order),
        Parameter("limit", "At most so many; 100 without.", Annotated[int, Meta(ge=1, le=MOST_IN_PAGE)]),
    ),
    answers={200: Answer("A page.", ChangesView)},
    refusals={422},
)
async def list_changes(request: Request) -> Response:
    after, order = request.query_params.get("after") or None, request.query_params.get("order") or "asc"
    if after is not None and not PLACE.fullmatch(after):
        raise invalid_input([InvalidField("format", "after", "Is not the `next` of a page of this list")])
    if order not in ORDERS:
        raise invalid_input([InvalidField("enum", "order", f"Must be one of {', '.join(ORDERS)}")])
    limit, changes = (
        number_of(request, "limit", default=PAGE, least=1, most=MOST_IN_PAGE),
        request.services.changes,
    )
    if order == "desc":
        found = await changes.before(after, count=limit)
        following = found[-1].entry if len(found) == limit else None
    else:
        found = await changes.after(after or FIRST, count=limit)
        following = found[-1].entry if found else after or FIRST
    return json_response(ChangesView(changes=[ChangeView.of(change) for change in found], next=following))
