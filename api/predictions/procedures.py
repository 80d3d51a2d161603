"""Procedures: runs that a model server takes as predictions, kept apart from those in queues of their own."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api.auth import authenticate
from api.body import read_body
from api.parts import parts_of
from api.predictions.intake import submit
from api.predictions.kinds import cancel_of_kind, get_of_kind
from api.predictions.listing import list_of_kind
from api.refusals import invalid_version, kind_not_served
from api.requests import parse_create, parse_version

__all__ = ("cancel_procedure", "create_procedure", "get_procedure", "list_procedures")

KIND: Final = "procedure"


async def create_procedure(request: Request) -> Response:
    """POST /procedures: the body names the version, and is that of a prediction."""
    account = await authenticate(request, "run", takes="create")
    parts = parts_of(request)
    body = await read_body(request, max_bytes=parts.settings.max_body_bytes)
    asked = parse_create(body, version=True)
    version = await parts.lookups.named(parse_version(asked.version or ""), account)
    if version is None:
        raise invalid_version()
    called = await parts.kinds.of(version, KIND)
    if called is None:
        raise kind_not_served(KIND)
    return await submit(request, account=account, version=called, asked=asked, body=body)


async def list_procedures(request: Request) -> Response:
    """GET /procedures: the caller's, newest first, as predictions are listed."""
    return await list_of_kind(request, KIND)


async def get_procedure(request: Request) -> Response:
    """GET /procedures/{id}."""
    return await get_of_kind(request, KIND)


async def cancel_procedure(request: Request) -> Response:
    """POST /procedures/{id}/cancel."""
    return await cancel_of_kind(request, KIND)
