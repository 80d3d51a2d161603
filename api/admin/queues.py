"""Show operators the queues and their content, and let them change a queue. Changes need the scope `operate`."""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Final, cast, get_args

from msgspec import Meta, Struct
from msgspec.structs import asdict
from starlette.responses import Response

from api.accounts.auth import name_operator
from api.admin.models import ConfigView
from api.web.errors import invalid_field, not_found
from api.web.http import (
    PAGE_SIZE,
    Cursor,
    Request,
    cursor_of,
    decode_body,
    decode_json,
    json_response,
    number_of,
    page_after,
    page_response,
    read_body,
)
from api.web.route import CURSOR, Answer, Body, Parameter, Route, one_of, operates, oversees
from director.broker.replies import Admission, QueueStats
from director.core.clock import Clock
from director.core.errors import SettingsError, UnknownQueue
from director.core.ids import QUEUE_END, QueueName
from director.core.policy import MAX_STREAMS, Objectives
from director.core.samples import MOST as MOST_SAMPLES
from director.core.samples import Burns, Sample, burns
from director.core.schema import Page, SetupRun
from director.operate.views import QueueView, stats_of_newcomers, view_of
from director.store.accounts import ACCOUNT_NAME
from director.store.predictions import LiveCursor, LiveState, LiveView
from director.store.queues import Moved, Tenant

PATH: Final = "/admin/queues"
MOST_TENANTS: Final = 50
LONGEST_FILTER: Final = 200
SAMPLES: Final = 60
STATES: Final = get_args(LiveState)
HISTORY: Final = Parameter(
    "history", "How many samples of its last hour, one each ten seconds.", Annotated[int, Meta(ge=0, le=MOST_SAMPLES)]
)
QUEUE_THEN: Final = Answer("The queue as it is then.", QueueView)


class TenantView(Struct, frozen=True, kw_only=True):
    """Predictions of one account in a queue: `waiting` or delayed, and `running`. `suspended`: in all queues."""

    account: str
    waiting: int
    running: int
    paused: bool
    suspended: bool
    weight: float
    max_running: int | None

    @classmethod
    def of(cls, tenant: Tenant) -> "TenantView":
        return cls(
            account=tenant.name,
            waiting=tenant.waiting,
            running=tenant.running,
            paused=tenant.is_paused,
            suspended=tenant.is_suspended,
            weight=tenant.weight,
            max_running=tenant.max_running,
        )


class QueueDetail(QueueView, frozen=True, kw_only=True):
    """One queue with all its details.

    `heat`: by lane, the entries in each stream. The lane's other predictions wait for their account's turn.
    `tenants`: the accounts with the most waiting predictions. `tally`: counters since the queue was made. `config`:
    the stored configuration of its model. `objectives`: by lane, how soon a prediction should start. `burns`: how fast
    the error budget of an objective is used up; at 1 it just lasts. `history`: a keeper's samples of every ten seconds,
    newest last, without idle times.
    """

    heat: dict[str, list[int]]
    tenants: list[TenantView]
    tally: dict[str, int]
    setup_run: SetupRun | None
    config: ConfigView | None
    objectives: Objectives
    burns: Burns
    history: list[Sample]


@oversees(
    "/admin/queues",
    name="admin.queues.list",
    summary="List queues with their counts",
    about=(
        "A queue holds what waits for one version. `state` says in one word whether it is served, and if not, why. A "
        "model whose servers were never ready has no queue yet, and stands under its own name, without a version."
    ),
    parameters=(
        CURSOR,
        Parameter("q", "Only those with this in their names.", Annotated[str, Meta(max_length=LONGEST_FILTER)]),
    ),
    answers={200: Answer("A page, by name.", Page[QueueView])},
)
async def list_queues(request: Request) -> Response:
    part, cursor = request.query_params.get("q", "").lower(), cursor_of(request)
    if len(part) > LONGEST_FILTER:
        raise invalid_field("max_length", "q", f"Has at most {LONGEST_FILTER} characters")
    models = stats_of_newcomers(await request.services.directors.newcomers())
    names = sorted(name for name in [*await request.services.queues.all(), *models] if part in name)
    page, more = page_after(names, cursor, str)
    known = dict(await request.services.queues.stats_of([name for name in page if name not in models])) | models
    views = [view_of(name, known[name]) for name in page if name in known]
    return page_response(request, PATH, views, older=more, kept={"q": part} if part else None)


@oversees(
    "/admin/queues/{owner}/{name}/{version}",
    name="admin.queues.get",
    summary="Get a queue with its details",
    about=(
        "The answer adds the streams, the accounts with the most waiting predictions, the last setup, the "
        "configuration and the samples of the last hour."
    ),
    parameters=(HISTORY,),
    answers={200: Answer("The queue.", QueueDetail)},
    refusals={422},
)
async def get_queue(request: Request) -> Response:
    queue, samples = queue_of(request), number_of(request, "history", default=SAMPLES, least=0, most=MOST_SAMPLES)
    services, stats = request.services, await stats_of(request, queue)
    tenants, history = await services.queues.tenants(queue, most=MOST_TENANTS), await services.history.of(queue)
    return json_response(
        QueueDetail(
            **asdict(view_of(queue, stats)),
            heat=dict(await services.queues.heat(queue, read=stats.read)),
            tenants=[TenantView.of(tenant) for tenant in tenants],
            tally=stats.tally,
            setup_run=await services.catalog.setup_run_of(queue),
            config=await _config(request, queue),
            objectives=stats.objectives,
            burns=burns(history, stats.objectives, now_ms=services.clock.now_ms()),
            history=history[-samples:] if samples else [],
        )
    )


@oversees(
    "/admin/queues/{owner}/{name}/{version}/predictions",
    name="admin.queues.predictions",
    summary="List the live predictions of a queue",
    about="The list has predictions of all accounts that have not ended, the oldest first.",
    parameters=(CURSOR, Parameter("state", "Only what is so.", one_of(*STATES))),
    answers={200: Answer("A page, oldest first; of what is delayed, who is due first.", Page[LiveView])},
)
async def list_live(request: Request) -> Response:
    queue, state = queue_of(request), request.query_params.get("state") or None
    if state is not None and state not in STATES:
        raise invalid_field("enum", "state", f"Must be one of {', '.join(STATES)}")
    cursor = cursor_of(request, is_place=lambda text: LiveCursor.parse(text) is not None)
    if not await request.services.queues.has(queue):
        raise not_found()
    after = LiveCursor.parse(cursor.at) if cursor else None
    found = await request.services.predictions.live(queue, cast(LiveState | None, state), after=after, count=PAGE_SIZE)
    path, kept = f"{PATH}/{queue.replace(':', '/')}/predictions", {"state": state} if state else None
    older = Cursor(str(found.next)) if found.next else None
    return page_response(request, path, found.results, older=older, kept=kept)


def queue_of(request: Request) -> QueueName:
    """Return the queue that a path names. Raises a 404 for a text that cannot be one."""
    owner, name, version = (str(request.path_params[part]) for part in ("owner", "name", "version"))
    if not re.fullmatch(QUEUE_END, version):
        raise not_found()
    return QueueName(f"{owner}/{name}:{version}")


async def stats_of(request: Request, queue: QueueName) -> QueueStats:
    try:
        return await request.services.scripts.stats(queue)
    except UnknownQueue as exc:
        raise not_found() from exc


async def _config(request: Request, queue: QueueName) -> ConfigView | None:
    try:
        stored = await request.services.configs.get(queue.rpartition(":")[0])
    except SettingsError:  # a newer release wrote it
        return None
    return None if stored is None or not stored.revision else ConfigView.of(stored)


# Changes are logged with the operator's name, and are safe to repeat. A long call stops and says that more is left.

MAX_BODY: Final = 4_096
LONGEST_S: Final = 20.0  # below the usual timeout of a proxy in front
LONGEST_NAME: Final = 200


class AskedPause(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pause one account, or all if none is named."""

    account: Annotated[str, Meta(pattern=ACCOUNT_NAME)] | None = None


class AskedSize(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The streams of each lane from now on."""

    streams: Annotated[int, Meta(ge=1, le=MAX_STREAMS)]


class AskedBound(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which predictions a busy queue accepts: all, up to `max_queued` waiting ones, or only those that can start at
    once. `max_queued` goes with `bounded`.
    """

    mode: Admission
    max_queued: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None


class AskedMigration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`to`: another queue of the model, or `owner/name` for that of its latest version. `dry_run`: only count."""

    to: Annotated[str, Meta(max_length=LONGEST_NAME)]
    dry_run: bool = False


class Drained(Struct, frozen=True, kw_only=True):
    """`drained`: nothing runs any more; else ask again. What waits keeps its place until the queue is resumed."""

    drained: bool
    queue: QueueView


class Migrated(Struct, frozen=True, kw_only=True):
    """How many were moved, or would be. Some stay: `claimed` run, `held` are of accounts that are paused there.

    `done`: it looked through all of the queue; else ask again.
    """

    to: QueueName
    dry_run: bool
    moved: int
    claimed: int
    held: int
    done: bool


def _changes(verb: str, summary: str, about: str, *, body: Any = None, answer: Answer = QUEUE_THEN) -> Route:
    return operates(
        f"/admin/queues/{{owner}}/{{name}}/{{version}}/{verb}",
        name=f"admin.queues.{verb}",
        summary=summary,
        about=about,
        body=None if body is None else Body(body),
        answers={200: answer},
    )


@_changes(
    "pause",
    "Pause a queue, or one account in it",
    (
        "No prediction of it is handed out until it is resumed. What runs goes on, and new predictions are still "
        "accepted."
    ),
    body=AskedPause,
)
async def pause_queue(request: Request) -> Response:
    queue, by = await _queue_and_operator(request)
    await request.services.queue_administration.pause(queue, account=await _account(request), by=by)
    return await _answer(request, queue)


@_changes(
    "resume",
    "Resume a queue, or one account in it",
    "Waiting predictions are handed out again, in their order. With `account` only that account resumes.",
    body=AskedPause,
)
async def resume_queue(request: Request) -> Response:
    queue, by = await _queue_and_operator(request)
    await request.services.queue_administration.resume(queue, account=await _account(request), by=by)
    return await _answer(request, queue)


@_changes(
    "drain",
    "Pause a queue and see whether anything still runs",
    "Ask again until `drained` is true. What waits keeps its place until the queue is resumed.",
    answer=Answer("How far it is.", Drained),
)
async def drain_queue(request: Request) -> Response:
    queue, by = await _queue_and_operator(request)
    try:
        view = view_of(queue, await request.services.queue_administration.drain(queue, by=by))
    except UnknownQueue as exc:
        raise not_found() from exc
    return json_response(Drained(drained=view.claimed == 0, queue=view))


@_changes(
    "resize",
    "Change the number of streams of a queue",
    (
        "Each lane of a queue has 1 to 32 streams, which keep accounts apart. Directors read the former streams "
        "until they are empty: `read` says how many."
    ),
    body=AskedSize,
)
async def resize_queue(request: Request) -> Response:
    queue, by = await _queue_and_operator(request)
    asked = await decode_body(request, AskedSize, max_bytes=MAX_BODY)
    await request.services.queue_administration.resize(queue, streams=asked.streams, by=by)
    return await _answer(request, queue)


@_changes(
    "bound",
    "Choose what a busy queue accepts",
    (
        "`absorb` accepts everything, `bounded` up to `max_queued` waiting predictions, and `reject` only what can"
        " start at once. A refused create is a 429."
    ),
    body=AskedBound,
)
async def bound_queue(request: Request) -> Response:
    queue, by = await _queue_and_operator(request)
    asked = await decode_body(request, AskedBound, max_bytes=MAX_BODY)
    if (asked.mode == "bounded") != (asked.max_queued is not None):
        raise invalid_field("invalid", "max_queued", "Goes with the mode bounded, and with no other")
    await request.services.queue_administration.set_bound(queue, mode=asked.mode, max_queued=asked.max_queued, by=by)
    return await _answer(request, queue)


@_changes(
    "migrate",
    "Move what waits to the queue of another version",
    (
        "Waiting predictions move with their place in line; running ones stay. A large queue takes several calls: "
        "ask again until `done` is true."
    ),
    body=AskedMigration,
    answer=Answer("What was moved.", Migrated),
)
async def migrate_queue(request: Request) -> Response:
    queue, by = await _queue_and_operator(request)
    asked = await decode_body(request, AskedMigration, max_bytes=MAX_BODY)
    services = request.services
    to = await services.queues.find(asked.to)
    if to is None:
        raise invalid_field("enum", "to", "There is no such queue")
    try:
        steps = services.queue_administration.migrate(queue, to, by=by, only_asks=asked.dry_run)
        moved, is_done = await _within(steps, services.clock)
    except UnknownQueue as exc:
        raise not_found() from exc
    except SettingsError as exc:
        raise invalid_field("invalid", "to", str(exc)) from exc
    return json_response(
        Migrated(to=to, dry_run=asked.dry_run, moved=moved.moved, claimed=moved.claimed, held=moved.held, done=is_done)
    )


async def _within(steps: AsyncGenerator[Moved], clock: Clock) -> tuple[Moved, bool]:
    until, moved = clock.monotonic() + LONGEST_S, Moved()
    async with aclosing(steps):
        async for step in steps:
            moved = step
            if clock.monotonic() > until:
                return moved, False
    return moved, True


async def _queue_and_operator(request: Request) -> tuple[QueueName, str]:
    """Return the queue and the operator's name. Raises a 404 first, so that only changes that are made are logged."""
    queue = queue_of(request)
    if not await request.services.queues.has(queue):
        raise not_found()
    return queue, name_operator(request.account)


async def _account(request: Request) -> str:
    body = await read_body(request, max_bytes=MAX_BODY)
    asked = decode_json(body, AskedPause) if body.strip() else AskedPause()
    if asked.account is None:
        return ""
    if not await request.services.accounts.exists(asked.account):
        raise invalid_field("enum", "account", "There is no such account")
    return asked.account


async def _answer(request: Request, queue: QueueName) -> Response:
    return json_response(view_of(queue, await stats_of(request, queue)))
