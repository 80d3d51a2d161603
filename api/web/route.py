"""Declare a route once, on its handler. The router, the check of scopes and the OpenAPI document come from this."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct
from starlette.responses import Response

from api.web.examples import OUTPUT_NAME, PREDICTION_ID, STREAM_ADDRESS
from api.web.examples import VERSION as EXAMPLE_VERSION
from api.web.http import Request
from director.core.account_limits import BucketName
from director.core.ids import QUEUE_END, VERSION_DIGITS, VERSION_ID, PredictionId
from director.store.accounts import ACCOUNT_NAME
from director.store.accounts import OPERATES as OPERATES
from director.store.accounts import OVERSEES as OVERSEES
from director.store.accounts import Scope as Scope
from director.store.models import SLUG

JSON: Final = "application/json"
TEXT: Final = "text/plain"
OPENAI: Final = "/openai/"  # the paths of OpenAI's API begin with it
OPENAI_STATUSES: Final = {402: 429, 422: 400}  # OpenAI's clients have an exception for these
Handler = Callable[[Request], Awaitable[Response]]


class Parameter(Struct, frozen=True):
    """A part of the path, of the query, or a header. `type`: any type that msgspec can describe. A part of a path has
    an example.
    """

    name: str
    what: str
    type: Any = str
    place: Literal["path", "query", "header"] = "query"
    example: str = ""


class Body(Struct, frozen=True):
    type: Any
    media_type: str = JSON


class Answer(Struct, frozen=True):
    """An answer that is not a refusal. Without a type it has no body. `or_events`: server-sent events may come in its
    place.
    """

    what: str
    type: Any = None
    media_type: str = JSON
    or_events: bool = False
    headers: tuple[str, ...] = ()


class Route(Struct, eq=False):
    """One method of one path, and how its handler is called. Use it as the handler's decorator. Without a name it is
    not part of the contract: it has no base such as /v1, and the document omits it. A path of OpenAI's API has its
    base in it. `about`: what a caller should know, in a few sentences. `parameters`: those of the query and headers.
    `scopes`: the token must have one of these, and its account is in `request.account`; if none, no token is needed.
    `bucket`: the rate that the request counts against: all that stores or runs something counts as a create. `frees`:
    it only ends or deletes, so a suspended account may call it too.

    `is_open`: its address is the permission, so scripts of any web page may read it.

    `site`: whose services are in `request.services`: the home's, or those of the site that X-Site names. `of`: reads
    from the path which prediction this is about. Then its id is in `request.prediction_id`, the services are those of
    its site, and a handler that raises Moved is called again with those of the new site.
    """

    method: str
    path: str
    name: str = ""
    summary: str = ""
    about: str = ""
    scopes: tuple[Scope, ...] = ()
    bucket: BucketName = "read"
    frees: bool = False
    is_open: bool = False
    site: Literal["home", "asked"] = "home"
    of: Callable[[Request], PredictionId] | None = None
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    answers: Mapping[int, Answer] = {}
    refusals: Collection[int] = ()
    handler: Handler = None  # type: ignore[assignment] # `__call__` sets it

    @property
    def is_openai(self) -> bool:
        return self.path.startswith(OPENAI)

    @property
    def all_parameters(self) -> list[Parameter]:
        places = [(before, part[1:-1]) for before, part in pairwise(self.path.split("/")) if part.startswith("{")]
        return [*(IN_PATH.get(f"{before}/{name}") or IN_PATH[name] for before, name in places), *self.parameters]

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
        if self.is_openai:
            found = {OPENAI_STATUSES.get(status, status) for status in found}
            # an idempotency key that was used with another body
            found |= {422} if any(parameter.name == "Idempotency-Key" for parameter in self.parameters) else set()
        return frozenset(found)

    def __call__(self, handler: Handler) -> Handler:
        self.handler = handler
        _DECLARED.setdefault(handler.__module__, []).append(self)
        return handler


_DECLARED: Final[dict[str, list[Route]]] = {}


def routes_of(*modules: ModuleType) -> tuple[Route, ...]:
    return tuple(route for module in modules for route in _DECLARED[module.__name__])


def one_of(*words: str) -> Any:
    return Annotated[str, Meta(extra_json_schema={"enum": list(words)})]


NO_BODY: Final = Answer("Done; there is no body.")


Id = Annotated[str, Meta(pattern="^[0-9a-hjkmnp-tv-z]{26}$")]
NamePart = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9._-]{0,63}$")]
CURSOR: Final = Parameter("cursor", "The place where the page begins. `next` and `previous` of another page have it.")
# The parts of paths, by their own name, or by the part before and their name
IN_PATH: Final = {
    "owner": Parameter("owner", "The account that the model or deployment belongs to.", NamePart, "path", "acme"),
    "name": Parameter("name", "The name of the model or deployment.", NamePart, "path", "painter"),
    "id": Parameter("id", "The id of a prediction.", Id, "path", PREDICTION_ID),
    "version": Parameter(
        "version",
        f"The first {VERSION_DIGITS} digits of a version. "
        "Queues of another kind of run have `~training` or `~procedure` behind them.",
        Annotated[str, Meta(pattern=QUEUE_END)],
        "path",
        EXAMPLE_VERSION[:VERSION_DIGITS],
    ),
    "models/id": Parameter("id", "What a call gives as `model`.", str, "path", "acme/llm"),
    "versions/id": Parameter(
        "id", "The id of a version.", Annotated[str, Meta(pattern=VERSION_ID)], "path", EXAMPLE_VERSION
    ),
    "files/id": Parameter("id", "The id of a file.", Id, "path", PREDICTION_ID),
    "batches/id": Parameter("id", "The id of a batch.", str, "path", "batch_06h2b08m194jnpgc4z7tc5gmtb"),
    "download/name": Parameter("name", "Any name. Only its ending matters to a reader.", str, "path", "cat.png"),
    "outputs/name": Parameter("name", "The name of the file.", str, "path", OUTPUT_NAME),
    "accounts/name": Parameter("name", "The account.", Annotated[str, Meta(pattern=ACCOUNT_NAME)], "path", "acme"),
    "tokens/id": Parameter("id", "The id of a token. It is no secret.", str, "path", "7f3c1a9be2d04856"),
    "collections/slug": Parameter("slug", "The collection.", Annotated[str, Meta(pattern=SLUG)], "path", "best"),
    "streams/address": Parameter(
        "address", "The last part of `urls.stream`. It is the permission.", str, "path", STREAM_ADDRESS
    ),
}


reads: Final = partial(Route, "GET", scopes=("read",))
changes: Final = partial(Route, scopes=("run",))
stores: Final = partial(changes, bucket="create")
deletes: Final = partial(changes, "DELETE", answers={204: NO_BODY}, frees=True)
oversees: Final = partial(Route, "GET", scopes=OVERSEES, site="asked")
operates: Final = partial(Route, "POST", scopes=OPERATES, site="asked")
administers: Final = partial(Route, scopes=("admin",), site="asked")
