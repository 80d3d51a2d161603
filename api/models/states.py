"""Show to all who may see a model whether its predictions start now, why not, and how fast they are. The addresses of
model servers are private. The log of a setup that failed is the model's own, and is shown with its version too.
"""

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from starlette.responses import Response

from api.models.models import run_counts
from api.services.services import Services
from api.web.errors import invalid_field
from api.web.http import Request, json_response
from api.web.route import Answer, Parameter, reads
from director.broker.replies import QueueStats
from director.core.ids import MODEL_NAME, QueueName, queue_name
from director.core.trends import Point, quantile_s
from director.core.view import REASONS, iso
from director.operate.findings import reason_of
from director.operate.views import NOTHING, QueueState, Shade, state_of, stats_of_newcomers, words_of
from director.store.accounts import Account
from director.store.directors import DirectorFound, ServerFound
from director.store.models import Model

MOST: Final = 100
NO_QUEUE: Final = QueueName("")
NEVER: Final = Point(at_s=0)
UNWELL: Final = frozenset({"setup_failed", "server_auth", "servers_starting"})


class ModelState(Struct, frozen=True, kw_only=True):
    """A model now, by its newest version. `words` are its state for a person, and `shade` says how bad it is. `detail`:
    why nothing starts. `log`: the last lines of a setup that failed. `version` is null until a server was ready, and
    `created_at` until the model is listed.

    `run_count`: runs of all versions so far. Of several models it is at most half a minute old. `succeeded`, `failed`,
    `run_p50_s` and `wait_p50_s` are of the last day. `may_change`: the caller may describe the model. `has_openai`: it
    takes calls of OpenAI's API here.
    """

    model: str
    created_at: str | None
    version: str | None
    state: QueueState
    words: str
    shade: Shade
    detail: str
    log: str
    slots: int
    waiting: int
    running: int
    run_count: int
    succeeded: int
    failed: int
    run_p50_s: float | None
    wait_p50_s: float | None
    may_change: bool
    has_openai: bool


class ModelStates(Struct, frozen=True, kw_only=True):
    """States of models, in the order in which they were asked for."""

    results: list[ModelState]


@reads(
    "/models/states",
    site="asked",
    name="models.states.list",
    summary="Get the state of models",
    about=(
        "Whether predictions of each model start now, and why not, with the log of a setup that failed. Without "
        "`models` it lists those whose servers were never ready, of your own account or of all that your token "
        "oversees. A model that you may not see is left out."
    ),
    parameters=(Parameter("models", f"Names, owner/name, with commas between them; at most {MOST}."),),
    answers={200: Answer("The states.", ModelStates)},
    refusals={422},
)
async def list_states(request: Request) -> Response:
    asked = [name for name in request.query_params.get("models", "").split(",") if name]
    if len(asked) > MOST or not all(re.fullmatch(MODEL_NAME, name) for name in asked):
        raise invalid_field("format", "models", f"Must be at most {MOST} names, owner/name, with commas between them")
    return json_response(ModelStates(results=await read_states(request.services, request.account, asked)))


async def read_states(services: Services, account: Account, asked: Sequence[str]) -> list[ModelState]:
    newcomers = await _newcomers(services, account)
    names = list(dict.fromkeys(asked or newcomers))[:MOST]
    models = dict(zip(names, await services.catalog.models.many(names), strict=True))
    seen = {name: model for name, model in models.items() if model is not None and model.may_be_seen_by(account)}
    queues = {name: queue_name(name, model.latest) for name, model in seen.items() if model.latest}
    stats = dict(await services.queues.stats_of(list(queues.values())))
    paces = await services.paces.of(list(stats))
    runs = dict(zip(seen, await run_counts(services, list(seen.values()), held=len(names) > 1), strict=True))
    fresh = stats_of_newcomers([one for found in newcomers.values() for one in found])
    called = {model.name for model in await services.openai_models.all()} if services.settings.openai else set()
    shown = {
        name: stats.get(queues.get(name, NO_QUEUE)) or fresh.get(QueueName(name), NOTHING)
        for name in names
        if name in seen or name in newcomers
    }
    unwell = [queues[name] for name, one in shown.items() if name in queues and state_of(one) in UNWELL]
    servers = await _read_servers(services, unwell)
    states = []
    for name, one in shown.items():
        model, queue = seen.get(name), queues.get(name, NO_QUEUE)
        reports = servers.get(queue, []) if queue else _servers_of(newcomers.get(name, []))
        detail, log = await _trouble(services, account, name, model, one, reports)
        states.append(
            _show(
                name,
                model,
                one,
                paces.get(queue, NEVER),
                detail=detail,
                log=log,
                account=account,
                has_openai=name in called,
                run_count=runs.get(name, 0),
            )
        )
    return states


async def _newcomers(services: Services, account: Account) -> dict[str, list[DirectorFound]]:
    """Return the directors of models that no server was ever ready for, by model, as far as the account may see."""
    found: dict[str, list[DirectorFound]] = {}
    for one in await services.directors.newcomers():
        name = str(one.last.queue)
        if account.may_look_into(name.partition("/")[0]):
            found.setdefault(name, []).append(one)
    return found


async def _read_servers(services: Services, queues: Sequence[QueueName]) -> dict[QueueName, list[ServerFound]]:
    """Return what the directors of each queue report of their servers."""
    found: dict[QueueName, list[ServerFound]] = {}
    for director in await services.directors.of(queues) if queues else ():
        for heartbeat in filter(director.is_alive_in, director.heartbeats):
            found.setdefault(heartbeat.queue, []).extend(heartbeat.about.servers)
    return found


def _servers_of(newcomers: Sequence[DirectorFound]) -> list[ServerFound]:
    return [server for one in newcomers if one.is_alive for server in one.last.about.servers]


async def _trouble(
    services: Services,
    account: Account,
    name: str,
    model: Model | None,
    stats: QueueStats,
    servers: Sequence[ServerFound],
) -> tuple[str, str]:
    """Return why nothing of a model starts, and the log of its setup if that failed. What a server says of itself may
    name addresses: without a scope over all accounts only the error of a setup is shown, and to the owner alone. The
    last setup that was stored is shown to all, as it is with its version.
    """
    state = state_of(stats)
    reason = REASONS.get(state, "") if state != "closed" else ""  # its words say when it opens
    if state not in UNWELL:
        return reason, ""
    is_own = account.may_look_into(name.partition("/")[0])
    known = [one for one in servers if account.oversees or (is_own and one.state == "setup_failed")]
    said = next((why for one in known if (why := reason_of(one))), "")
    log = next((one.log for one in servers if one.log), "") if is_own else ""
    if not log and model is not None and model.latest and state == "setup_failed":
        setup = await services.catalog.setup_run(name, model.latest)
        log = setup.logs if setup is not None and setup.status == "failed" else ""
    return (reason if log else f"{reason} {said}".strip()), log


def _show(
    name: str,
    model: Model | None,
    stats: QueueStats,
    pace: Point,
    *,
    detail: str,
    log: str,
    account: Account,
    has_openai: bool,
    run_count: int,
) -> ModelState:
    words, shade = words_of(stats)
    return ModelState(
        model=name,
        created_at=iso(model.created_ms) if model else None,
        version=(model.latest or None) if model else None,
        state=state_of(stats),
        words=words,
        shade=shade,
        detail=detail,
        log=log,
        slots=stats.slots if stats.directors else 0,
        waiting=stats.waiting + stats.delayed,
        running=stats.claimed,
        run_count=run_count,
        succeeded=pace.succeeded,
        failed=pace.failed,
        run_p50_s=quantile_s(pace.runs, 0.5),
        wait_p50_s=quantile_s(pace.waits, 0.5),
        may_change=model is not None and model.may_be_changed_by(account),
        has_openai=has_openai,
    )
