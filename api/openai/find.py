"""Find the version that the text `model` of a call names, within what its account may use."""

from api.models.deployments import choose_version, find_usable
from api.predictions.bodies import MODEL, VERSION
from api.predictions.intake import Called
from api.services.lookups import VersionRef
from api.sites.sites import no_version
from api.web.errors import model_not_found
from api.web.http import Request, services_of
from director.store.catalog import has_openai_api


async def find_called(request: Request, text: str, item: str = "") -> Called:
    """Return what an alias, `owner/name`, `owner/name:version` or a deployment's `owner/name` stands for. Raises a 404
    with the code `model_not_found`, and a 422 for a deployment that is disabled. An alias goes before a model, and that
    before a deployment. `item` distinguishes the calls of a batch, which share an idempotency key.
    """
    aliases = await services_of(request).lookups.aliases()  # of the home, as accounts are
    name, pinned, version = aliases.get(text, text).partition(":")
    if not MODEL.fullmatch(name) or (pinned and not VERSION.fullmatch(version)):
        raise model_not_found()
    ref = VersionRef(model=name, version=version or None)
    found = await request.versions.find_named(ref, request.account)
    called = None if found is None else Called(found)
    if called is None and not pinned:
        called = await _find_deployed(request, name, item)
    if called is None:
        raise await no_version(request, ref, model_not_found)
    if not has_openai_api(called.version.server):
        raise model_not_found(
            "This model is not served with OpenAI's API: its model server is of another kind. "
            "GET /openai/v1/models lists those that are."
        )
    return called


async def _find_deployed(request: Request, name: str, item: str) -> Called | None:
    deployment = await find_usable(request, *name.split("/"))
    return None if deployment is None else await choose_version(request, deployment, item)
