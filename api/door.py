"""The one layer around every handler: finds it, answers what it says or what it raises, and counts both.

Reads no body and knows no room. What a handler raises that nobody expects is a 500, and goes on to the server, which
logs it.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router as Lifespan
from starlette.types import Message, Receive, Scope, Send

from api.errors import Problem, is_expected, method_not_allowed, problem_of
from api.metering import NO_ROUTE, Meters
from api.request import Asked
from api.response import carried
from api.router import Router

Handler = Callable[[Request], Awaitable[Response]]


class Entrance(Struct, frozen=True):
    """A path: what answers there, by method. `template`: what its requests are counted by."""

    template: str
    handlers: Mapping[str, Handler]

    @property
    def allowed(self) -> str:
        """HEAD is GET without a body; OPTIONS names the others."""
        return ", ".join(sorted({*self.handlers, "OPTIONS", *(["HEAD"] if "GET" in self.handlers else [])}))

    def handler(self, method: str) -> Handler | None:
        """None where this method is not allowed."""
        return self.handlers.get("GET" if method == "HEAD" else method) or (
            self._options if method == "OPTIONS" else None
        )

    async def refuse(self, _request: Request) -> Response:
        """405 that names every right method."""
        raise method_not_allowed(headers={"Allow": self.allowed})

    async def _options(self, _request: Request) -> Response:
        return Response(status_code=204, headers={"Allow": self.allowed})


class Door:
    """The ASGI application. `elsewhere` answers where there is no entrance; `router`: what begins and ends with it."""

    def __init__(
        self, entrances: Mapping[str, Entrance], *, elsewhere: Handler, router: Lifespan, meters: Meters
    ) -> None:
        self.router: Final = router
        self._entrances: Final = Router(entrances)
        self._elsewhere: Final = elsewhere
        self._meters: Final = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.router(scope, receive, send)
            return
        began, status, template = time.perf_counter(), 0, NO_ROUTE
        refusal: Problem | None = None

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._meters.answered(template, scope["method"], status, time.perf_counter() - began)
                if refusal is not None:
                    self._meters.refused(refusal)
            await send(message)

        request = Asked(scope, receive, send)
        try:
            template, handler = self._way(request)
            response = await handler(request)
            await carried(request, response)(scope, receive, counted)
        except Exception as exc:
            if status:
                raise
            refusal = problem_of(exc)
            await carried(request, refusal.response())(scope, receive, counted)
            if not is_expected(exc):
                raise

    def _way(self, request: Request) -> tuple[str, Handler]:
        """The template of the path, and what answers this method there; what refuses it, where nothing does."""
        found, method = self._entrances.found(request.scope["path"]), request.scope["method"]
        for entrance, values in found:
            if (handler := entrance.handler(method)) is not None:
                request.scope["path_params"] = values
                return entrance.template, handler
        return (found[0][0].template, found[0][0].refuse) if found else (NO_ROUTE, self._elsewhere)
