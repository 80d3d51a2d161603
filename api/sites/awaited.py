"""Tell a caller that a version is missing because its first server is not ready yet, if the caller may know that."""

from typing import Final

from api.errors import Problem, Refusal, shown
from api.http import Request
from api.lookups import VersionRef
from api.sites.sites import others
from director.core.errors import BackendUnavailable
from director.store.accounts import Account
from director.store.catalog import Awaited, Catalog

MAX_WHY: Final = 200


async def no_version(request: Request, ref: VersionRef, refusal: Refusal) -> Problem:
    """Return the refusal of a version that is not in the catalogue.

    Nothing says yet whether a model without a record is private. So only its owner and operators learn that it is
    awaited. Only operators see addresses of servers.
    """
    if ref.model is not None:
        for services in (request.services, *(site.services for site in others(request) if site.is_up)):
            try:
                found = await _found(services.catalog, ref, request.account)
            except BackendUnavailable:  # the refusal is true without its reason
                continue
            if found is not None:
                return refusal(_told(ref, found, with_servers="admin" in request.account.scopes))
    return refusal()


async def _found(catalog: Catalog, ref: VersionRef, account: Account) -> Awaited | None:
    name = ref.model or ""
    awaited = await catalog.awaited(name)
    if awaited is None or (ref.version is not None and ref.version != awaited.version):
        return None
    model = await catalog.model(name)
    is_its_own = name.partition("/")[0] == account.name or "admin" in account.scopes
    may_know = is_its_own if model is None else model.may_be_seen_by(account)
    return awaited if may_know else None


def _told(ref: VersionRef, awaited: Awaited, *, with_servers: bool) -> str:
    subject = (
        f"No version of {ref.model} is ready" if ref.version is None else f"{ref.model}:{ref.version} is not ready"
    )
    servers = " and ".join(awaited.servers) if with_servers else ""
    why = f": {shown(awaited.why, MAX_WHY)}" if awaited.why else ""
    return f"{subject}: a director has waited for {servers or 'its model server'} for {awaited.waited_s:.0f} s{why}"
