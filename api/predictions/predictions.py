"""Serve predictions, procedures and trainings: create, get, explain, cancel and delete one, and create a batch.

A prediction of another account, or of another kind, answers 404 as if it did not exist. A text that cannot be an id is
answered without asking Redis.
"""

import asyncio
import logging
import re
from typing import Final

from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response

from api.bodies import (
    BatchRequest,
    PredictionRequest,
    TrainingRequest,
    VersionPredictionRequest,
    VersionRef,
    parse_batch,
    parse_create,
    parse_model,
    parse_version,
)
from api.contract import (
    CREATE,
    CREATED,
    FILTERS,
    HOW,
    LISTED,
    NO_BODY,
    OWNER_AND_NAME,
    PREDICTION_ID,
    SHOWN,
    VERSION_OF_MODEL,
    WAIT,
)
from api.errors import (
    Moved,
    Problem,
    ProblemDocument,
    internal,
    invalid_version,
    kind_not_served,
    no_destination,
    not_found,
    not_terminal,
    problem_of,
)
from api.limits import take, taken_of
from api.predictions.events import story_of
from api.predictions.intake import accept, submit
from api.predictions.listing import list_of_kind
from api.request import Request, prediction_id_of, read_body
from api.response import json_response
from api.route import Answer, Body, Route
from api.services import Services
from api.sites.sites import sites_of, version_named
from director.core.errors import BackendUnavailable, DirectorError
from director.core.ids import MODEL_NAME, VERSION_ID, Kind, PredictionId
from director.core.schema import Prediction, Stored
from director.core.view import view
from director.diagnosis.story import Story, tell
from director.files.store import FileStore
from director.store.accounts import Account

# The handlers of each kind share the next two functions.


async def cancel_of_kind(request: Request, kind: Kind) -> Response:
    """Answer 200 with the run, whether it was waiting, running or terminal.

    The body is not read: official clients announce JSON and send nothing.
    """
    await request.services.scripts.cancel(request.prediction_id, account=request.account.name, kind=kind)
    return await get_of_kind(request, kind)


async def get_of_kind(request: Request, kind: Kind) -> Response:
    """Show a run. A run of another kind or account looks as if it did not exist."""
    stored = await request.services.scripts.get(request.prediction_id, whole=False)
    if stored is None or stored.record.account != request.account.name or stored.record.kind != kind:
        raise not_found()
    if stored.record.moved:
        raise Moved(stored.record.moved)
    if stored.left_out:
        stored = await _whole(request.services, stored)
    return json_response(view(stored))


async def _whole(services: Services, stored: Stored) -> Stored:
    """Read a large prediction, within the account's limit of large reads at once."""
    record = stored.record
    try:
        async with services.reading.taken(record.account):
            whole = await services.scripts.get(record.id, size=stored.left_out)
    except TimeoutError as exc:
        raise BackendUnavailable("too many large predictions are read at once") from exc
    if whole is None:
        raise not_found()
    if whole.record.moved:
        raise Moved(whole.record.moved)
    return whole


log = logging.getLogger(__name__)


@Route(
    "POST",
    "/predictions",
    name="predictions.create",
    summary="Create a prediction of a version, or of the latest version of a model",
    scopes=("run",),
    bucket="create",
    parameters=(WAIT, *HOW),
    body=Body(VersionPredictionRequest),
    answers=CREATED,
    refusals=CREATE,
)
async def create(request: Request) -> Response:
    account = request.account
    services = request.services
    body = await read_body(request, max_bytes=services.settings.max_body_bytes)
    asked = parse_create(body, version=True)
    version = await version_named(request, parse_version(asked.version or ""), account)
    if version is None:
        raise invalid_version()
    return await submit(request, version, asked)


@Route(
    "POST",
    "/models/{owner}/{name}/predictions",
    name="models.predictions.create",
    summary="Create a prediction of the latest version of a model",
    scopes=("run",),
    bucket="create",
    parameters=(*OWNER_AND_NAME, WAIT, *HOW),
    body=Body(PredictionRequest),
    answers=CREATED,
    refusals=CREATE,
)
async def create_of_model(request: Request) -> Response:
    account = request.account
    services = request.services
    model = parse_model(request.path_params["owner"], request.path_params["name"])
    body = await read_body(request, max_bytes=services.settings.max_body_bytes)
    asked = parse_create(body, version=False)
    version = await version_named(request, VersionRef(model=model), account)
    if version is None:
        raise not_found()
    return await submit(request, version, asked)


@Route(
    "GET",
    "/predictions/{id}",
    name="predictions.get",
    summary="Get a prediction",
    scopes=("read",),
    of=prediction_id_of,
    parameters=PREDICTION_ID,
    answers=SHOWN,
)
async def get(request: Request) -> Response:
    return await get_of_kind(request, "")


@Route(
    "GET",
    "/predictions/{id}/explain",
    name="predictions.explain",
    summary="Tell the story of a prediction so far, and what is next",
    scopes=("read", "admin"),
    of=prediction_id_of,
    parameters=PREDICTION_ID,
    answers={200: Answer("Its story.", Story)},
)
async def explain(request: Request) -> Response:
    services, began = request.services, request.services.clock.monotonic()
    known = await story_of(request)
    took_ms = (services.clock.monotonic() - began) * 1000
    return json_response(tell(known, took_ms=took_ms))


@Route(
    "POST",
    "/predictions/{id}/cancel",
    name="predictions.cancel",
    summary="Cancel a prediction",
    scopes=("run",),
    of=prediction_id_of,
    parameters=PREDICTION_ID,
    answers=SHOWN,
)
async def cancel(request: Request) -> Response:
    return await cancel_of_kind(request, "")


@Route(
    "DELETE",
    "/predictions/{id}",
    name="predictions.delete",
    summary="Delete a prediction that has ended, with its data and files",
    scopes=("run",),
    of=prediction_id_of,
    parameters=PREDICTION_ID,
    answers={204: NO_BODY},
    refusals={409},
)
async def delete(request: Request) -> Response:
    """Delete a terminal prediction with its data and files. Answers 409 for any other."""
    account, prediction_id, services = request.account, request.prediction_id, request.services
    match await services.scripts.erase(prediction_id, account=account.name):
        case "unknown":
            raise not_found()
        case "running":
            raise not_terminal("Cancel it first: only a prediction that has ended can be deleted.")
        case "erased":
            await services.listing.remove(account.name, prediction_id)
    if services.files is not None:
        await _remove_files(services.files, prediction_id)
        await services.scripts.stow(account.name, prediction_id)
    return Response(status_code=204)


async def _remove_files(store: FileStore, prediction_id: PredictionId) -> None:
    try:
        await store.remove(prediction_id)
    except Exception:  # a store is third-party code, and the keeper deletes files of predictions that are gone
        log.warning("files are left to the keeper", extra={"prediction": prediction_id}, exc_info=True)


# Procedures are runs that a model server takes as predictions. They wait in queues of their own.

PROCEDURE: Final = "procedure"


@Route(
    "POST",
    "/procedures",
    name="procedures.create",
    summary="Create a procedure: a prediction that waits apart from others",
    scopes=("run",),
    bucket="create",
    parameters=(WAIT, *HOW),
    body=Body(VersionPredictionRequest),
    answers=CREATED,
    refusals=CREATE,
)
async def create_procedure(request: Request) -> Response:
    account = request.account
    services = request.services
    body = await read_body(request, max_bytes=services.settings.max_body_bytes)
    asked = parse_create(body, version=True)
    version = await services.lookups.named(parse_version(asked.version or ""), account)
    if version is None:
        raise invalid_version()
    called = await services.kinds.of(version, PROCEDURE)
    if called is None:
        raise kind_not_served(PROCEDURE)
    return await submit(request, called, asked)


@Route(
    "GET",
    "/procedures",
    name="procedures.list",
    summary="List the procedures of the account",
    scopes=("read",),
    parameters=FILTERS,
    answers=LISTED,
)
async def list_procedures(request: Request) -> Response:
    return await list_of_kind(request, PROCEDURE)


@Route(
    "GET",
    "/procedures/{id}",
    name="procedures.get",
    summary="Get a procedure",
    scopes=("read",),
    of=prediction_id_of,
    parameters=PREDICTION_ID,
    answers=SHOWN,
)
async def get_procedure(request: Request) -> Response:
    return await get_of_kind(request, PROCEDURE)


@Route(
    "POST",
    "/procedures/{id}/cancel",
    name="procedures.cancel",
    summary="Cancel a procedure",
    scopes=("run",),
    of=prediction_id_of,
    parameters=PREDICTION_ID,
    answers=SHOWN,
)
async def cancel_procedure(request: Request) -> Response:
    return await cancel_of_kind(request, PROCEDURE)


# Trainings make a version of another model, the destination, from a version that can be trained.
#
# They wait in queues of their own, for directors of the kind training.

TRAINING: Final = "training"


@Route(
    "POST",
    "/models/{owner}/{name}/versions/{id}/trainings",
    name="trainings.create",
    summary="Create a training, which makes a version of its destination",
    scopes=("run",),
    bucket="create",
    parameters=(*VERSION_OF_MODEL, WAIT, *HOW),
    body=Body(TrainingRequest),
    answers=CREATED,
    refusals=CREATE,
)
async def create_training(request: Request) -> Response:
    account = request.account
    services, params = request.services, request.path_params
    ref = VersionRef(model=parse_model(params["owner"], params["name"]), version=params["id"])
    if not re.fullmatch(VERSION_ID, params["id"]):
        raise not_found()
    body = await read_body(request, max_bytes=services.settings.max_body_bytes)
    asked = parse_create(body, version=False, destination=True)
    version = await services.lookups.named(ref, account)
    if version is None:
        raise not_found()
    if not await _is_theirs(request, account, asked.destination or ""):
        raise no_destination()
    trained = await services.kinds.of(version, TRAINING)
    if trained is None:
        raise kind_not_served(TRAINING)
    return await submit(request, trained, asked)


@Route(
    "GET",
    "/trainings",
    name="trainings.list",
    summary="List the trainings of the account",
    scopes=("read",),
    parameters=FILTERS,
    answers=LISTED,
)
async def list_trainings(request: Request) -> Response:
    return await list_of_kind(request, TRAINING)


@Route(
    "GET",
    "/trainings/{id}",
    name="trainings.get",
    summary="Get a training",
    scopes=("read",),
    of=prediction_id_of,
    parameters=PREDICTION_ID,
    answers=SHOWN,
)
async def get_training(request: Request) -> Response:
    return await get_of_kind(request, TRAINING)


@Route(
    "POST",
    "/trainings/{id}/cancel",
    name="trainings.cancel",
    summary="Cancel a training",
    scopes=("run",),
    of=prediction_id_of,
    parameters=PREDICTION_ID,
    answers=SHOWN,
)
async def cancel_training(request: Request) -> Response:
    return await cancel_of_kind(request, TRAINING)


async def _is_theirs(request: Request, account: Account, destination: str) -> bool:
    if not re.fullmatch(MODEL_NAME, destination):
        return False
    model = await request.services.lookups.model(destination, account)
    return model is not None and model.may_be_changed_by(account)


# A batch creates many predictions in one request. Each is checked, and accepted or refused, by itself.
#
# The headers of the request apply to each prediction. The response is never held: `Prefer` is ignored. A batch that is
# sent again with the same Idempotency-Key creates nothing twice.

MOST: Final = 1_000
AT_ONCE: Final = 100  # their Redis calls leave in one write


class BatchResult(Struct, frozen=True, kw_only=True):
    """The answer to one of them, as if it had come by itself."""

    status: int
    prediction: Prediction | UnsetType = UNSET
    replayed: bool | UnsetType = UNSET
    error: ProblemDocument | UnsetType = UNSET


class BatchResults(Struct, frozen=True):
    """In the order of the request."""

    results: list[BatchResult]


@Route(
    "POST",
    "/predictions/batch",
    name="predictions.batch",
    summary="Create many predictions, each judged by itself",
    scopes=("run",),
    bucket="create",
    parameters=HOW,
    body=Body(BatchRequest),
    answers={200: Answer("What became of each, in the order of the request.", BatchResults)},
)
async def create_batch(request: Request) -> Response:
    """Answer 200 with a result for each. A body that is not a batch is refused whole."""
    account = request.account
    services = request.services
    body = await read_body(request, max_bytes=services.settings.max_batch_bytes)
    bodies = parse_batch(body, most=MOST)
    if sites_of(request) is None:
        services.gate.pass_through()
    results: list[BatchResult] = []
    for first in range(0, len(bodies), AT_ONCE):
        some = enumerate(bodies[first : first + AT_ONCE], start=first)
        results += await asyncio.gather(*(_result(request, account, bytes(one), place) for place, one in some))
    return json_response(BatchResults(results))


async def _result(request: Request, account: Account, body: bytes, place: int) -> BatchResult:
    try:
        return await _accepted(request, account, body, place)
    except (Problem, DirectorError) as exc:
        document = problem_of(exc).document
    except Exception:  # one failure of a thousand must not cost the others their answers
        log.exception("a prediction of a batch failed")
        document = internal().document
    return BatchResult(status=document.status, error=document)


async def _accepted(request: Request, account: Account, body: bytes, place: int) -> BatchResult:
    # the request itself was counted when it came in, as the first prediction
    taken = taken_of(request) if place == 0 else await take(request, account, "create")
    asked = parse_create(body, version=True)
    version = await version_named(request, parse_version(asked.version or ""), account)
    if version is None:
        raise invalid_version()
    accepted, stored = await accept(request, version, asked, taken=taken, place=f"/{place}")
    return BatchResult(status=201, prediction=view(stored), replayed=accepted.replayed or UNSET)
