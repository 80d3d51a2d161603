"""The versions of a model, as their directors registered them. Nobody changes one here; its owner may delete it."""

import re
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api.answers import json_response
from api.models.model_views import fitting_slice, shown_version, whole_version
from api.models.models import own_model, seen_model
from api.pages import cursor_of, link
from api.parts import parts_of
from api.refusals import in_use, not_found
from director.core.ids import VERSION_ID
from director.core.schema import Page

__all__ = ("delete_version", "get_version", "list_versions")

NEEDED: Final = {
    "live": "Predictions of this version wait or run: let them end, or cancel them.",
    "dead": "Dead letters of this version wait for an operator: revive or drop them.",
    "served": "A director serves this version: end it, and try again a minute later.",
}


async def list_versions(request: Request) -> Response:
    """GET /models/{owner}/{name}/versions, newest first; as many at once as one answer may hold with their schemas."""
    model = await seen_model(request, "read")
    cursor, catalog = cursor_of(request), parts_of(request).catalog
    path = f"/models/{model.name}/versions"
    marks = {f"{created:014}-{version}": version for created, version in await catalog.dated_versions(model.name)}

    async def weigh(page: Sequence[str]) -> Sequence[int]:
        return await catalog.schema_bytes([(model.name, marks[mark]) for mark in page])

    page, older, newer = await fitting_slice(list(marks), cursor, weigh)
    versions = await catalog.versions(model.name, [marks[mark] for mark in page])
    return json_response(
        Page(
            next=link(request, path, older) if older else None,
            previous=link(request, path, newer) if newer else None,
            results=[shown_version(version) for version in versions],
        )
    )


async def get_version(request: Request) -> Response:
    """GET /models/{owner}/{name}/versions/{id}. `run()` of the official Python client reads its output schema."""
    model, version_id = await seen_model(request, "read"), _id(request)
    version = await parts_of(request).lookups.version(model.name, version_id)
    if version is None:
        raise not_found()
    setup = await parts_of(request).catalog.setup_run(model.name, version_id)
    return json_response(whole_version(version, setup))


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
