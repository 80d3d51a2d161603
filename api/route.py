"""Declare a route once, on its handler: `@Route("GET", "/account", ...)`.

The router, the check of the token's scopes and the OpenAPI document all come from this declaration.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from types import ModuleType
from typing import Any, Final, Literal

from msgspec import Struct
from starlette.responses import Response

from api.auth import Scope
from api.request import Request
from director.core.account_limits import BucketName
from director.core.ids import PredictionId

JSON: Final = "application/json"
TEXT: Final = "text/plain"

Handler = Callable[[Request], Awaitable[Response]]


class Parameter(Struct, frozen=True):
    """A part of the path, of the query, or a header. `type`: any type that msgspec can describe."""

    name: str
    what: str
    type: Any = str
    place: Literal["path", "query", "header"] = "query"


class Body(Struct, frozen=True):
    """The body that a route takes."""

    type: Any
    media_type: str = JSON


class Answer(Struct, frozen=True):
    """An answer that is not a refusal. Without a type it has no body."""

    what: str
    type: Any = None
    media_type: str = JSON
    headers: tuple[str, ...] = ()


class Route(Struct, eq=False):
    """One method of one path, and how its handler is called. Use it as the handler's decorator.

    A route without a name is not part of the contract: it has no base such as /v1, and the document omits it.

    `scopes`: the token must have one of these; the handler finds its account in `request.account`. A route without
    scopes asks for no token. `bucket`: the rate that the request counts against.

    `site`: whose services the handler finds in `request.services`: the home's, or those of the site that the header
    X-Site names. `of`: reads from the path which prediction this is about. Then the services are those of the
    prediction's site, the id is in `request.prediction_id`, and a handler that raises Moved is called again with the
    services of the site that has the prediction now.
    """

    method: str
    path: str
    name: str = ""
    summary: str = ""
    scopes: tuple[Scope, ...] = ()
    bucket: BucketName = "read"
    site: Literal["home", "asked"] = "home"
    of: Callable[[Request], PredictionId] | None = None
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    answers: Mapping[int, Answer] = {}
    refusals: Collection[int] = ()
    handler: Handler = None  # type: ignore[assignment] # `__call__` sets it

    @property
    def refused(self) -> frozenset[int]:
        """Return all statuses of refusals: `refusals`, and those that follow from what the route takes."""
        found = {431, *self.refusals}
        if self.scopes:
            found |= {401, 403, 429, 503}
        if self.body is not None:
            found |= {400, 408, 413} if self.body.media_type == TEXT else {400, 408, 413, 422}
        if "{" in self.path and self.method != "OPTIONS":
            found.add(404)
        if any(parameter.name == "cursor" for parameter in self.parameters):
            found |= {400, 422}
        return frozenset(found)

    def __call__(self, handler: Handler) -> Handler:
        self.handler = handler
        _DECLARED.setdefault(handler.__module__, []).append(self)
        return handler


# Routes that have this much in common.
reads: Final = partial(Route, "GET", scopes=("read",))
administers: Final = partial(Route, scopes=("admin",), site="asked")

_DECLARED: Final[dict[str, list[Route]]] = {}


def routes_of(*modules: ModuleType) -> tuple[Route, ...]:
    """Return the routes that these modules declare, in order."""
    return tuple(route for module in modules for route in _DECLARED[module.__name__])
