"""Show operators directors, owed webhooks, this process's metrics and a live view, with a scope over all accounts.
Directors are known by their heartbeats; no director is asked. The metrics also have a token of their own.
"""

import asyncio
import hmac
import logging
import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final, Literal, cast, get_args

import anyio
import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from api.accounts.auth import authenticate, may_still, name_operator
from api.predictions.streams import STREAM, EventStream
from api.services.stream_events import KEEP_ALIVE, KEEP_ALIVE_S
from api.services.stream_readers import PIECE_BYTES, STALL_S, Send
from api.web.errors import invalid_field
from api.web.http import Request, cursor_of, decode_body, json_response, number_of, page_after, page_response
from api.web.route import CURSOR, OVERSEES, Answer, Body, Parameter, Route, operates, oversees
from director.core.ids import QueueName
from director.core.schema import Page
from director.core.trends import RANGES, Point, Range, quantile_s
from director.core.view import iso
from director.operate.views import DirectorView, director_view
from director.store.changes import FIRST, Change
from director.store.owed import OwedView, Redelivered
from director.store.trends import ALL, Trend

PATH: Final = "/admin/directors"


@oversees(
    "/admin/directors",
    name="admin.directors.list",
    summary="List directors with their model servers",
    about=(
        "A director is known by its heartbeats; none is asked. One that stopped sending them stays in the list for "
        "some minutes with `alive` false."
    ),
    parameters=(CURSOR, Parameter("queue", "Only of this queue.")),
    answers={200: Answer("A page, by name.", Page[DirectorView])},
)
async def list_directors(request: Request) -> Response:
    services, queue, cursor = request.services, request.query_params.get("queue", ""), cursor_of(request)
    queues = await services.queues.all()
    newcomers = [one for one in await services.directors.newcomers() if queue in ("", one.last.queue)]
    if queue and queue not in queues and not newcomers:
        raise invalid_field("enum", "queue", "There is no such queue")
    found = [
        *newcomers,
        *await services.directors.of([QueueName(queue)] if queue in queues else [] if queue else queues),
    ]
    found.sort(key=lambda one: one.name)
    page, more = page_after(found, cursor, lambda one: one.name)
    kept = {"queue": queue} if queue else None
    return page_response(request, PATH, [director_view(one) for one in page], older=more, kept=kept)


LONGEST_HOST: Final = 300


@oversees(
    "/admin/owed",
    name="admin.owed.get",
    summary="Get the webhooks that are owed",
    about=(
        "A webhook is owed when its prediction has ended and its receiver has not accepted it yet. The answer "
        "counts them by receiver and lists those that are tried next."
    ),
    parameters=(Parameter("host", "Only to this host.", Annotated[str, Meta(max_length=LONGEST_HOST)]),),
    answers={200: Answer("What is owed, those whose next attempt comes first.", OwedView)},
    refusals={422},
)
async def get_owed(request: Request) -> Response:
    host = request.query_params.get("host", "")
    if len(host) > LONGEST_HOST:
        raise invalid_field("max_length", "host", f"Has at most {LONGEST_HOST} characters")
    return json_response(await request.services.owed.look(host=host))


MAX_BODY: Final = 4_096


class AskedRedelivery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The receiver, by the host of its address."""

    host: Annotated[str, Meta(min_length=1, max_length=LONGEST_HOST)]


@operates(
    "/admin/owed/redeliver",
    name="admin.owed.redeliver",
    summary="Send the webhooks of a receiver again",
    about=(
        "What the host is owed is due at once, in place of its next attempt. One call looks at 2,000 next attempts at "
        "most, an equal part of each partition. With `more` some were not looked at: repeat it later for the rest. "
        "`left`: those that cannot be sent any more, because their data is gone."
    ),
    body=Body(AskedRedelivery),
    answers={200: Answer("How many are sent.", Redelivered)},
)
async def redeliver_owed(request: Request) -> Response:
    asked = await decode_body(request, AskedRedelivery, max_bytes=MAX_BODY)
    return json_response(await request.services.redelivery.redeliver(asked.host, by=name_operator(request.account)))


@Route("GET", "/metrics")
async def get_metrics(request: Request) -> Response:
    """Answer as text, or as OpenMetrics. With the token of the settings no Redis is needed, as in an outage."""
    services = request.services
    if not _has_token(request, services.settings.metrics_token):
        await authenticate(request, *OVERSEES)
    text, kind = await services.meters.registry.page(request.headers.get("accept", ""))
    return Response(text, headers={"Content-Type": kind})


def _has_token(request: Request, token: str) -> bool:
    _, _, given = request.headers.get("authorization", "").partition(" ")
    return bool(token) and hmac.compare_digest(given.strip().encode(), token.encode())


log = logging.getLogger(__name__)
MOST_SNAPSHOTS: Final = 1_000
OF_PROXY_S: Final = 60.0


class LiveEvent(Struct, frozen=True):
    """One server-sent event. `data`: queues, directors, owed webhooks, findings as JSON; of `away`, why none."""

    event: Literal["snapshot", "away"]
    data: str


@Route(
    "GET",
    "/admin/live",
    name="admin.live",
    summary="Watch the service live",
    about=(
        "A `snapshot` of queues, directors, owed webhooks and findings comes at once, and then every one to five "
        "seconds. While Redis is away the event is `away`. The page for operators reads this."
    ),
    scopes=OVERSEES,
    parameters=(
        Parameter("snapshots", "End after so many; without, never.", Annotated[int, Meta(ge=1, le=MOST_SNAPSHOTS)]),
    ),
    answers={200: Answer("A snapshot each few seconds.", LiveEvent, "text/event-stream")},
    refusals={422},
)
async def follow_live(request: Request) -> Response:
    """Serve a watcher only as long as its token may see all accounts. It counts as a reader of a stream. A proxy says
    what a person may do with each request, so such a feed ends after a minute and the page asks again.
    """
    count = number_of(request, "snapshots", default=0, least=1, most=MOST_SNAPSHOTS)
    if request.method == "HEAD":
        return Response(headers=STREAM)
    request.services.readers.make_room(request.account.name)
    return EventStream(partial(_send_snapshots, request, count))


async def _send_snapshots(request: Request, count: int, send: Send) -> bool:
    services = request.services
    number = sent = 0
    until = services.clock.monotonic() + (math.inf if request.account.token_digest else OF_PROXY_S)
    with services.readers.holding(request.account.name) as place, services.watching.watcher():
        while await may_still(request, *OVERSEES):
            data = KEEP_ALIVE
            with anyio.move_on_after(KEEP_ALIVE_S):
                event = await services.watching.after(number)
                number, data, sent = event.number, event.data, sent + 1
            if not await _is_taken(data, send):
                return False
            if (count and sent >= count) or services.clock.monotonic() >= until:
                break
    return not place.cancelled_caught


async def _is_taken(data: bytes, send: Send) -> bool:
    """Send a piece at a time, to tell a slow reader from one that does not read."""
    try:
        for start in range(0, len(data), PIECE_BYTES):
            with anyio.fail_after(STALL_S):
                await send(data[start : start + PIECE_BYTES])
    except TimeoutError:
        log.info("disconnected a watcher that takes nothing")
        return False
    return True


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


@oversees(
    "/admin/audit",
    name="admin.audit.list",
    summary="List the changes that operators made",
    about=(
        "Each change has who made it, when and what. No entry holds a secret. With `order=asc` the `next` of the "
        "last page leads to what comes later."
    ),
    parameters=(
        Parameter("after", "The `next` of the page before.", Annotated[str, Meta(pattern="^[0-9]{1,15}-[0-9]{1,15}$")]),
        Parameter("order", "`asc`, the oldest first, or `desc`.", Order),
        Parameter("limit", "The most to return; 100 without it.", Annotated[int, Meta(ge=1, le=MOST_IN_PAGE)]),
    ),
    answers={200: Answer("A page.", ChangesView)},
    refusals={422},
)
async def list_changes(request: Request) -> Response:
    after, order = request.query_params.get("after") or None, request.query_params.get("order") or "asc"
    if after is not None and not PLACE.fullmatch(after):
        raise invalid_field("format", "after", "Is not the `next` of a page of this list")
    if order not in ORDERS:
        raise invalid_field("enum", "order", f"Must be one of {', '.join(ORDERS)}")
    limit = number_of(request, "limit", default=PAGE, least=1, most=MOST_IN_PAGE)
    changes = request.services.changes
    if order == "desc":
        found = await changes.before(after, count=limit)
        following = found[-1].entry if len(found) == limit else None
    else:
        found = await changes.after(after or FIRST, count=limit)
        following = found[-1].entry if found else after or FIRST
    return json_response(ChangesView(changes=[ChangeView.of(change) for change in found], next=following))


MOST_TRENDS: Final = 100


class Pace(Struct, frozen=True, kw_only=True):
    """How predictions ended in a time, and the seconds that half and 95 % of them waited and ran at most.

    `canceled` includes aborted ones. On a busy queue the counts are estimates from a sample.
    """

    succeeded: int
    failed: int
    canceled: int
    wait_p50_s: float | None
    wait_p95_s: float | None
    run_p50_s: float | None
    run_p95_s: float | None

    @classmethod
    def fields_of(cls, point: Point) -> dict[str, Any]:
        of = {"wait": point.waits, "run": point.runs}
        quantiles = {
            f"{name}_p{part}_s": _round(quantile_s(counts, part / 100))
            for name, counts in of.items()
            for part in (50, 95)
        }
        counts = {"succeeded": point.succeeded, "failed": point.failed, "canceled": point.canceled}
        return {**counts, **quantiles}


class PaceAt(Pace, frozen=True, kw_only=True):
    """One step of the range, which begins at `at`."""

    at: str


class PaceOf(Pace, frozen=True, kw_only=True):
    """One queue over the whole range."""

    queue: QueueName


class LevelAt(Struct, frozen=True, kw_only=True):
    """How full it was in the step that begins at `at`: the most that waited, the seconds that slots were in use, and
    the most slots of the queues with work.
    """

    at: str
    waiting: int
    busy_s: int
    slots: int


class PaceOver(Struct, frozen=True, kw_only=True):
    """A range of steps of `step_s` seconds, oldest first, without idle ones. `queues`: of the 100 that had work most
    recently, those with ends.
    """

    over: Range
    step_s: int
    since: str
    until: str
    points: list[PaceAt]
    levels: list[LevelAt]
    whole: Pace
    queues: list[PaceOf]


@oversees(
    "/admin/history",
    name="admin.history.get",
    summary="Get how predictions ended over time",
    about=(
        "Counts, waiting times, run times and slots in use of one queue or of all together, in steps. Keepers record "
        "them every ten seconds. An idle time has no step. Without `queue` the answer has the sums of the queues as "
        "well."
    ),
    parameters=(
        Parameter("over", "How far back; `15m` without.", Range),
        Parameter("queue", "Only this queue."),
    ),
    answers={200: Answer("The steps, and their sum.", PaceOver)},
    refusals={422},
)
async def get_history(request: Request) -> Response:
    services = request.services
    queue, over = request.query_params.get("queue", ""), cast(Range, request.query_params.get("over") or "15m")
    if over not in RANGES:
        raise invalid_field("enum", "over", f"Must be one of {', '.join(RANGES)}")
    if queue and not await services.queues.has(QueueName(queue)):
        raise invalid_field("enum", "queue", "There is no such queue")
    now_s, step, trends = services.clock.now_ms() / 1000, RANGES[over], services.trends
    trend, levels = await asyncio.gather(
        trends.of(QueueName(queue) or ALL, over, now_s=now_s), trends.levels(QueueName(queue) or ALL, over, now_s=now_s)
    )
    since_s = step.start(now_s) - step.covers_s
    names = [] if queue else await trends.queues(since_s=since_s, most=MOST_TRENDS)
    each: Mapping[QueueName, Trend] = await trends.many(names, over, now_s=now_s)
    return json_response(
        PaceOver(
            over=over,
            step_s=step.seconds,
            since=iso(since_s * 1000),
            until=iso(int(now_s * 1000)),
            points=[PaceAt(at=iso(point.at_s * 1000), **Pace.fields_of(point)) for point in trend.points],
            levels=[
                LevelAt(at=iso(one.at_s * 1000), waiting=one.waiting, busy_s=one.busy_s, slots=one.slots)
                for one in levels
            ],
            whole=Pace(**Pace.fields_of(trend.whole)),
            queues=[PaceOf(queue=name, **Pace.fields_of(one.whole)) for name, one in each.items() if one.whole.ended],
        )
    )


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{seconds:.3g}")
