"""List an account's predictions, or runs of another kind, newest first, a page at a time. The index is written before
the enqueue, and again when a create is repeated, so it has every prediction whose create was answered. Entries of
predictions that are gone are skipped. A page is bounded in entries and in bytes, so it may be short and yet have a next
one.

Predictions on several sites are listed as if they were on one. Ids sort by time wherever they were made, so one cursor
is enough. The response names sites that do not answer.
"""

import asyncio
from collections import ChainMap
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from re import fullmatch
from typing import Annotated, Final, NamedTuple, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace
from starlette.responses import Response

from api.predictions.bodies import show_as_known
from api.services.services import Services
from api.sites.sites import AWAY, Sites
from api.web.errors import InvalidField, forbidden, invalid_input
from api.web.http import PAGE_SIZE, Cursor, Request, answer_page, cursor_of, services_of
from api.web.route import CURSOR, Answer, Parameter, one_of
from director.broker.gatherer import LARGE_BYTES
from director.core.errors import BackendUnavailable
from director.core.ids import MODEL_NAME, VERSION_ID, Kind, PredictionId, is_prediction_id, lowest_id_at, site_of
from director.core.schema import Page, Prediction, Record, Stored
from director.core.states import Status
from director.core.view import PATHS, view
from director.files.data_files import DataAway
from director.store.accounts import ACCOUNT_NAME
from director.store.glances import Glance

Found = TypeVar("Found")

# `created_after`, `created_before` and `source` are Replicate's filters; `status`, `model`, `version`, `account` ours.
LATEST_MS: Final = (1 << 48) - 1  # the largest time that an id can hold
MADE_IN: Final = ("api", "web")  # the values of `source`

COUNT: Final = "[1-9][0-9]{0,2}"
# filter → what a value must be, in words, and the check of a value
KNOWN: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "created_after": ("Must be a date and time as RFC 3339 has it", lambda text: _id_at(text)),
    "created_before": ("Must be a date and time as RFC 3339 has it", lambda text: _id_at(text)),
    "status": (f"Must be one of {', '.join(Status)}", lambda text: text in list(Status)),
    "model": ("Must be owner/name", lambda text: fullmatch(MODEL_NAME, text)),
    "version": ("Must be 64 hex digits", lambda text: fullmatch(VERSION_ID, text)),
    "account": ("Must be the name of an account", lambda text: fullmatch(ACCOUNT_NAME, text)),
    "limit": (
        f"Must be a whole number from 1 to {PAGE_SIZE}",
        lambda text: fullmatch(COUNT, text) and int(text) <= PAGE_SIZE,
    ),
    "source": (f"Must be one of {', '.join(MADE_IN)}", lambda text: text in MADE_IN),
}

FILTERS: Final = (
    CURSOR,
    Parameter("created_after", "A date and time as in RFC 3339, such as 2026-11-23T04:00:00Z."),
    Parameter("created_before", "A date and time as in RFC 3339, such as 2026-11-23T04:00:00Z."),
    Parameter("status", "Only those with this status.", one_of(*Status)),
    Parameter("model", "Only those of this model, `owner/name`.", Annotated[str, Meta(pattern=MODEL_NAME)]),
    Parameter("version", "Only those of this version.", Annotated[str, Meta(pattern=VERSION_ID)]),
    Parameter(
        "account", "Of this account. Needs a scope over all of them.", Annotated[str, Meta(pattern=ACCOUNT_NAME)]
    ),
    Parameter("limit", "The most to return; 100 without it.", Annotated[int, Meta(ge=1, le=100)]),
    Parameter("source", "Replicate's filter. `web` finds nothing here.", one_of("api", "web")),
)
LISTED: Final = {200: Answer("A page, newest first.", Page[Prediction])}


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

    @property
    def limit(self) -> int:
        """Return how many a page has at most."""
        return int(self.given.get("limit", PAGE_SIZE))

    def match(self, one: Glance | Record) -> bool:
        if self.given.get("source", "api") != "api":
            return False
        return all(
            self.given.get(name, value) == value
            for name, value in (("status", one.status), ("model", one.model), ("version", one.version))
        )


def parse_created_ms(text: str) -> int | None:
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
    at_ms = parse_created_ms(text)
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


class Source(NamedTuple):
    name: str
    services: Services


class ListedId(NamedTuple):
    id: PredictionId
    source: Source


class Sighting(NamedTuple):
    glance: Glance
    source: Source


class Lists:
    """The lists of all sites, for one request. `away` names those that did not answer. If none answers, methods raise
    BackendUnavailable.
    """

    def __init__(self, sources: Sequence[Source], away: Sequence[str] = ()) -> None:
        self._sources = tuple(sources)
        self.away = set(away)

    @classmethod
    def of(cls, request: Request) -> "Lists":
        sites: Sites | None = request.sites
        if sites is None:
            return cls([Source("", services_of(request))])
        up = [Source(site.name, site.services) for site in sites.all if site.is_up]
        return cls(up, sorted(sites.by_name.keys() - {source.name for source in up}))

    async def ids(self, account: str, kind: Kind, span: Span, *, count: int) -> list[ListedId]:
        """Return at most `count` ids in order. A moved prediction is listed at its new site first, then at its old."""

        async def read(source: Source) -> list[ListedId]:
            ids = await source.services.predictions.ids(
                account, kind, low=span.low, high=span.high, count=count, newest_first=span.newest_first
            )
            return [ListedId(prediction_id, source) for prediction_id in ids]

        found = [one for some in await self._each(read, self._left) for one in some]
        if len(self._sources) > 1:
            found.sort(key=lambda one: site_of(one.id) == one.source.services.site)
            found.sort(key=lambda one: one.id, reverse=span.newest_first)
        return found[:count]

    async def look(self, listed: Sequence[ListedId]) -> list[Sighting]:
        """Return a glance at each, in order. Those whose site stopped answering meanwhile are left out."""

        async def read(source: Source) -> list[Sighting]:
            ids = [one.id for one in listed if one.source is source]
            return [Sighting(glance, source) for glance in await source.services.glances.at(ids)]

        found = [one for some in await self._each(read, self._left) for one in some]
        if len(self._sources) == 1:
            return found
        known = {(one.glance.id, one.source.name): one for one in found}
        return [known[one.id, one.source.name] for one in listed if (one.id, one.source.name) in known]

    async def read(self, looked: Sequence[Sighting]) -> list[Stored]:
        is_heavy = sum(one.glance.weight or 0 for one in looked) >= LARGE_BYTES

        async def get(one: Sighting) -> Stored | None:
            # without the outlook, which is expensive and not shown in a list
            scripts, glance = one.source.services.scripts, one.glance
            try:
                return await scripts.get(glance.id, outlook=False, size=glance.weight if is_heavy else None)
            except DataAway as exc:  # a file that cannot be read hides no other prediction, and no site
                return exc.without

        if len(self._sources) == 1:
            return [stored for stored in await asyncio.gather(*map(get, looked)) if stored is not None]

        async def of(source: Source) -> dict[tuple[PredictionId, str], Stored | None]:
            some = [one for one in looked if one.source is source]
            found = await asyncio.gather(*map(get, some))
            return {(one.glance.id, source.name): stored for one, stored in zip(some, found, strict=True)}

        found = dict(ChainMap(*await self._each(of, self._left)))
        return [stored for one in looked if (stored := found.get((one.glance.id, one.source.name))) is not None]

    @property
    def _left(self) -> list[Source]:
        return [source for source in self._sources if source.name not in self.away]

    async def _each(self, ask: Callable[[Source], Awaitable[Found]], sources: Sequence[Source]) -> list[Found]:
        if len(self._sources) == 1 and not self.away:
            return [await ask(self._sources[0])]
        answers = await asyncio.gather(*map(ask, sources), return_exceptions=True)
        found: list[Found] = []
        for source, answer in zip(sources, answers, strict=True):
            if isinstance(answer, BackendUnavailable):
                self.away.add(source.name)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append(answer)
        if not self._left:
            raise BackendUnavailable("no site answers")
        return found


async def list_of_kind(request: Request, kind: Kind) -> Response:
    """List the runs of one kind. Only operators may list another account's."""
    account = request.account
    cursor, filters = cursor_of(request, is_place=is_prediction_id), Filters.parse(request.query_params)
    whose = filters.given.get("account", account.name)
    if not account.may_look_into(whose):
        raise forbidden("Only a token with the scope 'view' or 'admin' may list the predictions of another account.")
    lists = Lists.of(request)
    results, walked, has_more = await _walk(lists, whose, kind, Span.of(filters, cursor), filters)
    results = [show_as_known(request, one) for one in results]
    response = answer_page(request, f"/{PATHS[kind]}", results, walked, has_more=has_more, kept=filters.given)
    if lists.away:
        response.headers[AWAY] = ", ".join(sorted(lists.away))
    return response


async def _walk(
    lists: Lists, account: str, kind: Kind, span: Span, filters: Filters
) -> tuple[list[Prediction], list[PredictionId], bool]:
    results: list[Prediction] = []
    walked: list[PredictionId] = []
    room = HEAVY_BYTES
    most_read = MOST_READ * filters.limit // PAGE_SIZE  # a short page asks for few at a time
    while count := min(filters.limit - len(results), most_read - len(walked)):
        listed = await lists.ids(account, kind, span, count=count)
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
    return results, walked, bool(walked) and bool(await lists.ids(account, kind, span.past(walked[-1]), count=1))


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
