"""Answer in JSON. What is `Raw` in an answer leaves as the bytes that came in: nothing here reads or re-encodes it.

Headers that a request carries go with whatever answers it, a refusal too.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

__all__ = ("RawHeaders", "carried", "carry", "json_response", "raw")

RawHeaders = Sequence[tuple[bytes, bytes]]

MEDIA_TYPE: Final = "application/json"


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`body` is a struct of ours, or a plain value made of them."""
    return Response(msgspec.json.encode(body), status, headers=headers, media_type=MEDIA_TYPE)


def raw(headers: Mapping[str, str]) -> RawHeaders:
    """Headers as they are sent."""
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def carry(request: Request, headers: RawHeaders) -> None:
    """Send these with the answer to this request, whatever it will be."""
    request.scope["state"]["carried"] = headers


def carried(request: Request, response: Response) -> Response:
    """The answer, with what the request carries."""
    response.raw_headers += request.scope["state"].get("carried", ())
    return response
