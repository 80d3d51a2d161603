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
from api.parts import Parts
from api.paths import prediction_id_of
from api.problems import Problem
from api.refusals import data_removed, moved, no_webhook, not_found, not_terminal
from api.sites.sites import where_it_is
from director.broker.scripts import Redelivered
from director.core.ids import PredictionId
from director.diagnosis.story import Owed, tell
from director.store.accounts import Account

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
    account, prediction_id = await authenticate(request, "read", "admin"), prediction_id_of(request)
    return await where_it_is(request, prediction_id, lambda parts: _shown(parts, prediction_id, account))


async def redeliver(request: Request) -> Response:
    """POST /predictions/{id}/webhooks/redeliver: tell its end again, now. For operators of all."""
    account, prediction_id = await authenticate(request, "run", "admin"), prediction_id_of(request)
    whose = None if "admin" in account.scopes else account.name

    async def owe(parts: Parts) -> Response:
        answer = await parts.scripts.redeliver(prediction_id, account=whose)
        if refusal := REFUSALS.get(answer):
            raise refusal()
        return await _shown(parts, prediction_id, account)

    return await where_it_is(request, prediction_id, owe)


async def _shown(parts: Parts, prediction_id: PredictionId, account: Account) -> Response:
    known = await parts.scripts.story(prediction_id)
    if known is None or (known.record.account != account.name and "admin" not in account.scopes):
        raise not_found()
    if known.record.moved:
        raise moved(known.record.moved)
    return json_response(Webhooks(prediction_id, tell(known).webhook, data_removed=not known.events))
