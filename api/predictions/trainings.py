"""Trainings: runs that make a version of another model, the destination, from a version that can be trained.

They wait in queues of their own, for directors of the kind training.
"""

import re
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api.auth import authenticate
from api.body import read_body
from api.parts import parts_of
from api.predictions.intake import submit
from api.predictions.kinds import cancel_of_kind, get_of_kind
from api.predictions.listing import list_of_kind
from api.refusals import kind_not_served, no_destination, not_found
from api.requests import VersionRef, parse_create, parse_model
from director.core.ids import MODEL_NAME, VERSION_ID
from director.store.accounts import Account

__all__ = ("cancel_training", "create_training", "get_training", "list_trainings")

KIND: Final = "training"


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
    trained = await parts.kinds.of(version, KIND)
    if trained is None:
        raise kind_not_served(KIND)
    return await submit(request, account=account, version=trained, asked=asked, body=body)


async def list_trainings(request: Request) -> Response:
    """GET /trainings: the caller's, newest first, as predictions are listed."""
    return await list_of_kind(request, KIND)


async def get_training(request: Request) -> Response:
    """GET /trainings/{id}."""
    return await get_of_kind(request, KIND)


async def cancel_training(request: Request) -> Response:
    """POST /trainings/{id}/cancel."""
    return await cancel_of_kind(request, KIND)


async def _is_theirs(request: Request, account: Account, destination: str) -> bool:
    if not re.fullmatch(MODEL_NAME, destination):
        return False
    model = await parts_of(request).lookups.model(destination, account)
    return model is not None and model.may_be_changed_by(account)
