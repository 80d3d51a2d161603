"""Predictions, one at a time: create, get, explain, cancel, delete.

Another account's prediction looks like none at all, and what cannot be an id is answered without asking Redis.
"""

import logging

from starlette.requests import Request
from starlette.responses import Response

from api.answers import json_response
from api.auth import authenticate
from api.body import read_body
from api.parts import Parts, parts_of
from api.paths import prediction_id_of
from api.predictions.intake import submit
from api.predictions.kinds import cancel_of_kind, get_of_kind
from api.refusals import invalid_version, moved, not_found, not_terminal
from api.requests import VersionRef, parse_create, parse_model, parse_version
from api.sites.sites import parts_at, version_named, where_it_is
from director.core.ids import PredictionId
from director.diagnosis.story import tell
from director.files.store import FileStore

__all__ = ("cancel", "create", "create_of_model", "delete", "explain", "get")

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
            raise moved(known.record.moved)
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
