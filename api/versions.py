"""The versions of a model, as their directors registered them. Nobody changes them here."""

import re

from starlette.requests import Request
from starlette.responses import Response

from api.answers import json_response
from api.model_views import shown_version
from api.models import seen_model
from api.pages import PAGE_SIZE, Cursor, cursor_of, link
from api.parts import parts_of
from api.problems import not_found
from director.core.ids import VERSION_ID
from director.core.schema import Page

__all__ = ("get_version", "list_versions")


async def list_versions(request: Request) -> Response:
    """GET /models/{owner}/{name}/versions, newest first."""
    model = await seen_model(request, "read")
    name, cursor, catalog = model.name, cursor_of(request), parts_of(request).catalog
    ids = await catalog.version_ids(name)
    start = 0
    if cursor is not None:
        start = ids.index(cursor.at) + 1 if cursor.at in ids else len(ids)
    page = ids[start : start + PAGE_SIZE]
    has_more = len(ids) > start + PAGE_SIZE
    following = link(request, f"/models/{name}/versions", Cursor(page[-1])) if has_more else None
    versions = await catalog.versions(name, page)
    return json_response(Page(next=following, previous=None, results=[shown_version(version) for version in versions]))


async def get_version(request: Request) -> Response:
    """GET /models/{owner}/{name}/versions/{id}. `run()` of the official Python client reads its output schema."""
    model, version_id = await seen_model(request, "read"), request.path_params["id"]
    if not re.fullmatch(VERSION_ID, version_id):
        raise not_found()
    version = await parts_of(request).lookups.version(model.name, version_id)
    if version is None:
        raise not_found()
    return json_response(shown_version(version))
