"""Answer an autoscaler at /scale/{queue} on the health port, if it has the token.

The answer is 503 while Redis cannot answer, so that the autoscaler keeps what it has.
"""

import hmac
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from director.core.errors import BackendUnavailable, UnknownQueue
from director.diagnosis.scaling import Scaling

RETRY_S: Final = 5
IN_A_PATH: Final = 3  # owner/name/version, as the admin API writes a queue


class ScaleRoute:
    """One route, protected by `token`. Without a token every request is rejected."""

    def __init__(self, scaling: Scaling, token: str) -> None:
        self._scaling = scaling
        self._token = token.encode()

    @property
    def route(self) -> Route:
        return Route("/scale/{queue:path}", self._answer)

    async def _answer(self, request: Request) -> Response:
        if not self._shown(request):
            return _refused(401, "Show DIRECTOR_SCALE_TOKEN as a bearer token.", {"WWW-Authenticate": "Bearer"})
        parts = str(request.path_params["queue"]).split("/")
        name = f"{parts[0]}/{parts[1]}:{parts[2]}" if len(parts) == IN_A_PATH else "/".join(parts)
        try:
            scale = await self._scaling.of(await self._scaling.named(name))
        except UnknownQueue:
            return _refused(404, "There is no such queue, nor a model of this name that has a version.")
        except BackendUnavailable:
            return _refused(503, "Redis cannot answer now.", {"Retry-After": str(RETRY_S)})
        return _json(scale)

    def _shown(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode("latin-1"), self._token)
        return scheme.lower() == "bearer" and bool(self._token) and is_right


def _refused(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    return _json({"detail": detail}, status=status, headers=headers)


def _json(body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    said = {"Cache-Control": "no-store", **(headers or {})}
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json", headers=said)
