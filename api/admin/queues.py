"""What operators see of queues, over HTTP: all of them with their numbers, one with all that is known, what is in it.

For tokens with the scope `admin` alone. Changes nothing: see `queue_changes.py`.
"""

import re
from collections.abc import Mapping
from typing import Final, cast, get_args

from msgspec import Struct
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from api.admin.models import ConfigView
from api.answers import json_response
from api.auth import authenticate
from api.pages import PAGE_SIZE, Cursor, cursor_of, link
from api.predictions.events import number_of
from api.problems import InvalidField
from api.refusals import invalid_input, not_found
from api.sites.sites import parts_asked
from director.broker.scripts import QueueStats
from director.core.errors import SettingsError, UnknownQueue
from director.core.ids import QUEUE_END, QueueName
from director.core.objectives import Burns, Objectives, burns
from director.core.samples import MOST as MOST_SAMPLES
from director.core.samples import Sample
from director.core.schema import Page
from director.core.setup_run import SetupRun
from director.diagnosis.queue_view import QueueView, view_of
from director.store.living import LivePlace, LiveState, LiveView
from director.store.queues import Tenant

__all__ = (
    "LONGEST_FILTER",
    "MOST_SAMPLES",
    "STATES",
    "QueueDetail",
    "TenantView",
    "get_queue",
    "list_live",
    "list_queues",
    "queue_of",
    "stats_of",
)

PATH: Final = "/admin/queues"
MOST_TENANTS: Final = 50
LONGEST_FILTER: Final = 200
SAMPLES: Final = 60
STATES: Final = get_args(LiveState)


class TenantView(Struct, frozen=True, kw_only=True):
    """What one account has in a queue: `waiting` or delayed, and `running`. `suspended`: in all queues."""

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
    """One queue, with all that is known of it.

    `heat`: by lane, how many stand in each stream; the others of that lane wait for their account's turn. `tenants`:
    those who have the most waiting. `tally`: counters since ever. `config`: how its model is run, where it says so.
    `objectives`: how soon what comes is to start, by lane; `burns`: how fast what may be missed of that is used up, 1
    where it just lasts. `history`: what a keeper noted every ten seconds, the newest last; nothing of idle times.
    """

    heat: dict[str, list[int]]
    tenants: list[TenantView]
    tally: dict[str, int]
    setup_run: SetupRun | None
    config: ConfigView | None
    objectives: Objectives
    burns: Burns
    history: list[Sample]


async def list_queues(request: Request) -> Response:
    """GET /admin/queues?q=&cursor=: by name; `q`: only those with this in their names."""
    await authenticate(request, "admin")
    wanted, cursor = request.query_params.get("q", "").lower(), cursor_of(request)
    if len(wanted) > LONGEST_FILTER:
        raise invalid_input([InvalidField("max_length", "q", f"Has at most {LONGEST_FILTER} characters")])
    names = [name for name in await parts_asked(request).queues.all() if wanted in name]
    rest = [name for name in names if cursor is None or name > cursor.at]
    page, more = rest[:PAGE_SIZE], rest[PAGE_SIZE:]
    kept: Mapping[str, str] = {"q": wanted} if wanted else {}
    following = link(request, PATH, Cursor(page[-1]), kept) if more else None
    found = await parts_asked(request).queues.stats_of(page)
    return json_response(Page(next=following, previous=None, results=[view_of(*one) for one in found]))


async def get_queue(request: Request) -> Response:
    """GET /admin/queues/{owner}/{name}/{version}?history=: with so many samples of its history."""
    await authenticate(request, "admin")
    queue, samples = queue_of(request), number_of(request, "history", default=SAMPLES, least=0, most=MOST_SAMPLES)
    parts, stats = parts_asked(request), await stats_of(request, queue)
    tenants, history = await parts.queues.tenants(queue, most=MOST_TENANTS), await parts.history.of(queue)
    return json_response(
        QueueDetail(
            **asdict(view_of(queue, stats)),
            heat=dict(await parts.queues.heat(queue, read=stats.read)),
            tenants=[TenantView.of(tenant) for tenant in tenants],
            tally=stats.tally,
            setup_run=await parts.catalog.setup_run_of(queue),
            config=await _config(request, queue),
            objectives=stats.objectives,
            burns=burns(history, stats.objectives, now_ms=parts.clock.now_ms()),
            history=history[-samples:] if samples else [],
        )
    )


async def list_live(request: Request) -> Response:
    """GET …/predictions?state=&cursor=: what is live in it, oldest first."""
    await authenticate(request, "admin")
    queue, state = queue_of(request), request.query_params.get("state") or None
    if state is not None and state not in STATES:
        raise invalid_input([InvalidField("enum", "state", f"Must be one of {', '.join(STATES)}")])
    cursor = cursor_of(request, is_place=lambda text: LivePlace.parse(text) is not None)
    if not await parts_asked(request).queues.has(queue):
        raise not_found()
    found = await parts_asked(request).living.page(
        queue,
        cast(LiveState | None, state),
        after=LivePlace.parse(cursor.at) if cursor else None,
        count=PAGE_SIZE,
    )
    path, kept = f"{PATH}/{queue.replace(':', '/')}/predictions", {"state": state} if state else {}
    following = link(request, path, Cursor(str(found.next)), kept) if found.next else None
    return json_response(Page[LiveView](next=following, previous=None, results=found.results))


def queue_of(request: Request) -> QueueName:
    """The queue that a path names; 404 where that can be none."""
    owner, name, version = (str(request.path_params[part]) for part in ("owner", "name", "version"))
    if not re.fullmatch(QUEUE_END, version):
        raise not_found()
    return QueueName(f"{owner}/{name}:{version}")


async def stats_of(request: Request, queue: QueueName) -> QueueStats:
    """404 where there is none of this name."""
    try:
        return await parts_asked(request).scripts.stats(queue)
    except UnknownQueue as exc:
        raise not_found() from exc


async def _config(request: Request, queue: QueueName) -> ConfigView | None:
    try:
        stored = await parts_asked(request).configs.get(queue.rpartition(":")[0])
    except SettingsError:  # a newer release wrote it
        return None
    return None if stored is None or not stored.revision else ConfigView.of(stored)
