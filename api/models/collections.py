"""Collections of models and the names of hardware, as operators wrote them. Nobody changes them here."""

import re

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from api.answers import json_response
from api.auth import authenticate
from api.models.model_views import ModelView, fitting, shown_models
from api.pages import PAGE_SIZE, Cursor, cursor_of, link
from api.parts import parts_of
from api.refusals import not_found
from director.core.schema import Page
from director.store.collections import SLUG

__all__ = ("CollectionView", "get_collection", "list_collections", "list_hardware")


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


async def list_collections(request: Request) -> Response:
    """GET /collections, by slug."""
    await authenticate(request, "read")
    cursor, collections = cursor_of(request), parts_of(request).collections
    slugs = [slug for slug in await collections.slugs() if cursor is None or slug > cursor.at]
    page = slugs[:PAGE_SIZE]
    found = zip(page, await collections.many(page), strict=True)
    following = link(request, "/collections", Cursor(page[-1])) if len(slugs) > len(page) else None
    results = [CollectionView(one.name, slug, one.description) for slug, one in found if one is not None]
    return json_response(Page(next=following, previous=None, results=results))


async def get_collection(request: Request) -> Response:
    """GET /collections/{slug}, with as many of its models, from the first one, as one answer may hold."""
    account = await authenticate(request, "read")
    slug, parts = request.path_params["slug"], parts_of(request)
    found = await parts.collections.get(slug) if re.fullmatch(SLUG, slug) else None
    if found is None:
        raise not_found()
    models = await parts.catalog.models.many(found.models)
    seen = [model for model in models if model is not None and model.may_be_seen_by(account)]
    shown = await shown_models(request, await fitting(request, seen))
    return json_response(WholeCollection(found.name, slug, found.description, found.full_description or None, shown))


async def list_hardware(request: Request) -> Response:
    """GET /hardware: a plain list, not a page."""
    await authenticate(request, "read")
    hardware = await parts_of(request).collections.hardware()
    return json_response([Hardware(name, sku) for sku, name in hardware.items()])
