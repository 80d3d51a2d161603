"""The versions of a model, as their directors registered them. Nobody changes one here; its owner may delete it."""

import re
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api.answers import json_response
from api.model_views import shown_version
from api.models import own_model, seen_model
from api.pages import PAGE_SIZE, Cursor, cursor_of, link
from api.parts import parts_of
from api.problems import in_use, not_found
from director.core.ids import VERSION_ID
from director.core.schema import Page

__all__ = ("delete_version", "get_version", "list_versions")

NEEDED: Final = {
    "live": "Predictions of this version wait or run: let them end, or cancel them.",
    "dead": "Dead letters of this version wait for an operator: revive or drop them.",
    "served": "A director serves this version: end it, and try again a minute later.",
}


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
    model, version_id = await seen_model(request, "read"), _id(request)
    version = await parts_of(request).lookups.version(model.name, version_id)
    if version is None:
        raise not_found()
    return json_response(shown_version(version))


async def delete_version(request: Request) -> Response:
    """DELETE /models/{owner}/{name}/versions/{id}: 202. Of private models alone, but for operators.

    A version that is needed stays: 422 that says by what.
    """
    model = await own_model(request, private="a version of a private model")
    version_id, parts = _id(request), parts_of(request)
    if not await parts.catalog.has_version(model.name, version_id):
        raise not_found()
    if await parts.deployments.one_of(await parts.accounts.names(), model=model.name, version=version_id):
        raise in_use("A deployment stands for this version: release another one, or delete the deployment.")
    answer = await parts.removal.remove(model.name, version_id)
    if answer != "done":
        raise in_use(NEEDED[answer])
    parts.lookups.forget(model.name)
    return Response(status_code=202)


def _id(request: Request) -> str:
    version_id: str = request.path_params["id"]
    if not re.fullmatch(VERSION_ID, version_id):
        raise not_found()
    return version_id
