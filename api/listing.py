"""An account's predictions, newest first, a page at a time.

The index is written before the enqueue, so no prediction is ever missing from it; what it names and is not there any
more is skipped. A page is bounded in what it reads and in what it weighs, which is asked before anything is read: it
may be short and yet have a next one, and is over its weight by one prediction at most.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from api.answers import json_response
from api.auth import authenticate
from api.pages import PAGE_SIZE, Cursor, cursor_of, link
from api.parts import Parts, parts_of
from api.problems import InvalidField, invalid_input
from director.core.ids import PredictionId, lowest_id_at
from director.core.schema import Page, Prediction, Stored
from director.core.view import view

__all__ = ("list_predictions",)

PATH: Final = "/predictions"
MOST_READ: Final = 2_000
HEAVY_BYTES: Final = 4 << 20  # of a page: inputs and outputs are part of it
LATEST_MS: Final = (1 << 48) - 1  # of an id


class Span(Struct, frozen=True, kw_only=True):
    """Between which ids to look, as bounds of the index, and from which end."""

    low: str = "-"
    high: str = "+"
    newest_first: bool = True

    def past(self, prediction_id: PredictionId) -> "Span":
        """What is left of it after this id."""
        if self.newest_first:
            return Span(low=self.low, high=f"({prediction_id}", newest_first=True)
        return Span(low=f"({prediction_id}", high=self.high, newest_first=False)


class Found(Struct, frozen=True, kw_only=True):
    """What a walk through the index found. `first` and `last` are ids walked over, found or not."""

    results: list[Prediction]
    first: PredictionId | None
    last: PredictionId | None
    has_more: bool


async def list_predictions(request: Request) -> Response:
    """GET /predictions?cursor=&created_after=&created_before=."""
    account = await authenticate(request, "read")
    cursor, filters = cursor_of(request), _filters(request.query_params)
    found = await _walk(parts_of(request), account.name, _span(filters, cursor))
    if cursor is not None and cursor.backwards:
        found = _turned(found)
        older, newer = True, found.has_more
    else:
        older, newer = found.has_more, cursor is not None
    after = None if found.last is None else Cursor(found.last)
    before = None if found.first is None else Cursor(found.first, backwards=True)
    return json_response(
        Page(
            next=link(request, PATH, after, filters) if older else None,
            previous=link(request, PATH, before, filters) if newer else None,
            results=found.results,
        )
    )


def _filters(query: QueryParams) -> dict[str, str]:
    return {name: query[name] for name in ("created_after", "created_before") if query.get(name)}


def _span(filters: Mapping[str, str], cursor: Cursor | None) -> Span:
    low = f"[{_id_at('created_after', filters['created_after'])}" if "created_after" in filters else "-"
    high = f"({_id_at('created_before', filters['created_before'])}" if "created_before" in filters else "+"
    if cursor is None:
        return Span(low=low, high=high)
    return Span(low=low, high=high, newest_first=not cursor.backwards).past(PredictionId(cursor.at))


def _id_at(name: str, text: str) -> PredictionId:
    """The first id of a moment; 422 where it is none. Without an offset it is taken as UTC."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        at_ms = int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise invalid_input([InvalidField("format", name, "Must be a date and time as RFC 3339 has it")]) from None
    return lowest_id_at(min(max(at_ms, 0), LATEST_MS))


async def _walk(parts: Parts, account: str, span: Span) -> Found:
    results: list[Prediction] = []
    walked: list[PredictionId] = []
    room = HEAVY_BYTES
    while count := min(PAGE_SIZE - len(results), MOST_READ - len(walked)):
        ids = left = await _ids(parts, account, span, count=count)
        weights = await parts.glances.weights(ids)
        while fitting := _fitting(weights, room=room, is_first=not results):
            read, left, weights = left[:fitting], left[fitting:], weights[fitting:]
            # why each of a hundred waits is nothing to a list, and the dear part of a look
            looks = [parts.scripts.get(prediction_id, outlook=False) for prediction_id in read]
            found = [stored for stored in await asyncio.gather(*looks) if stored is not None]
            results += map(view, found)
            room -= sum(map(_weight, found))
            walked += read
        if left or len(ids) < count:
            break
        span = span.past(ids[-1])
    has_more = bool(walked) and bool(await _ids(parts, account, span.past(walked[-1]), count=1))
    return Found(
        results=results, first=walked[0] if walked else None, last=walked[-1] if walked else None, has_more=has_more
    )


async def _ids(parts: Parts, account: str, span: Span, *, count: int) -> list[PredictionId]:
    return await parts.listing.ids(account, low=span.low, high=span.high, count=count, newest_first=span.newest_first)


def _fitting(weights: Sequence[int | None], *, room: int, is_first: bool) -> int:
    """How many of these are read next, at once: those there is room for, up to one that tells its weight only then.

    The first of a page always is, so that every page leads on.
    """
    if room <= 0 and not is_first:
        return 0
    for place, weight in enumerate(weights):
        if weight is None:
            return place + 1
        room -= weight
        if room < 0:
            return place or int(is_first)
    return len(weights)


def _weight(stored: Stored) -> int:
    return len(stored.input or b"") + len(stored.output or b"") + len(stored.logs)


def _turned(found: Found) -> Found:
    """A walk from old to new, in the order of the list."""
    return Found(results=found.results[::-1], first=found.last, last=found.first, has_more=found.has_more)
