"""How the webhook of a prediction's end is going, and to have it delivered once more.

Shows a receiver's host and never its URL, which may hold a secret.
"""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from api.answers import json_response
from api.auth import authenticate
from api.parts import parts_of
from api.paths import prediction_id_of
from api.problems import Problem
from api.refusals import data_removed, moved, no_webhook, not_found, not_terminal
from director.core.accounts import Account
from director.core.ids import PredictionId
from director.core.scripts import Redelivered
from director.core.story import Owed, tell

__all__ = ("get_webhooks", "redeliver")

REFUSALS: Final[Mapping[Redelivered, Callable[[], Problem]]] = {
    "unknown": not_found,
    "running": not_terminal,
    "unwanted": no_webhook,
    "removed": data_removed,
}


class Webhooks(Struct, frozen=True):
    """`webhook` is null where the caller wanted none."""

    id: PredictionId
    webhook: Owed | None
    data_removed: bool


async def get_webhooks(request: Request) -> Response:
    """GET /predictions/{id}/webhooks: every attempt to tell its end, and when the next one is. For operators of all."""
    account = await authenticate(request, "read", "admin")
    return await _shown(request, account)


async def redeliver(request: Request) -> Response:
    """POST /predictions/{id}/webhooks/redeliver: tell its end again, now. For operators of all."""
    account = await authenticate(request, "run", "admin")
    whose = None if "admin" in account.scopes else account.name
    answer = await parts_of(request).scripts.redeliver(prediction_id_of(request), account=whose)
    if refusal := REFUSALS.get(answer):
        raise refusal()
    return await _shown(request, account)


async def _shown(request: Request, account: Account) -> Response:
    prediction_id = prediction_id_of(request)
    known = await parts_of(request).scripts.story(prediction_id)
    if known is None or (known.record.account != account.name and "admin" not in account.scopes):
        raise not_found()
    if known.record.moved:
        raise moved()
    return json_response(Webhooks(prediction_id, tell(known).webhook, data_removed=not known.events))
