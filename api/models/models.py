"""Models: list, make, show, change and take them away. Who may see one is not decided here: see `lookups`.

What another account's private model is asked for answers as if there were none; what is seen and not the caller's to
change answers 403.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from api.answers import json_response
from api.auth import Scope, authenticate
from api.body import read_body
from api.models.model_requests import parse_change, parse_make
from api.models.model_views import fitting, fitting_slice, shown_models
from api.pages import PAGE_SIZE, Cursor, cursor_of, link
from api.parts import Parts, parts_of
from api.problems import InvalidField
from api.refusals import already_exists, forbidden, in_use, invalid_input, not_found
from api.requests import parse_model
from director.core.schema import Page
from director.store.accounts import Account
from director.store.models import Model, Order

__all__ = (
    "change_model",
    "delete_model",
    "get_examples",
    "get_model",
    "get_readme",
    "list_models",
    "make_model",
    "own_model",
    "seen_model",
)

ORDERS: Final[Mapping[str, Order]] = {"latest_version_created_at": "latest", "model_created_at": "created"}
DIRECTIONS: Final = ("desc", "asc")
MOST_BODY: Final = 1 << 20
MOST_READ: Final = 2_000  # of one page: private ones of others are passed over
MOST_OWNED: Final = 1_000


async def list_models(request: Request) -> Response:
    """GET /models?sort_by=&sort_direction=&cursor=: the public ones, and the caller's own."""
    account = await authenticate(request, "read")
    cursor, asked = cursor_of(request), _sorting(request)
    backwards = cursor is not None and cursor.backwards
    is_falling = (asked["sort_direction"] == "desc") != backwards
    listed = await parts_of(request).catalog.models.listed(ORDERS[asked["sort_by"]])
    places = sorted((f"{at_ms:013d}/{name}" for at_ms, name in listed), reverse=is_falling)
    if cursor is not None:
        places = [place for place in places if (place < cursor.at if is_falling else place > cursor.at)]
    found, walked = await _walk(parts_of(request), account, places)
    fits = await fitting(request, list(found.values()))
    if len(fits) < len(found):
        walked = list(found)[: len(fits)]
    models = await shown_models(request, fits)
    ends = [Cursor(walked[0], backwards=True), Cursor(walked[-1])] if walked else [None, None]
    there_is = [cursor is not None, len(walked) < len(places)]
    if backwards:
        models.reverse()
        ends = [Cursor(walked[-1], backwards=True), Cursor(walked[0])] if walked else [None, None]
        there_is.reverse()
    kept = {name: value for name, value in asked.items() if name in request.query_params}
    previous, following = (
        link(request, "/models", end, kept) if end and is_there else None
        for end, is_there in zip(ends, there_is, strict=True)
    )
    return json_response(Page(next=following, previous=previous, results=models))


async def make_model(request: Request) -> Response:
    """POST /models: 201 with a model that has no version yet; a director brings it one."""
    account = await authenticate(request, "run")
    name, said = parse_make(await read_body(request, max_bytes=MOST_BODY))
    if not Model(name=name, created_ms=0).may_be_changed_by(account):
        raise forbidden(f"A model of this account has the owner '{account.name}'.")
    models = parts_of(request).catalog.models
    if sum(other.partition("/")[0] == account.name for _, other in await models.listed("created")) >= MOST_OWNED:
        raise forbidden(f"An account has at most {MOST_OWNED:,} models.")
    if not await models.make(name, said):
        raise already_exists("a model of this name")
    parts_of(request).lookups.forget(name)
    return await _answer(request, name, status=201)


async def get_model(request: Request) -> Response:
    """GET /models/{owner}/{name}, with its latest version."""
    return json_response((await shown_models(request, [await seen_model(request, "read")]))[0])


async def change_model(request: Request) -> Response:
    """PATCH /models/{owner}/{name}: 200 with the model as it is then."""
    model = await own_model(request)
    said = parse_change(await read_body(request, max_bytes=MOST_BODY))
    if not await parts_of(request).catalog.models.change(model.name, said):
        raise not_found()
    parts_of(request).lookups.forget(model.name)
    return await _answer(request, model.name)


async def delete_model(request: Request) -> Response:
    """DELETE /models/{owner}/{name}: 204. Private ones without versions alone."""
    model = await own_model(request, private="a private model")
    if not await parts_of(request).catalog.models.remove(model.name):
        raise in_use("This model has versions: delete them first.")
    parts_of(request).lookups.forget(model.name)
    return Response(status_code=204)


async def get_readme(request: Request) -> Response:
    """GET /models/{owner}/{name}/readme, as text."""
    model = await seen_model(request, "read")
    readme = await parts_of(request).catalog.models.readme(model.name)
    if not readme:
        raise not_found()
    # somebody wrote it: a browser must not take it for a page of ours
    return Response(readme, media_type="text/plain", headers={"X-Content-Type-Options": "nosniff"})


async def get_examples(request: Request) -> Response:
    """GET /models/{owner}/{name}/examples: predictions that an operator chose, as they were then, newest first."""
    model, cursor = await seen_model(request, "read"), cursor_of(request)
    models, path = parts_of(request).catalog.models, f"/models/{model.name}/examples"
    sizes = await models.example_sizes(model.name)

    async def weigh(page: Sequence[str]) -> Sequence[int]:
        return [sizes[prediction_id] for prediction_id in page]

    page, older, newer = await fitting_slice(list(sizes), cursor, weigh)
    results: list[Raw] = await models.examples(model.name, page)
    return json_response(
        Page(
            next=link(request, path, older) if older else None,
            previous=link(request, path, newer) if newer else None,
            results=results,
        )
    )


async def seen_model(request: Request, scope: Scope) -> Model:
    """The model of this path, as far as the caller may see it; else the 404 of an unknown one."""
    account = await authenticate(request, scope)
    return await _seen(request, account)


async def own_model(request: Request, *, private: str = "") -> Model:
    """The model of this path, which is the caller's to change; 403 where it is another's that all may see.

    `private`: what only a private one may have deleted; operators may in any case.
    """
    account = await authenticate(request, "run")
    model = await _seen(request, account)
    if not model.may_be_changed_by(account):
        raise forbidden("This model belongs to another account.")
    if private and model.visibility == "public" and "admin" not in account.scopes:
        raise forbidden(f"Only {private} can be deleted.")
    return model


async def _seen(request: Request, account: Account) -> Model:
    name = parse_model(request.path_params["owner"], request.path_params["name"])
    model = await parts_of(request).lookups.model(name, account)
    if model is None:
        raise not_found()
    return model


async def _answer(request: Request, name: str, *, status: int = 200) -> Response:
    model = await parts_of(request).catalog.model(name)
    if model is None:  # gone between
        raise not_found()
    return json_response((await shown_models(request, [model]))[0], status)


def _sorting(request: Request) -> dict[str, str]:
    allowed = {"sort_by": tuple(ORDERS), "sort_direction": DIRECTIONS}
    asked = {name: request.query_params.get(name) or words[0] for name, words in allowed.items()}
    faults = [
        InvalidField("enum", name, f"{name} must be one of the following: {', '.join(allowed[name])}")
        for name, word in asked.items()
        if word not in allowed[name]
    ]
    if faults:
        raise invalid_input(faults)
    return asked


async def _walk(parts: Parts, account: Account, places: Sequence[str]) -> tuple[dict[str, Model], Sequence[str]]:
    """A page of those that this account may see, by their place; and the places that were walked over for it."""
    found: dict[str, Model] = {}
    for start in range(0, min(len(places), MOST_READ), PAGE_SIZE):
        slice_ = places[start : start + PAGE_SIZE]
        models = await parts.catalog.models.many([place.partition("/")[2] for place in slice_])
        for number, (place, model) in enumerate(zip(slice_, models, strict=True), start + 1):
            if model is not None and model.may_be_seen_by(account):
                found[place] = model
            if len(found) == PAGE_SIZE:
                return found, places[:number]
    return found, places[:MOST_READ]
