"""GET /openapi.json: the contract, for whoever asks. No token is needed: it says nothing of what is behind the API."""

import hashlib

from starlette.requests import Request
from starlette.responses import Response

from api.openapi.document import encoded
from api.response import base_url


async def get_document(request: Request) -> Response:
    """With an ETag of its own: 304 for who has it already."""
    body = encoded(base_url(request))
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Host"}
    known = {each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")}
    if known & {tag, "*"}:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")
