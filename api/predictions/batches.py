"""POST /predictions/batch: many predictions in one request, each judged, accepted or refused by itself.

What is accepted is accepted as any other prediction is, and the headers of the request hold for each. Never holds the
response: `Prefer` is not heeded. Sent again with the same Idempotency-Key it makes nothing twice.
"""

import asyncio
import logging
from typing import Final

from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from api.answers import json_response
from api.auth import authenticate
from api.body import read_body
from api.handlers import problem_of
from api.limits import take, taken_of
from api.parts import parts_of
from api.predictions.intake import accept
from api.problems import Problem, ProblemDocument
from api.refusals import internal, invalid_version
from api.requests import parse_batch, parse_create, parse_version
from api.sites.sites import sites_of, version_named
from director.core.errors import DirectorError
from director.core.schema import Prediction
from director.core.view import view
from director.store.accounts import Account

__all__ = ("create_batch",)

log = logging.getLogger(__name__)

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
