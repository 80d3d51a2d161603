"""Answer in JSON. What is `Raw` in an answer leaves as the bytes that came in: nothing here reads or re-encodes it."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response

__all__ = ("json_response",)

MEDIA_TYPE: Final = "application/json"


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`body` is a struct of ours, or a plain value made of them."""
    return Response(msgspec.json.encode(body), status, headers=headers, media_type=MEDIA_TYPE)
