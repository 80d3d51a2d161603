"""Serve predictions, procedures and trainings: create, get, explain, cancel and delete one, and create a batch. A
prediction of another account, or of another kind, answers 404 as if it did not exist. A token with a scope over
all accounts may read any, and with the scope `operate` cancel and redeliver any.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Final, TypeVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.responses import Response

from api.accounts.auth import name_operator
from api.accounts.limits import take
from api.predictions import bodies
from api.predictions.bodies import show_to
from api.predictions.intake import Called, accept, submit
from api.predictions.listing import FILTERS, LISTED, list_of_kind
from api.services.lookups import VersionRef
from api.sites.sites import no_version, refuse_moved
from api.web import errors, route
from api.web.errors import Moved, Problem, ProblemDocument, input_too_large
from api.web.http import Request, json_response, number_of, prediction_id_of, read_body, watching
from director.broker.replies import Redelivered
from director.core.errors import BackendUnavailable, DirectorError
from director.core.ids import MODEL_NAME, VERSION_ID, Kind, PredictionId
from director.core.schema import Known, Prediction, Stored
from director.core.view import PATHS, EventView, show_event, view
from director.operate.findings import Finding, causes_of, swaps_of
from director.operate.story import Owed, Story, stage_of, tell
from director.store.catalog import Version

log = logging.getLogger(__name__)
T = TypeVar("T")
SHOWN: Final = {200: route.Answer("As it is now.", Prediction)}


@bodies.creates(
    "/predictions",
    name="predictions.create",
    summary="Create a prediction",
    about=(
        "The body names a version or a model. The input is checked against its schema before anything is queued. "
        "The answer comes at once with the status `starting`, or with `Prefer: wait` once the prediction has ended."
    ),
    parameters=(bodies.WAIT, *bodies.HOW),
    body=route.Body(bodies.VersionPredictionRequest),
)
async def create(request: Request) -> Response:
    asked = await bodies.read_create(request, version=True)
    return await submit(request, Called(await _version(request, asked)), asked)


async def _version(request: Request, asked: bodies.CreatePrediction) -> Version:
    ref = bodies.parse_version(asked.version or "")
    version = await request.versions.find_named(ref, request.account)
    if version is None:
        raise await no_version(request, ref, errors.invalid_version)
    return version


@bodies.creates(
    "/models/{owner}/{name}/predictions",
    name="models.predictions.create",
    summary="Create a prediction of a model",
    about=(
        "The model's latest version runs it, also while a newer one is being set up. The answer is the same as for "
        "`POST /predictions`."
    ),
    parameters=(bodies.WAIT, *bodies.HOW),
    body=route.Body(bodies.PredictionRequest),
)
async def create_of_model(request: Request) -> Response:
    model = bodies.parse_model(request.path_params["owner"], request.path_params["name"])
    asked = await bodies.read_create(request)
    ref = VersionRef(model=model)
    version = await request.versions.find_named(ref, request.account)
    if version is None:
        raise await no_version(request, ref, errors.not_found)
    return await submit(request, Called(version), asked)


@route.Route(
    "GET",
    "/predictions/{id}/explain",
    name="predictions.explain",
    summary="Explain why a prediction is where it is",
    about=(
        "The answer lists each claim so far, what ended it, and what comes next. A waiting prediction also says why"
        " it waits and when it should start. A token with a scope over all accounts may ask about any prediction."
        " Only such a token reads `causes`: the findings that hold it up, with who can act; and `swaps`: the loads of"
        " its model that it waited for."
    ),
    scopes=("read", *route.OVERSEES),
    of=prediction_id_of,
    answers={200: route.Answer("Its story.", Story)},
)
async def explain(request: Request) -> Response:
    clock, began = request.services.clock, request.services.clock.monotonic()
    known = await story_of(request)
    took_ms = (clock.monotonic() - began) * 1000
    if not request.account.oversees:  # findings name other accounts, and cost many reads
        return json_response(tell(known, took_ms=took_ms))
    findings: list[Finding] = []
    if stage_of(known) is not None:
        findings = await request.services.overview.of_queue(known.record.queue, owed=int(known.owed is not None))
    swaps = swaps_of(known, await request.services.directors.of([known.record.queue]))
    return json_response(tell(known, took_ms=took_ms, causes=causes_of(known, findings), swaps=swaps))


@route.deletes(
    "/predictions/{id}",
    name="predictions.delete",
    summary="Delete a prediction that has ended, with its data and files",
    about=(
        "The record, its input, its output and its files are removed at once. A prediction that has not ended is "
        "refused with 409 `not_terminal`: cancel it first."
    ),
    of=prediction_id_of,
    refusals={409},
)
async def delete(request: Request) -> Response:
    account, prediction_id, services = request.account, request.prediction_id, request.services
    if services.files is not None and await services.predictions.may_be_erased(prediction_id, account=account.name):
        # once the record is gone, a repeat of this request is a 404 and the keeper knows no account
        await services.scripts.stow(account.name, prediction_id)
    match await services.scripts.erase(prediction_id, account=account.name):
        case "unknown":
            raise errors.not_found()
        case "running":
            await refuse_moved(request)
            raise errors.not_terminal("Cancel it first: only a prediction that has ended can be deleted.")
        case "erased":
            await services.scripts.delist(prediction_id, account=account.name)
    if services.files is not None:
        try:
            await services.files.remove(prediction_id)
        except Exception:  # a store is third-party code, and the keeper deletes files of predictions that are gone
            log.warning("files are left to the keeper", extra={"prediction": prediction_id}, exc_info=True)
        await services.scripts.stow(account.name, prediction_id)  # its director may have counted them meanwhile
    return Response(status_code=204)


# Procedures are runs that a model server takes as predictions. Trainings make a version of the destination model.
# Each kind waits in queues of its own, trainings for directors of their kind.


@bodies.creates(
    "/procedures",
    name="procedures.create",
    summary="Create a procedure",
    about=(
        "A procedure runs like a prediction and waits in a queue of its own. Long runs of one kind then do not "
        "delay short ones of the other."
    ),
    parameters=(bodies.WAIT, *bodies.HOW),
    body=route.Body(bodies.VersionPredictionRequest),
)
async def create_procedure(request: Request) -> Response:
    asked = await bodies.read_create(request, version=True)
    version = await request.services.lookups.find_named(bodies.parse_version(asked.version or ""), request.account)
    if version is None:
        raise errors.invalid_version()
    return await submit(request, Called(await _of_kind(request, version, "procedure")), asked)


@bodies.creates(
    "/models/{owner}/{name}/versions/{id}/trainings",
    name="trainings.create",
    summary="Create a training",
    about=(
        "A training makes a version of the model in `destination`, which must be yours. A version that no director "
        "ever trained is refused with 422 `kind_not_served`."
    ),
    parameters=(bodies.WAIT, *bodies.HOW),
    body=route.Body(bodies.TrainingRequest),
)
async def create_training(request: Request) -> Response:
    params, lookups = request.path_params, request.services.lookups
    ref = VersionRef(model=bodies.parse_model(params["owner"], params["name"]), version=params["id"])
    if not re.fullmatch(VERSION_ID, params["id"]):
        raise errors.not_found()
    asked = await bodies.read_create(request, destination=True)
    version = await lookups.find_named(ref, request.account)
    if version is None:
        raise errors.not_found()
    destination = asked.destination or ""
    model = await lookups.model(destination, request.account) if re.fullmatch(MODEL_NAME, destination) else None
    if model is None or not model.may_be_changed_by(request.account):
        raise errors.no_destination()
    return await submit(request, Called(await _of_kind(request, version, "training")), asked)


async def _of_kind(request: Request, version: Version, kind: Kind) -> Version:
    served = await request.services.catalog.of_kind(version, kind)
    if served is None:
        raise errors.kind_not_served(kind=kind)
    return served


def _serve(kind: Kind) -> None:
    path = PATHS[kind]
    one = path.removesuffix("s")

    @route.reads(
        f"/{path}",
        name=f"{path}.list",
        summary=f"List the {path} of the account",
        about=(
            f"Pages have up to 100 {path}, the newest first, with those that have not ended. Follow `next` to older "
            "ones. A page with large outputs is shorter, and has a `next` all the same."
        ),
        parameters=FILTERS,
        answers=LISTED,
    )
    async def list_runs(request: Request) -> Response:
        return await list_of_kind(request, kind)

    @route.Route(
        "GET",
        f"/{path}/{{id}}",
        name=f"{path}.get",
        summary=f"Get a {one}",
        about=(
            "The answer has the status, the output so far and the logs. While it waits, `queue` says why and when it "
            f"should start. A token with a scope over all accounts may read any {one}."
        ),
        scopes=("read", *route.OVERSEES),
        of=prediction_id_of,
        answers=SHOWN,
    )
    async def get(request: Request) -> Response:
        return await _show(request, kind)

    @route.changes(
        "POST",
        f"/{path}/{{id}}/cancel",
        name=f"{path}.cancel",
        summary=f"Cancel a {one}",
        about=(
            f"A {one} that waits is canceled at once. One that runs is asked to stop, and its status changes when it "
            "has. The answer is the same for one that has ended already. A token with the scope `operate` may cancel "
            f"any account's {one}, and the log of changes says who did."
        ),
        scopes=("run", *route.OPERATES),
        frees=True,
        of=prediction_id_of,
        answers=SHOWN,
    )
    async def cancel(request: Request) -> Response:
        return await _cancel(request, kind)


for each in PATHS:
    _serve(each)


async def _cancel(request: Request, kind: Kind) -> Response:
    """Answer 200 with the run, whether it was waiting, running or terminal. Programs take the status in this answer
    for its end, so the answer to a cancel of a running one waits a moment for it.

    The body is not read: official clients announce JSON and send nothing.
    """
    services, account = request.services, request.account
    asked = await services.scripts.cancel(request.prediction_id, account=account.name, kind=kind)
    if asked == "unknown" and account.operates:
        found = await services.across.find([request.prediction_id])
        ids = [one.id for one in found if one.kind == kind]
        await services.across.cancel(ids, by=name_operator(account))
    return await _show(request, kind, await _wait_for_end(request) if asked == "asked" else None)


async def _wait_for_end(request: Request) -> Stored | None:
    """Return the run if it ends within a moment, without large data. Half of the held responses are left to
    `Prefer: wait`.
    """
    waiters, settings = request.services.waiters, request.services.settings
    if not settings.cancel_wait_s or waiters.waiting >= settings.max_waits // 2:
        return None
    with watching(request) as gone:
        ended = await waiters.wait_for_end(
            request.prediction_id,
            seconds=settings.cancel_wait_s,
            account=request.account.name,
            gone=gone,
            whole=False,
        )
    return ended if isinstance(ended, Stored) else None


async def _show(request: Request, kind: Kind, stored: Stored | None = None) -> Response:
    """Show the run, which may have been read already without large data."""
    scripts, account = request.services.scripts, request.account.name
    stored = stored or await scripts.get(request.prediction_id, whole=False)
    if stored is None or not request.account.may_look_into(stored.record.account) or stored.record.kind != kind:
        raise errors.not_found()
    if stored.left_out and not stored.record.moved:
        try:
            async with request.services.reading.hold(account):
                stored = await scripts.get(request.prediction_id, size=stored.left_out)
        except TimeoutError as exc:
            raise BackendUnavailable("too many large predictions are read at once") from exc
        if stored is None:
            raise errors.not_found()
    if stored.record.moved:
        raise Moved(stored.record.moved)
    return json_response(show_to(request, stored))


PAGE: Final = 100
MOST_IN_PAGE: Final = 1_000
MOST_BYTES: Final = 1 << 20
MOST_AFTER: Final = 1 << 53  # above this, numbers of Lua and JavaScript are not exact


class Events(Struct, frozen=True, kw_only=True):
    """One page. `next`: the number to ask for what comes `after`, now or once there is more."""

    events: tuple[EventView, ...]
    next: int
    data_removed: bool = False


@route.Route(
    "GET",
    "/predictions/{id}/events",
    name="predictions.events",
    summary="List the events of a prediction",
    about=(
        "Events are numbered from 1 in the order in which they happened. Ask again with `after` to read on. A token "
        "with a scope over all accounts may read those of any prediction."
    ),
    scopes=("read", *route.OVERSEES),
    of=prediction_id_of,
    parameters=(
        route.Parameter("after", "The `next` of the page before.", Annotated[int, Meta(ge=0, le=MOST_AFTER)]),
        route.Parameter("limit", "The most to return; 100 without it.", Annotated[int, Meta(ge=1, le=MOST_IN_PAGE)]),
    ),
    answers={200: route.Answer("A page.", Events)},
    refusals={422},
)
async def get_events(request: Request) -> Response:
    """List the events. After an operator revived the prediction, they begin again with number 1."""
    after = number_of(request, "after", default=0, least=0, most=MOST_AFTER)
    limit = number_of(request, "limit", default=PAGE, least=1, most=MOST_IN_PAGE)
    scripts = request.services.scripts
    page = await scripts.replay(request.prediction_id, after=after, count=limit, most_bytes=MOST_BYTES, whole=False)
    if page is not None and request.account.may_look_into(page.account) and page.has_more and not page.events:
        page = await scripts.replay(request.prediction_id, after=after, count=1, most_bytes=MOST_BYTES)
    if page is None or not request.account.may_look_into(page.account):
        raise errors.not_found()
    if page.moved:
        raise Moved(page.moved)
    if not page.last:
        return json_response(Events(events=(), next=after, data_removed=True))
    following = page.events[-1].seq if page.events else after
    return json_response(Events(events=tuple(map(show_event, page.events)), next=following))


# A receiver is shown by its host and never by its URL, which may hold a secret.

REFUSALS: Final[Mapping[Redelivered, Callable[[], Problem]]] = {
    "unknown": errors.not_found,
    "running": errors.not_terminal,
    "unwanted": errors.no_webhook,
    "removed": errors.data_removed,
}


class Webhooks(Struct, frozen=True):
    """`webhook` is null where the caller wanted none."""

    id: PredictionId
    webhook: Owed | None
    data_removed: bool


@route.Route(
    "GET",
    "/predictions/{id}/webhooks",
    name="predictions.webhooks",
    summary="List the deliveries of a prediction's webhook",
    about=(
        "The answer has each attempt to deliver the terminal webhook, with its outcome, and the time of the next "
        "one. A receiver is shown by its host, because a URL may hold a secret."
    ),
    scopes=("read", *route.OVERSEES),
    of=prediction_id_of,
    answers={200: route.Answer("Every attempt, and when the next one is.", Webhooks)},
)
async def get_webhooks(request: Request) -> Response:
    known = await story_of(request)
    return json_response(Webhooks(request.prediction_id, tell(known).webhook, data_removed=not known.events))


@route.Route(
    "POST",
    "/predictions/{id}/webhooks/redeliver",
    name="predictions.webhooks.redeliver",
    summary="Deliver a prediction's webhook again",
    about=(
        "The terminal webhook is sent at once, under the same `webhook-id`. A prediction that has not ended, or has"
        " no webhook, is refused with 409."
    ),
    scopes=("run", *route.OPERATES),
    bucket="create",
    of=prediction_id_of,
    answers={200: route.Answer("It is sent at once.", Webhooks)},
    refusals={409, 410},
)
async def redeliver(request: Request) -> Response:
    whose = None if request.account.operates else request.account.name
    if refusal := REFUSALS.get(await request.services.scripts.redeliver(request.prediction_id, account=whose)):
        if refusal is errors.not_terminal:
            await refuse_moved(request)
        raise refusal()
    return await get_webhooks(request)


async def story_of(request: Request) -> Known:
    known = await request.services.scripts.story(request.prediction_id)
    if known is None or not request.account.may_look_into(known.record.account):
        raise errors.not_found()
    if known.record.moved:
        raise Moved(known.record.moved)
    return known


# The headers of a batch apply to each of its predictions. The response is never held: `Prefer` is ignored. A batch that
# is sent again with the same Idempotency-Key creates nothing twice.

MOST: Final = 1_000
AT_ONCE: Final = 100  # their Redis calls leave in one write
LARGE_BYTES: Final = 256 << 10


class BatchResult(Struct, frozen=True, kw_only=True):
    """The answer to one of them, as if it had come by itself."""

    status: int
    prediction: Prediction | UnsetType = UNSET
    replayed: bool | UnsetType = UNSET
    error: ProblemDocument | UnsetType = UNSET


class BatchResults(Struct, frozen=True):
    """In the order of the request."""

    results: list[BatchResult]


@route.changes(
    "POST",
    "/predictions/batch",
    name="predictions.batch",
    summary="Create many predictions",
    about=(
        "One request holds up to 1,000 bodies of `POST /predictions`. Each gets its own result, so one refusal does"
        " not stop the others. The headers apply to each of them. The response is never held."
    ),
    bucket="create",
    parameters=bodies.HOW,
    body=route.Body(bodies.BatchRequest),
    answers={200: route.Answer("What became of each, in the order of the request.", BatchResults)},
)
async def create_batch(request: Request) -> Response:
    body = await read_body(request, max_bytes=request.services.settings.max_batch_bytes, refusal=input_too_large)
    given = await _unless_large(body, partial(bodies.parse_batch, body, most=MOST))
    results: list[BatchResult] = []
    while len(results) < len(given):
        numbers = _together(given, len(results))
        results += await asyncio.gather(*(_result(request, bytes(given[number]), number) for number in numbers))
    return json_response(BatchResults(results))


def _together(given: Sequence[Raw], first: int) -> range:
    """Return the numbers of those that are created next, at once: they hold the event loop together."""
    end, size = first, 0
    while end < min(len(given), first + AT_ONCE) and (end == first or size < LARGE_BYTES):
        size += memoryview(given[end]).nbytes
        end += 1
    return range(first, end)


async def _unless_large(body: bytes, parse: Callable[[], T]) -> T:
    """Call `parse` here, or for a large body in a thread, so that other requests go on."""
    return parse() if len(body) < LARGE_BYTES else await asyncio.to_thread(parse)


async def _result(request: Request, body: bytes, number: int) -> BatchResult:
    try:
        # the request itself was counted when it came in, as the first prediction
        rate_token = request.rate_token if number == 0 else await take(request, request.account, "create")
        asked = await _unless_large(body, partial(bodies.parse_create, body, version=True))
        version = await _version(request, asked)
        filed = await accept(request, Called(version), asked, rate_token=rate_token, item=f"/{number}")
        return BatchResult(status=201, prediction=view(filed.stored), replayed=filed.is_repeat or UNSET)
    except (Problem, DirectorError) as exc:
        document = errors.problem_of(exc).document
    except Exception:  # one failure of a thousand must not cost the others their answers
        log.exception("a prediction of a batch failed")
        document = errors.internal().document
    return BatchResult(status=document.status, error=document)
