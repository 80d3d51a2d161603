"""Models and versions, as their directors registered them. Anybody with a token may look; nobody changes them here."""

import re

from msgspec import Raw, Struct
from starlette.requests import Request
from starlette.responses import Response

from api.answers import json_response
from api.auth import authenticate
from api.pages import PAGE_SIZE, Cursor, cursor_of, link
from api.parts import parts_of
from api.problems import not_found
from api.requests import parse_model
from api.urls import base_url
from director.core.catalog import Version
from director.core.ids import VERSION_ID
from director.core.models import Model
from director.core.schema import Page
from director.core.view import iso

__all__ = ("get_model", "get_version", "list_versions")


class VersionView(Struct, frozen=True):
    """A version on the wire. Official clients need all four, none of them null."""

    id: str
    created_at: str
    cog_version: str
    openapi_schema: Raw


class ModelView(Struct, frozen=True, kw_only=True):
    """A model on the wire, with what official clients require and we do not know of it."""

    url: str
    owner: str
    name: str
    created_at: str
    latest_version: VersionView | None
    description: str | None = None
    visibility: str = "public"
    is_official: bool = False
    github_url: str | None = None
    paper_url: str | None = None
    license_url: str | None = None
    run_count: int = 0
    cover_image_url: str | None = None
    default_example: None = None


async def get_model(request: Request) -> Response:
    """GET /models/{owner}/{name}, with its latest version."""
    lookups, model = parts_of(request).lookups, await _seen(request)
    latest = await lookups.version(model.name, model.latest) if model.latest else None
    owner, _, short = model.name.partition("/")
    return json_response(
        ModelView(
            url=f"{base_url(request)}/{model.name}",
            owner=owner,
            name=short,
            created_at=iso(model.created_ms),
            latest_version=None if latest is None else _shown(latest),
            visibility=model.visibility,
        )
    )


async def list_versions(request: Request) -> Response:
    """GET /models/{owner}/{name}/versions, newest first."""
    model = await _seen(request)
    name, cursor, catalog = model.name, cursor_of(request), parts_of(request).catalog
    ids = await catalog.version_ids(name)
    start = 0
    if cursor is not None:
        start = ids.index(cursor.at) + 1 if cursor.at in ids else len(ids)
    page = ids[start : start + PAGE_SIZE]
    has_more = len(ids) > start + PAGE_SIZE
    following = link(request, f"/models/{name}/versions", Cursor(page[-1])) if has_more else None
    versions = await catalog.versions(name, page)
    return json_response(Page(next=following, previous=None, results=[_shown(version) for version in versions]))


async def get_version(request: Request) -> Response:
    """GET /models/{owner}/{name}/versions/{id}. `run()` of the official Python client reads its output schema."""
    model, version_id = await _seen(request), request.path_params["id"]
    if not re.fullmatch(VERSION_ID, version_id):
        raise not_found()
    version = await parts_of(request).lookups.version(model.name, version_id)
    if version is None:
        raise not_found()
    return json_response(_shown(version))


async def _seen(request: Request) -> Model:
    """The model of this path, as far as the caller may see it; else the 404 of an unknown one."""
    account = await authenticate(request, "read")
    name = parse_model(request.path_params["owner"], request.path_params["name"])
    model = await parts_of(request).lookups.model(name, account)
    if model is None:
        raise not_found()
    return model


def _shown(version: Version) -> VersionView:
    return VersionView(version.id, iso(version.created_ms), version.server, version.schema)
