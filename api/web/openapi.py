"""Build the OpenAPI 3.1 document of the API from its routes and the types that handlers encode, and serve it."""

from collections.abc import Iterable
from functools import cache
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import Raw
from starlette.responses import Response

from api.web import examples
from api.web.errors import MEDIA_TYPE, OpenAiErrorDocument, ProblemDocument
from api.web.http import Request, answer_unless_known, base_url, etag_of
from api.web.route import JSON, Answer, Parameter, Route
from director import __version__

# 3.1 allows no other methods; 3.2 has QUERY, but few tools read it
ANY: Final = "*/*"
FILE: Final = ("application/octet-stream", ANY)  # generators of clients pass over an answer that has only the second
EVENTS: Final = "text/event-stream"
METHODS: Final = frozenset({"GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE"})
ABOUT: Final = (
    "Replicate's HTTP API, self-hosted. The same routes answer under `/v1/v1` and without `/v1`. Every refusal is an "
    "object as `application/problem+json`; a path answers 405 with `Allow` for methods that it has not, HEAD as GET "
    "without its body, and OPTIONS with `Allow`. OpenAI's API is at `/openai/v1` only, and its refusals are those of "
    'OpenAI: `{"error": {"message", "type", "param", "code"}}`.'
)
SERVER: Final = "https://server.invalid"  # stands for the public URL of the service

REFUSALS: Final = {
    400: "The body cannot be read, or the Host header names no host.",
    401: "No token came with the request, or one that names no account.",
    402: "The account's compute is used up, and no waiting brings it back.",
    403: "The token, or its account, may not do this.",
    404: "Unknown, or another account's.",
    408: "The body did not arrive in time.",
    409: "It is not in a state for this, or there is one already.",
    410: "Its data was removed.",
    412: "It is another revision than `If-Match` says.",
    413: "The body is too large.",
    416: "The file has none of the bytes that the `Range` asks for: `Content-Range` says how many it has.",
    422: "The request can be read, and is wrong: `detail` and `invalid_fields` say where.",
    429: "Too much at once, or no room now: `code` says of what, `retry_after` when to come again.",
    431: "The request line and headers are too large.",
    500: "The model's schema is at fault: the operator of the model must mend it.",
    501: "This service stores no files, or a newer release wrote what is asked for.",
    503: "The service, or the model's servers, cannot answer now: `retry_after` says when to come again.",
}

OPENAI: Final = "OpenAI"  # before the names of its refusals
RATE: Final = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")
# name → description and type
HEADERS: Final[dict[str, tuple[str, type]]] = {
    "RateLimit-Limit": ("How many requests the account may make at once, where it has a rate.", int),
    "RateLimit-Remaining": ("How many of them are left.", int),
    "RateLimit-Reset": ("Seconds until all are there again.", int),
    "Retry-After": ("Seconds.", int),
    "WWW-Authenticate": ("Bearer.", str),
    "Location": ("The address of what was made.", str),
    "Preference-Applied": ("`wait` or `wait=n`, as it was understood.", str),
    "Idempotency-Replayed": ("`true` where this is the answer to an earlier request.", str),
    "x-request-id": ("The id of the prediction that the call is.", str),
    "X-Queue-Ahead": ("Where it waits: how many are before it.", int),
    "X-Queue-Estimate": ("Where it waits and that is known: seconds until it starts, in half of all cases.", float),
    "X-Queue-Reason": ("Where it waits: why.", str),
    "ETag": ("Of these very bytes.", str),
    "Accept-Ranges": ("`bytes`: a `Range` of them is had too.", str),
    "Content-Range": ("Which part this is, and of how many bytes.", str),
}
REFUSED_WITH: Final = {
    401: ("WWW-Authenticate",),
    416: ("Content-Range",),
    429: ("Retry-After", *RATE),
    503: ("Retry-After", *RATE),
}


def encode_document(base: str, routes: Iterable[Route]) -> bytes:
    """Return the document as JSON, for a service whose public URL is `base`. Routes without a name are left out."""
    info = {
        "title": "Director",
        "version": __version__,
        "description": ABOUT,
        "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
    }
    fixed = _build_fixed(tuple(route for route in routes if route.name))
    document = msgspec.json.encode({"openapi": "3.1.0", "info": info, "servers": [{"url": f"{SERVER}/v1"}], **fixed})
    return document.replace(SERVER.encode(), msgspec.json.encode(base)[1:-1])


@cache
def _build_fixed(routes: tuple[Route, ...]) -> dict[str, Raw]:
    types: list[Any] = [ProblemDocument, OpenAiErrorDocument, *(type_ for _, type_ in HEADERS.values())]
    for route in routes:
        types += [parameter.type for parameter in route.all_parameters]
        types += [answer.type for answer in route.answers.values() if answer.type is not None]
        types += [] if route.body is None else [route.body.type]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    # by identity, since two equal types may have different descriptions
    schema_of = {id(type_): schema for type_, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        method = route.method.lower() if route.method in METHODS else f"x-{route.method.lower()}"
        paths.setdefault(route.path, {})[method] = _operation(route, schema_of)
    parts = {"paths": paths, "components": _components(components, schema_of)}
    _open_objects(parts)
    return {name: Raw(msgspec.json.encode(part)) for name, part in parts.items()}


def _open_objects(part: Any) -> None:
    """Say of each object without known members that it may have any: generators of types take it for an empty one."""
    if isinstance(part, dict):
        if part.get("type") == "object" and not part.keys() & {"properties", "additionalProperties"}:
            part["additionalProperties"] = True
        for name, each in part.items():
            if name != "example":
                _open_objects(each)
    elif isinstance(part, list):
        for each in part:
            _open_objects(each)


def _components(schemas: dict[str, Any], schema_of: dict[int, Any]) -> dict[str, Any]:
    return {
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        "headers": {
            name: {"description": what, "schema": schema_of[id(type_)]} for name, (what, type_) in HEADERS.items()
        },
        "responses": {
            _refusal(status, name): {
                "description": what,
                **_headers(REFUSED_WITH.get(status, RATE)),
                "content": {media_type: _content(schema_of[id(type_)], f"{name}{status}")},
            }
            for name, type_, media_type in (("", ProblemDocument, MEDIA_TYPE), (OPENAI, OpenAiErrorDocument, JSON))
            for status, what in REFUSALS.items()
        },
        # a description is a docstring, which is wrapped as code is
        "schemas": {
            name: {**schema, "description": " ".join(schema.get("description", "").split())}
            for name, schema in schemas.items()
        },
    }


def _operation(route: Route, schema_of: dict[int, Any]) -> dict[str, Any]:
    body, scopes = route.body, route.scopes
    written: dict[str, Any] = {
        "operationId": route.name,
        "tags": [route.name.partition(".")[0]],
        "summary": route.summary,
        "description": route.about,
        # a list of alternatives: one of the scopes is enough
        "security": [{"token": [scope]} for scope in scopes],
        "parameters": [
            {
                "name": parameter.name,
                "in": parameter.place,
                "required": parameter.place == "path",
                "description": parameter.what,
                "schema": schema_of[id(parameter.type)],
                **({"example": parameter.example} if parameter.example else {}),
            }
            for parameter in route.all_parameters
        ],
        "responses": {},
    }
    if body is not None:
        written["requestBody"] = {
            "required": True,
            "content": {body.media_type: _content(schema_of[id(body.type)], f"{route.name} body")},
        }
    for status, answer in route.answers.items():
        found = {"description": answer.what, **_headers((*answer.headers, *(RATE if scopes else ())))}
        if answer.type is not None:
            content = _content(schema_of[id(answer.type)], f"{route.name} {status}")
            found["content"] = dict.fromkeys(FILE if answer.media_type == ANY else (answer.media_type,), content)
            if answer.or_events:
                found["content"][EVENTS] = {"schema": {"type": "object", "properties": {"data": {"type": "string"}}}}
        written["responses"][str(status)] = found
    for status in sorted(route.refused):
        name = _refusal(status, OPENAI if route.is_openai else "")
        written["responses"][str(status)] = {"$ref": f"#/components/responses/{name}"}
    # the operation, and not its path: generators of clients read it there
    return {**written, "servers": [{"url": SERVER}]} if route.is_openai else written


def _content(schema: dict[str, Any], what: str) -> dict[str, Any]:
    example = examples.of(schema, what)
    return {"schema": schema} if example is None else {"schema": schema, "example": example}


def _headers(names: tuple[str, ...]) -> dict[str, Any]:
    return {"headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names}} if names else {}


def _refusal(status: int, of: str) -> str:
    return of + HTTPStatus(status).phrase.replace(" ", "")


@Route(
    "GET",
    "/openapi.json",
    name="openapi.get",
    summary="Get this document",
    about="The document describes every route here, in OpenAPI 3.1. The page `/docs` shows the same for people.",
    parameters=(Parameter("If-None-Match", "The `ETag` of the document that is there already.", place="header"),),
    answers={
        200: Answer("The document.", dict[str, Any], headers=("ETag",)),
        304: Answer("It is still the same.", headers=("ETag",)),
    },
    refusals={400},
)
async def get_document(request: Request) -> Response:
    body = encode_document(base_url(request), request.app.routes)
    headers = {"Cache-Control": "no-cache", "Vary": "Host"}
    return answer_unless_known(request, body, etag=etag_of(body), headers=headers, media_type="application/json")
