"""List an account's predictions, or runs of another kind, newest first, a page at a time. The index is written before
the enqueue, and again when a create is repeated: so it has all whose create was answered. Entries of gone ones are
skipped. A page is bounded in entries and in bytes, so it may be short and yet have a next one.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from re import fullmatch
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from api.errors import InvalidField, forbidden, invalid_input
from api.http import PAGE_SIZE, Cursor, Request, cursor_of, walked_page
from api.predictions.waiters import Glance
from api.sites.lists import AWAY, ListedId, Lists, Sighting
from director.core.ids import MODEL_NAME, VERSION_ID, Kind, PredictionId, is_prediction_id, lowest_id_at
from director.core.schema import Prediction, Record
from director.core.states import Status
from director.core.view import PATHS, view
from director.store.accounts import ACCOUNT_NAME

# `created_after`, `created_before` and `source` are Replicate's filters; `status`, `model`, `version`, `account` ours.
LATEST_MS: Final = (1 << 48) - 1  # the largest time that an id can hold
SOURCES: Final = ("api", "web")

# filter → what a value must be, in words, and the check of a value
KNOWN: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "created_after": ("Must be a date and time as RFC 3339 has it", lambda text: _id_at(text)),
    "created_before": ("Must be a date and time as RFC 3339 has it", lambda text: _id_at(text)),
    "status": (f"Must be one of {', '.join(Status)}", lambda text: text in list(Status)),
    "model": ("Must be owner/name", lambda text: fullmatch(MODEL_NAME, text)),
    "version": ("Must be 64 hex digits", lambda text: fullmatch(VERSION_ID, text)),
    "account": ("Must be the name of an account", lambda text: fullmatch(ACCOUNT_NAME, text)),
    "source": (f"Must be one of {', '.join(SOURCES)}", lambda text: text in SOURCES),
}


class Filters(Struct, frozen=True):
    given: dict[str, str]

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> "Filters":
        """Read the filters from a query; an empty one counts as not given. Raises a 422 that names every wrong one."""
        given = {name: query[name] for name in KNOWN if query.get(name)}
        faults = [
            InvalidField("format", name, KNOWN[name][0]) for name, text in given.items() if not KNOWN[name][1](text)
        ]
        if faults:
            raise invalid_input(faults)
        return cls(given)

    def match(self, one: Glance | Record) -> bool:
        if self.given.get("source", "api") != "api":
            return False
        return all(
            self.given.get(name, value) == value
            for name, value in (("status", one.status), ("model", one.model), ("version", one.version))
        )


def created_ms(text: str) -> int | None:
    """Return a time that an id can hold, or None for another text."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        at_ms = int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
    return min(max(at_ms, 0), LATEST_MS)


def _id_at(text: str) -> PredictionId | None:
    at_ms = created_ms(text)
    return None if at_ms is None else lowest_id_at(at_ms)


MOST_READ: Final = 2_000
HEAVY_BYTES: Final = 4 << 20  # of a page, inputs and outputs included


class Span(Struct, frozen=True, kw_only=True):
    low: str = "-"
    high: str = "+"
    newest_first: bool = True

    @classmethod
    def of(cls, filters: Filters, cursor: Cursor | None) -> "Span":
        oldest, newest = (_id_at(filters.given.get(name, "")) for name in ("created_after", "created_before"))
        span = cls(low=f"[{oldest}" if oldest else "-", high=f"({newest}" if newest else "+")
        if cursor is None:
            return span
        return replace(span, newest_first=not cursor.backwards).past(PredictionId(cursor.at))

    def past(self, prediction_id: PredictionId) -> "Span":
        return replace(self, **{"high" if self.newest_first else "low": f"({prediction_id}"})


async def list_of_kind(request: Request, kind: Kind) -> Response:
    """List the runs of one kind. Only operators may list another account's."""
    account = request.account
    cursor, filters = cursor_of(request, is_place=is_prediction_id), Filters.parse(request.query_params)
    whose = filters.given.get("account", account.name)
    if whose != account.name and "admin" not in account.scopes:
        raise forbidden("Only a token with the scope 'admin' may list the predictions of another account.")
    lists = Lists.of(request)
    results, walked, has_more = await _walk(lists, whose, kind, Span.of(filters, cursor), filters)
    response = walked_page(request, f"/{PATHS[kind]}", results, walked, has_more=has_more, kept=filters.given)
    if lists.away:
        response.headers[AWAY] = ", ".join(sorted(lists.away))
    return response


async def _walk(
    lists: Lists, account: str, kind: Kind, span: Span, filters: Filters
) -> tuple[list[Prediction], list[PredictionId], bool]:
    results: list[Prediction] = []
    walked: list[PredictionId] = []
    room = HEAVY_BYTES
    while count := min(PAGE_SIZE - len(results), MOST_READ - len(walked)):
        listed = await _ids(lists, account, kind, span, count=count)
        left = await lists.look(listed)
        while fitting := _fitting(left, filters, room=room, is_first=not results):
            taken, left = left[:fitting], left[fitting:]
            for stored in await lists.read([one for one in taken if filters.match(one.glance)]):
                # it may have changed since the glance
                if not stored.record.moved and filters.match(stored.record):
                    results.append(view(stored))
                    room -= len(stored.input or b"") + len(stored.output or b"") + len(stored.logs)
            walked += [one.glance.id for one in taken]
        if left or len(listed) < count:
            break
        span = span.past(listed[-1].id)
    return results, walked, bool(walked) and bool(await _ids(lists, account, kind, span.past(walked[-1]), count=1))


async def _ids(lists: Lists, account: str, kind: Kind, span: Span, *, count: int) -> list[ListedId]:
    return await lists.ids(account, kind, low=span.low, high=span.high, count=count, newest_first=span.newest_first)


def _fitting(looked: Sequence[Sighting], filters: Filters, *, room: int, is_first: bool) -> int:
    """Return how many of these fit into `room` and are read at once, up to the first whose weight is not known yet. The
    first of a page is always read, so that every page leads on.
    """
    if room <= 0 and not is_first:
        return 0
    for place, one in enumerate(looked):
        weight = one.glance.weight if filters.match(one.glance) else 0
        if weight is None:
            return place + 1
        room -= weight
        if room < 0:
            return place or int(is_first)
    return len(looked)
