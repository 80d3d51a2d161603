"""Predictions, one at a time: create, get, explain, cancel, delete.

Another account's prediction looks like none at all, and what cannot be an id is answered without asking Redis.
"""

import asyncio
import logging
import re
from typing import Final

from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from api.auth import authenticate
from api.bodies import VersionRef, parse_batch, parse_create, parse_model, parse_version
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
from api.predictions.intake import accept, submit
from api.predictions.listing import list_of_kind
from api.request import prediction_id_of, read_body
from api.response import json_response
from api.services import Parts, parts_of
from api.sites.sites import parts_at, sites_of, version_named, where_it_is
from director.core.errors import BackendUnavailable, DirectorError
from director.core.ids import MODEL_NAME, VERSION_ID, Kind, PredictionId
from director.core.schema import Prediction, Stored
from director.core.view import view
from director.diagnosis.story import tell
from director.files.store import FileStore
from director.store.accounts import Account

# What is asked of one run by its id, whatever its kind: show it, cancel it.
#
# What is of another kind looks like nothing at all under a route, as what is another account's does.


async def get_of_kind(request: Request, kind: Kind) -> Response:
    """GET …/{id}."""
    account, prediction_id = await authenticate(request, "read"), prediction_id_of(request)
    return await where_it_is(request, prediction_id, lambda parts: _shown(parts, prediction_id, account, kind))


async def cancel_of_kind(request: Request, kind: Kind) -> Response:
    """POST …/{id}/cancel: 200 with the run, whether it waited, runs or has ended.

    The body is not read: official clients announce JSON and send nothing.
    """
    account, prediction_id = await authenticate(request, "run"), prediction_id_of(request)

    async def cancel(parts: Parts) -> Response:
        await parts.scripts.cancel(prediction_id, account=account.name, kind=kind)
        return await _shown(parts, prediction_id, account, kind)

    return await where_it_is(request, prediction_id, cancel)


async def _shown(parts: Parts, prediction_id: PredictionId, account: Account, kind: Kind) -> Response:
    stored = await parts.scripts.get(prediction_id, whole=False)
    if stored is None or stored.record.account != account.name or stored.record.kind != kind:
        raise not_found()
    if stored.record.moved:
        raise Moved(stored.record.moved)
    if stored.left_out:
        stored = await _whole(parts, stored)
    return json_response(view(stored))


async def _whole(parts: Parts, stored: Stored) -> Stored:
    """A large one, in the turn of its account."""
    record = stored.record
    try:
        async with parts.reading.taken(record.account):
            whole = await parts.scripts.get(record.id, size=stored.left_out)
    except TimeoutError as exc:
        raise BackendUnavailable("too many large predictions are read at once") from exc
    if whole is None:
        raise not_found()
    if whole.record.moved:
        raise moved(whole.record.moved)
    return whole


log = logging.getLogger(__name__)


async def create(request: Request) -> Response:
    """POST /predictions: the body names the version."""
    account = await authenticate(request, "run", takes="create")
    parts = parts_of(request)
    body = await read_body(request, max_bytes=parts.settings.max_body_bytes)
    asked = parse_create(body, version=True)
    version = await version_named(request, parse_version(asked.version or ""), account)
    if version is None:
        raise invalid_version()
    return await submit(request, account=account, version=version, asked=asked, body=body)


async def create_of_model(request: Request) -> Response:
    """POST /models/{owner}/{name}/predictions: the latest version of any model."""
    account = await authenticate(request, "run", takes="create")
    parts = parts_of(request)
    model = parse_model(request.path_params["owner"], request.path_params["name"])
    body = await read_body(request, max_bytes=parts.settings.max_body_bytes)
    asked = parse_create(body, version=False)
    version = await version_named(request, VersionRef(model=model), account)
    if version is None:
        raise not_found()
    return await submit(request, account=account, version=version, asked=asked, body=body)


async def get(request: Request) -> Response:
    """GET /predictions/{id}."""
    return await get_of_kind(request, "")


async def explain(request: Request) -> Response:
    """GET /predictions/{id}/explain: its story so far, and what is next. For operators over all accounts."""
    account, prediction_id = await authenticate(request, "read", "admin"), prediction_id_of(request)

    async def explained(parts: Parts) -> Response:
        began = parts.clock.monotonic()
        known = await parts.scripts.story(prediction_id)
        took_ms = (parts.clock.monotonic() - began) * 1000
        if known is None or (known.record.account != account.name and "admin" not in account.scopes):
            raise not_found()
        if known.record.moved:
            raise Moved(known.record.moved)
        return json_response(tell(known, took_ms=took_ms))

    return await where_it_is(request, prediction_id, explained)


async def cancel(request: Request) -> Response:
    """POST /predictions/{id}/cancel."""
    return await cancel_of_kind(request, "")


async def delete(request: Request) -> Response:
    """DELETE /predictions/{id}: one that has ended is gone at once, with its files. 409 while it has not."""
    account = await authenticate(request, "run")
    prediction_id = prediction_id_of(request)
    parts = parts_at(request, prediction_id)
    match await parts.scripts.erase(prediction_id, account=account.name):
        case "unknown":
            raise not_found()
        case "running":
            raise not_terminal("Cancel it first: only a prediction that has ended can be deleted.")
        case "erased":
            await parts.listing.remove(account.name, prediction_id)
    if parts.files is not None:
        await _remove_files(parts.files, prediction_id)
        await parts.scripts.stow(account.name, prediction_id)
    return Response(status_code=204)


async def _remove_files(store: FileStore, prediction_id: PredictionId) -> None:
    try:
        await store.remove(prediction_id)
    except Exception:  # a store is somebody else's. Nothing names these files any more: the keeper removes them
        log.warning("files are left to the keeper", extra={"prediction": prediction_id}, exc_info=True)


# Procedures: runs that a model server takes as predictions, kept apart from those in queues of their own.

PROCEDURE: Final = "procedure"


async def create_procedure(request: Request) -> Response:
    """POST /procedures: the body names the version, and is that of a prediction."""
    account = await authenticate(request, "run", takes="create")
    parts = parts_of(request)
    body = await read_body(request, max_bytes=parts.settings.max_body_bytes)
    asked = parse_create(body, version=True)
    version = await parts.lookups.named(parse_version(asked.version or ""), account)
    if version is None:
        raise invalid_version()
    called = await parts.kinds.of(version, PROCEDURE)
    if called is None:
        raise kind_not_served(PROCEDURE)
    return await submit(request, account=account, version=called, asked=asked, body=body)


async def list_procedures(request: Request) -> Response:
    """GET /procedures: the caller's, newest first, as predictions are listed."""
    return await list_of_kind(request, PROCEDURE)


async def get_procedure(request: Request) -> Response:
    """GET /procedures/{id}."""
    return await get_of_kind(request, PROCEDURE)


async def cancel_procedure(request: Request) -> Response:
    """POST /procedures/{id}/cancel."""
    return await cancel_of_kind(request, PROCEDURE)


# Trainings: runs that make a version of another model, the destination, from a version that can be trained.
#
# They wait in queues of their own, for directors of the kind training.

TRAINING: Final = "training"


async def create_training(request: Request) -> Response:
    """POST /models/{owner}/{name}/versions/{id}/trainings: 201."""
    account = await authenticate(request, "run", takes="create")
    parts, params = parts_of(request), request.path_params
    ref = VersionRef(model=parse_model(params["owner"], params["name"]), version=params["id"])
    if not re.fullmatch(VERSION_ID, params["id"]):
        raise not_found()
    body = await read_body(request, max_bytes=parts.settings.max_body_bytes)
    asked = parse_create(body, version=False, destination=True)
    version = await parts.lookups.named(ref, account)
    if version is None:
        raise not_found()
    if not await _is_theirs(request, account, asked.destination or ""):
        raise no_destination()
    trained = await parts.kinds.of(version, TRAINING)
    if trained is None:
        raise kind_not_served(TRAINING)
    return await submit(request, account=account, version=trained, asked=asked, body=body)


async def list_trainings(request: Request) -> Response:
    """GET /trainings: the caller's, newest first, as predictions are listed."""
    return await list_of_kind(request, TRAINING)


async def get_training(request: Request) -> Response:
    """GET /trainings/{id}."""
    return await get_of_kind(request, TRAINING)


async def cancel_training(request: Request) -> Response:
    """POST /trainings/{id}/cancel."""
    return await cancel_of_kind(request, TRAINING)


async def _is_theirs(request: Request, account: Account, destination: str) -> bool:
    if not re.fullmatch(MODEL_NAME, destination):
        return False
    model = await parts_of(request).lookups.model(destination, account)
    return model is not None and model.may_be_changed_by(account)


# POST /predictions/batch: many predictions in one request, each judged, accepted or refused by itself.
#
# What is accepted is accepted as any other prediction is, and the headers of the request hold for each. Never holds
# the response: `Prefer` is not heeded. Sent again with the same Idempotency-Key it makes nothing twice.

MOST: Final = 1_000
AT_ONCE: Final = 100  # whose calls of Redis leave in one write


class BatchResult(Struct, frozen=True, kw_only=True):
    """What became of one of them: the answer that it would have had by itself."""

    status: int
    prediction: Prediction | UnsetType = UNSET
    replayed: bool | UnsetType = UNSET
    error: ProblemDocument | UnsetType = UNSET


class BatchResults(Struct, frozen=True):
    """In the order of the request."""

    results: list[BatchResult]


async def create_batch(request: Request) -> Response:
    """200 with a result for each; a body that is no batch is refused whole."""
    account = await authenticate(request, "run", takes="create")
    parts = parts_of(request)
    body = await read_body(request, max_bytes=parts.settings.max_batch_bytes)
    bodies = parse_batch(body, most=MOST)
    if sites_of(request) is None:
        parts.gate.pass_through()
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
    except Exception:  # one of a thousand must not cost the others their answers
        log.exception("one of a batch failed")
        document = internal().document
    return BatchResult(status=document.status, error=document)


async def _accepted(request: Request, account: Account, body: bytes, place: int) -> BatchResult:
    # the request came in with the token of the first
    taken = taken_of(request) if place == 0 else await take(request, account, "create")
    asked = parse_create(body, version=True)
    version = await version_named(request, parse_version(asked.version or ""), account)
    if version is None:
        raise invalid_version()
    accepted, stored = await accept(
        request, account=account, version=version, asked=asked, body=body, taken=taken, place=f"/{place}"
    )
    return BatchResult(status=201, prediction=view(stored), replayed=accepted.replayed or UNSET)
