"""What is asked of one run by its id, whatever its kind: show it, cancel it.

What is of another kind looks like nothing at all under a route, as what is another account's does.
"""

from starlette.requests import Request
from starlette.responses import Response

from api.answers import json_response
from api.auth import authenticate
from api.parts import Parts
from api.paths import prediction_id_of
from api.refusals import moved, not_found
from api.sites.sites import where_it_is
from director.core.errors import BackendUnavailable
from director.core.ids import Kind, PredictionId
from director.core.schema import Stored
from director.core.view import view
from director.store.accounts import Account

__all__ = ("cancel_of_kind", "get_of_kind")


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
        raise moved(stored.record.moved)
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
