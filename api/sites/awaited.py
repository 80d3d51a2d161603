"""Tell a caller that a version is missing because its first server is not ready yet, if the caller may know that."""

from typing import Final

from api.errors import Problem, Refusal, shown
from api.http import Request
from api.lookups import VersionRef
from api.sites.sites import others
from director.core.errors import BackendUnavailable
from director.store.catalog import Awaited

MAX_WHY: Final = 200


async def no_version(request: Request, ref: VersionRef, refusal: Refusal) -> Problem:
    """Return the refusal of a version that is not in the catalogue. Only operators see addresses of servers."""
    try:
        found = await _found(request, ref)
    except BackendUnavailable:  # the refusal is true without its reason
        found = None
    return refusal() if found is None else refusal(_told(ref, found, with_servers="admin" in request.account.scopes))


async def _found(request: Request, ref: VersionRef) -> Awaited | None:
    """Return what the version's director waits for, if the caller may know.

    Nothing says yet whether a model without a record is private, so only its owner and operators may. The first site
    that has a record of the model decides, as it does who may see the model.
    """
    account, name = request.account, ref.model
    if name is None:
        return None
    may_know = name.partition("/")[0] == account.name or "admin" in account.scopes
    model = None
    for services in (request.services, *(site.services for site in others(request) if site.is_up)):
        if model is None and (model := await services.catalog.model(name)) is not None:
            may_know = model.may_be_seen_by(account)
        awaited = await services.catalog.awaited(name) if may_know else None
        if awaited is not None and ref.version in (None, awaited.version):
            return awaited
    return None


def _told(ref: VersionRef, awaited: Awaited, *, with_servers: bool) -> str:
    subject = (
        f"No version of {ref.model} is ready" if ref.version is None else f"{ref.model}:{ref.version} is not ready"
    )
    servers = " and ".join(awaited.servers) if with_servers else ""
    why = f": {shown(awaited.why, MAX_WHY)}" if awaited.why else ""
    return f"{subject}: a director has waited for {servers or 'its model server'} for {awaited.waited_s:.0f} s{why}"
