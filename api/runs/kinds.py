"""What is asked of one run by its id, whatever its kind: show it, cancel it.

What is of another kind looks like nothing at all under a route, as what is another account's does.
"""

from starlette.requests import Request
from starlette.responses import Response

from api.answers import json_response
from api.auth import authenticate
from api.parts import parts_of
from api.paths import prediction_id_of
from api.refusals import moved, not_found
from director.core.accounts import Account
from director.core.ids import Kind
from director.core.view import view

__all__ = ("cancel_of_kind", "get_of_kind")


async def get_of_kind(request: Request, kind: Kind) -> Response:
    """GET …/{id}."""
    return await _shown(request, await authenticate(request, "read"), kind)


async def cancel_of_kind(request: Request, kind: Kind) -> Response:
    """POST …/{id}/cancel: 200 with the run, whether it waited, runs or has ended.

    The body is not read: official clients announce JSON and send nothing.
    """
    account = await authenticate(request, "run")
    await parts_of(request).scripts.cancel(prediction_id_of(request), account=account.name, kind=kind)
    return await _shown(request, account, kind)


async def _shown(request: Request, account: Account, kind: Kind) -> Response:
    stored = await parts_of(request).scripts.get(prediction_id_of(request))
    if stored is None or stored.record.account != account.name or stored.record.kind != kind:
        raise not_found()
    if stored.record.moved:
        raise moved()
    return json_response(view(stored))
