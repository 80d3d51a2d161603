"""Serve collections of models and names of hardware, which operators wrote, and search models and collections."""

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct
from starlette.responses import Response

from api.models.models import ModelView, fitting, show_models
from api.services.lookups import Card
from api.services.services import Services
from api.web.errors import invalid_field, malformed, not_found
from api.web.http import PAGE_SIZE, Request, cursor_of, json_response, page_after, page_response, read_body
from api.web.route import CURSOR, TEXT, Answer, Body, Parameter, Route, reads
from director.core.schema import Page
from director.store.accounts import Account
from director.store.models import SLUG, Model


class CollectionView(Struct, frozen=True):
    """A collection in a list. Official clients need all three, none of them null."""

    name: str
    slug: str
    description: str


class WholeCollection(Struct, frozen=True):
    """A collection with its models, of which those are left out that the caller may not see."""

    name: str
    slug: str
    description: str
    full_description: str | None
    models: list[ModelView]


class Hardware(Struct, frozen=True):
    """One kind of hardware."""

    name: str
    sku: str


@reads(
    "/collections",
    name="collections.list",
    summary="List collections of models",
    about="Operators write collections with `director collection set`.",
    parameters=(CURSOR,),
    answers={200: Answer("A page, by slug.", Page[CollectionView])},
)
async def list_collections(request: Request) -> Response:
    cursor, collections = cursor_of(request), request.services.collections
    page, more = page_after(await collections.slugs(), cursor, str)
    found = zip(page, await collections.many(page), strict=True)
    results = [CollectionView(one.name, slug, one.description) for slug, one in found if one is not None]
    return page_response(request, "/collections", results, older=more)


@reads(
    "/collections/{slug}",
    name="collections.get",
    summary="Get a collection, with its models",
    about="The models stand in the order that the operator chose. Models that the account may not see are left out.",
    answers={200: Answer("The collection.", WholeCollection)},
    refusals={400},
)
async def get_collection(request: Request) -> Response:
    slug, services = request.path_params["slug"], request.services
    found = await services.collections.get(slug) if re.fullmatch(SLUG, slug) else None
    if found is None:
        raise not_found()
    models = await services.catalog.models.many(found.models)
    seen = [model for model in models if model is not None and model.may_be_seen_by(request.account)]
    shown = await show_models(request, await fitting(request, seen))
    return json_response(WholeCollection(found.name, slug, found.description, found.full_description or None, shown))


@reads(
    "/hardware",
    name="hardware.list",
    summary="List kinds of hardware",
    about=(
        "Operators write this list with `director hardware`. It is information only: a model runs wherever its "
        "director was started."
    ),
    answers={200: Answer("All of them.", list[Hardware])},
)
async def list_hardware(request: Request) -> Response:
    hardware = await request.services.collections.hardware()
    return json_response([Hardware(name, sku) for sku, name in hardware.items()])


# Search uses cards of the newest 5,000 models, cached for seconds. Matches are read again before they are shown. A
# caller finds only what it may see.

MOST_BODY: Final = 4_096
MOST_FOUND: Final = 50
FOUND: Final = 20
MOST_COLLECTIONS: Final = 500
AT_ONCE: Final = 500  # cards compared before other requests get a turn

WORD: Final = re.compile(r"\w+")
MOST_WORDS: Final = 8
MOST_QUERY: Final = 500
# worth of a word in a name: equal to one of its words, the beginning of one, anywhere
IN_NAME: Final = (8, 5, 4)
IN_OWNER: Final = 3
IN_TEXT: Final = 2
IN_GIST: Final = 1


class Metadata(Struct, frozen=True):
    """How well a model was found. No description is generated here, so it is the model's own."""

    generated_description: str | None
    score: float
    tags: list[str]


class FoundModel(Struct, frozen=True):
    model: ModelView
    metadata: Metadata


class SearchResults(Struct, frozen=True):
    """The answer of GET /search. There are no pages of a manual here."""

    query: str
    models: list[FoundModel]
    collections: list[CollectionView]
    pages: list[str] = []


@Route(
    "QUERY",
    "/models",
    name="models.search",
    summary="Search models by words",
    about=(
        "The body is plain text. Each word must be in the name, the owner, the description or the beginning of the "
        "readme."
    ),
    scopes=("read",),
    body=Body(str, TEXT),
    answers={200: Answer("The best matches first.", Page[ModelView])},
)
async def query_models(request: Request) -> Response:
    """Read the words from the body, which is plain text. One client puts quotes around them."""
    try:
        query = (await read_body(request, max_bytes=MOST_BODY)).decode().strip()
    except UnicodeDecodeError as exc:
        raise malformed("The body is not UTF-8.") from exc
    if len(query) > 1 and query[0] == query[-1] == '"':
        query = query[1:-1]
    best = [model for _, model in await _best(request.services, request.account, query, most=PAGE_SIZE)]
    return page_response(request, "/models", await show_models(request, await fitting(request, best)))


@reads(
    "/search",
    name="search",
    summary="Search models and collections by words",
    about=(
        "Each word must be in the name, the owner, the description or the beginning of the readme. The search "
        "covers the 5,000 models with the newest versions."
    ),
    parameters=(
        Parameter("query", "The words; 400 without."),
        Parameter("limit", "The most models to return; 20 without it.", Annotated[int, Meta(ge=1, le=MOST_FOUND)]),
    ),
    answers={200: Answer("The best matches first.", SearchResults)},
    refusals={400, 422},
)
async def search(request: Request) -> Response:
    query, services = request.query_params.get("query", "").strip(), request.services
    if not query:
        raise malformed('Query parameter "query" is required')
    best = await _best(services, request.account, query, most=_limit(request))
    models = await fitting(request, [model for _, model in best])
    found = [
        FoundModel(view, Metadata(view.description, round(score, 3), []))
        for (score, _), view in zip(best, await show_models(request, models), strict=False)
    ]
    return json_response(SearchResults(query, found, await _collections(services, query)))


def _limit(request: Request) -> int:
    given = request.query_params.get("limit") or str(FOUND)
    if not given.isascii() or not given.isdecimal() or not 1 <= int(given[:9]) <= MOST_FOUND:
        raise invalid_field("number_lte", "limit", f"Must be a whole number from 1 to {MOST_FOUND}")
    return int(given)


async def _best(services: Services, account: Account, query: str, *, most: int) -> Sequence[tuple[float, Model]]:
    words, found = _words_of(query), []
    for number, (model, card) in enumerate(await services.lookups.cards()):
        if number % AT_ONCE == AT_ONCE - 1:
            await asyncio.sleep(0)
        if (score := _score(card, words)) and model.may_be_seen_by(account):
            found.append((score, model))
    best = sorted(found, key=lambda each: -each[0])[:most]
    # a card is seconds old: models that became private or were deleted meanwhile are not shown
    models = await services.catalog.models.many([model.name for _, model in best])
    return [
        (score, model)
        for (score, _), model in zip(best, models, strict=True)
        if model is not None and model.may_be_seen_by(account)
    ]


async def _collections(services: Services, query: str) -> list[CollectionView]:
    words, found = _words_of(query), []
    slugs = (await services.collections.slugs())[:MOST_COLLECTIONS]
    for slug, one in zip(slugs, await services.collections.many(slugs), strict=True):
        card = None if one is None else Card(f"{slug} {one.name}".lower(), text=one.description.lower())
        if one and card and (score := _score(card, words)):
            found.append((score, CollectionView(one.name, slug, one.description)))
    return [view for _, view in sorted(found, key=lambda each: -each[0])]


def _words_of(query: str) -> Sequence[str]:
    return list(dict.fromkeys(WORD.findall(query[:MOST_QUERY].lower())))[:MOST_WORDS]


def _score(card: Card, words: Sequence[str]) -> float:
    """Return the match from 0, if some word is missing, to 1, if each is a word of the name."""
    worth = [_worth(card, word) for word in words]
    return sum(worth) / (IN_NAME[0] * len(worth)) if worth and all(worth) else 0.0


def _worth(card: Card, word: str) -> int:
    if word in card.name:
        parts = re.split(r"[\W_]+", card.name)
        whole, beginning, anywhere = IN_NAME
        return whole if word in parts else beginning if any(part.startswith(word) for part in parts) else anywhere
    if word in card.owner:
        return IN_OWNER
    return IN_TEXT if word in card.text else IN_GIST if word in card.gist else 0
