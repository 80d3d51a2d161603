"""Find the version that the text `model` of a call names, within what its account may use."""

import re
from typing import Final

from msgspec import Struct

from api.models.deployments import find_usable
from api.predictions.bodies import MODEL, VERSION
from api.services.lookups import VersionRef
from api.sites.sites import no_version
from api.web.errors import model_not_found
from api.web.http import Request
from director.store.catalog import Version

SPEAKS: Final = re.compile(r"openai\b|$")  # '' is a version whose servers were never ready


class Called(Struct, frozen=True):
    """The version that a call runs. `deployment`: owner/name of the one that it named, if any."""

    version: Version
    deployment: str = ""


async def find_called(request: Request, text: str) -> Called:
    """Return what an alias, `owner/name`, `owner/name:version` or a deployment's `owner/name` stands for. Raises a 404
    with the code `model_not_found`, and a 422 for a deployment that is disabled. A model goes before a deployment.
    """
    name, pinned, version = text.partition(":")
    if not MODEL.fullmatch(name) or (pinned and not VERSION.fullmatch(version)):
        raise model_not_found()
    ref = VersionRef(model=name, version=version or None)
    found = await request.versions.find_named(ref, request.account)
    called = None if found is None else Called(found)
    if called is None and not pinned:
        called = await _find_deployed(request, name)
    if called is None:
        raise await no_version(request, ref, model_not_found)
    if not speaks(called.version.server):
        raise model_not_found(
            "This model is not served with OpenAI's API: its model server is of another kind. "
            "GET /openai/v1/models lists those that are."
        )
    return called


def speaks(server: str) -> bool:
    """Return whether model servers of this kind take calls of OpenAI's API, or may do so."""
    return SPEAKS.match(server) is not None


async def _find_deployed(request: Request, name: str) -> Called | None:
    deployment = await find_usable(request, *name.split("/"))
    if deployment is None:
        return None
    release = deployment.release
    version = await request.versions.find_named(
        VersionRef(model=release.model, version=release.version), request.account
    )
    return None if version is None else Called(version, deployment.full_name)
