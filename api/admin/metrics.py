"""What this process counts, for whoever scrapes it: with the token of the settings, or one with the scope `admin`.

Needs no Redis where the token is that of the settings, so that an outage can be watched.
"""

import hmac

from starlette.requests import Request
from starlette.responses import Response

from api.auth import authenticate
from api.parts import parts_of

__all__ = ("get_metrics",)


async def get_metrics(request: Request) -> Response:
    """GET /metrics: as text, or as OpenMetrics for who accepts that."""
    parts = parts_of(request)
    if not _has_token(request, parts.settings.metrics_token):
        await authenticate(request, "admin")
    text, kind = await parts.meters.registry.page(request.headers.get("accept", ""))
    return Response(text, headers={"Content-Type": kind})


def _has_token(request: Request, token: str) -> bool:
    _, _, given = request.headers.get("authorization", "").partition(" ")
    return bool(token) and hmac.compare_digest(given.strip().encode(), token.encode())
