"""Serve deployments, an account's own names for versions, and create predictions by them. Another account's answers
404. A release applies to later predictions; earlier ones keep their version.
"""

import asyncio
import contextlib
import re
import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict, replace
from starlette.responses import Response

from api.accounts.account import AccountView
from api.accounts.limits import retain, uncount
from api.models.models import SKU, Hardware, Name
from api.predictions.bodies import HOW, MODEL, VERSION, WAIT, PredictionRequest, creates, read_create
from api.predictions.intake import Called, Filed, read_here, submit
from api.services.lookups import VersionRef
from api.services.services import Services
from api.sites.sites import may_try, others, where_it_is
from api.web.errors import InvalidField, deployment_disabled, invalid_input, invalid_version, not_found, unavailable
from api.web.http import Members, Request, cursor_of, json_response, page_response, read_body, slice_of
from api.web.route import CURSOR, Answer, Body, deletes, reads, stores
from director.core.data_bytes import ENTRY_BYTES
from director.core.errors import BackendUnavailable
from director.core.ids import MODEL_NAME, VERSION_ID, model_and_kind
from director.core.schema import Page, Stored
from director.core.split import Split, choose, write_mark
from director.core.view import iso
from director.store.accounts import AccountType
from director.store.catalog import Version
from director.store.deployments import MOST, Deployment, Release

T = TypeVar("T")
PATH: Final = "/deployments"
NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
MOST_MIN: Final = 5
MOST_MAX: Final = 20
TRIES: Final = 5
RETRY_AFTER_S: Final = 1
TAKEN: Final = InvalidField("unique", "name", "A deployment of this name already exists")
TOO_MANY: Final = InvalidField("array_max_items", "", f"An account has at most {MOST:,} deployments")
FEWER_THAN_LEAST: Final = InvalidField("number_gte", "max_instances", "Must be greater than or equal to min_instances")
# Bodies are read member by member into the next two types, whose bounds are for the OpenAPI document.
MinInstances = Annotated[int, Meta(ge=0, le=MOST_MIN)]
MaxInstances = Annotated[int, Meta(ge=0, le=MOST_MAX)]
VersionId = Annotated[str, Meta(pattern=VERSION_ID)]


class DeploymentChange(Struct, kw_only=True, forbid_unknown_fields=True):
    """A new release, if it changes anything."""

    version: VersionId | None = None
    hardware: Hardware | None = None
    min_instances: MinInstances | None = None
    max_instances: MaxInstances | None = None


class NewDeployment(Struct, kw_only=True, forbid_unknown_fields=True):
    """A name for a version, and what it runs on."""

    name: Name
    model: Annotated[str, Meta(pattern=MODEL_NAME)]
    version: VersionId
    hardware: Hardware
    min_instances: MinInstances
    max_instances: MaxInstances


class ConfigurationView(Struct, frozen=True):
    """The hardware of a release, as its account asked."""

    hardware: str
    min_instances: int
    max_instances: int


class ReleaseView(Struct, frozen=True, kw_only=True):
    """A release on the wire."""

    number: int
    model: str
    version: str
    created_at: str
    created_by: AccountView
    configuration: ConfigurationView


class SplitView(Struct, frozen=True, kw_only=True):
    """How the calls of a deployment are split: `share` percent of them run `version`, and 0 once it was stopped."""

    version: str
    share: int
    since: str
    margin: int
    least: int
    by: str
    stopped_why: str | UnsetType = UNSET


class DeploymentView(Struct, frozen=True):
    """A deployment on the wire. `split`: only while another version is tried."""

    owner: str
    name: str
    current_release: ReleaseView
    split: SplitView | UnsetType = UNSET


@reads(
    "/deployments",
    name="deployments.list",
    summary="List the deployments of the account",
    about="A deployment is a name of your account for one version. Only the account itself sees its deployments.",
    parameters=(CURSOR,),
    answers={200: Answer("A page, newest first.", Page[DeploymentView])},
)
async def list_deployments(request: Request) -> Response:
    account, cursor, deployments = request.account, cursor_of(request), request.services.deployments
    marks = {f"{created:014}-{name}": name for created, name in await deployments.names(account.name)}
    page, older, newer = slice_of(sorted(marks, reverse=True), cursor)
    found = await deployments.with_splits(await deployments.many(account.name, [marks[mark] for mark in page]))
    return page_response(request, PATH, await _show_deployments(request, found), older=older, newer=newer)


@stores(
    "POST",
    "/deployments",
    name="deployments.create",
    summary="Create a deployment",
    about=(
        "The deployment's predictions run the given version and share that version's queue. Hardware and instances "
        "are stored and shown; no servers are started. The answer is 200, as Replicate's is."
    ),
    body=Body(NewDeployment),
    answers={200: Answer("The deployment, with its first release.", DeploymentView)},
)
async def create_deployment(request: Request) -> Response:
    services = request.services
    new = _parse(await read_body(request, max_bytes=services.settings.max_body_bytes), NewDeployment)
    await refuse_missing(request, new.model, new.version)
    owner = request.account.name
    await retain(request, owner, ENTRY_BYTES)
    written, made = await services.deployments.create(owner, **asdict(new))
    if written != "written":
        await uncount(request, owner, ENTRY_BYTES)
        raise invalid_input([TAKEN if written == "changed" else TOO_MANY])
    return await answer(request, made)


@reads(
    "/deployments/{owner}/{name}",
    name="deployments.get",
    summary="Get a deployment",
    about="The answer has the current release: its number, version and configuration.",
    answers={200: Answer("The deployment.", DeploymentView)},
)
async def get_deployment(request: Request) -> Response:
    return await answer(request, await find_deployment(request))


@stores(
    "PATCH",
    "/deployments/{owner}/{name}",
    name="deployments.update",
    summary="Release another version of a deployment",
    about=(
        "Each change makes a new release. It applies to later predictions, and earlier ones keep their version. A "
        "given `version` gets all calls: the trial of another one ends. "
        "With `max_instances` 0 the deployment is disabled: predictions under way are canceled, and new ones are "
        "422 `deployment_disabled`."
    ),
    body=Body(DeploymentChange),
    answers={200: Answer("The deployment as it is then.", DeploymentView)},
)
async def update_deployment(request: Request) -> Response:
    """Release what the body changes. Where canceling the predictions fails half way, the same request continues."""
    services = request.services
    asked = _parse(await read_body(request, max_bytes=services.settings.max_body_bytes), DeploymentChange)
    for _ in range(TRIES):
        deployment = await find_deployment(request)
        if asked.version:
            await refuse_missing(request, deployment.release.model, asked.version)
        given = {name: value for name, value in asdict(asked).items() if value is not None}
        wanted = replace(deployment.release, **given)
        if wanted.max_instances < wanted.min_instances:
            raise invalid_input([FEWER_THAN_LEAST])
        if asked.version == deployment.release.version:  # the caller wants all calls to run it: end the trial
            ended, deployment = await services.deployments.end_trial(deployment, by=request.account.name)
            if ended != "written":
                continue
        written, became = await services.deployments.release(deployment, wanted, by=request.account.name)
        if written == "written":
            if became.is_disabled:
                await _cancel_all(request, became)
            return await answer(request, became)
    raise unavailable(retry_after=RETRY_AFTER_S)


@deletes(
    "/deployments/{owner}/{name}",
    name="deployments.delete",
    summary="Delete a deployment",
    about="Predictions that were created by it go on.",
)
async def delete_deployment(request: Request) -> Response:
    deployment = await find_deployment(request)
    for _ in range(TRIES):
        if await request.services.deployments.delete(deployment) == "written":
            await uncount(request, deployment.owner, ENTRY_BYTES)
            return Response(status_code=204)
        deployment = await find_deployment(request)
    raise unavailable(retry_after=RETRY_AFTER_S)


@creates(
    "/deployments/{owner}/{name}/predictions",
    name="deployments.predictions.create",
    summary="Create a prediction of a deployment",
    about=(
        "The version of the current release runs it, or the version that is tried beside it. The answer is the same as "
        "for `POST /predictions`."
    ),
    parameters=(WAIT, *HOW),
    body=Body(PredictionRequest),
)
async def create_of_deployment(request: Request) -> Response:
    deployment = refuse_disabled(await find_deployment(request))
    asked = await read_create(request)
    called = await choose_version(request, deployment)
    if called is None:
        raise invalid_version()
    return await submit(request, called, asked, review=cancel_if_disabled)


async def choose_version(request: Request, deployment: Deployment, item: str = "") -> Called | None:
    """Return the version that a call of a deployment runs. None without the version.

    A repeat with the same Idempotency-Key gets the same one. `item` distinguishes the calls of a batch, which share it.
    A version that is tried gets no calls if it is gone, nor calls for another site than the home. A call that it cannot
    take runs the released version.
    """
    release, split, mark = deployment.release, deployment.split, ""
    if split is not None and split.share and may_try(request, split.model):
        key = request.headers.get("idempotency-key")
        side = choose(split, secrets.token_hex(8) if key is None else key + item)
        mark = write_mark(split, side)
        if side == "new":
            ref = VersionRef(model=split.model, version=split.version)
            if tried := await request.services.lookups.find_named(ref, request.account):  # at the home, which runs it
                return Called(tried, deployment.full_name, mark, released=release.version)
            mark = ""
    version = await _version(request, release.model, release.version)
    return None if version is None else Called(version, deployment.full_name, mark)


async def find_usable(request: Request, owner: str, name: str) -> Deployment | None:
    """Return a deployment by which the caller may create. Raises a 422 if it is disabled."""
    if not _is_open(request, owner) or not NAME.fullmatch(owner) or not NAME.fullmatch(name):
        return None
    found = await request.services.deployments.get(owner, name)
    return None if found is None else refuse_disabled(found)


def _is_open(request: Request, owner: str) -> bool:
    """Whether the caller may read the deployments of this owner, or with another method use and change them."""
    account = request.account
    if request.method == "GET":
        return account.may_look_into(owner)
    return owner == account.name or "admin" in account.scopes


def refuse_disabled(deployment: Deployment) -> Deployment:
    if deployment.is_disabled:
        raise deployment_disabled(name=deployment.full_name)
    return deployment


async def cancel_if_disabled(request: Request, filed: Filed) -> Filed:
    """Cancel what was filed while an update disabled its deployment, since the update may not have seen it. The
    prediction is accepted by now, so an outage here must not refuse it.
    """
    record = filed.stored.record

    async def cancel(services: Services) -> Stored | None:
        await services.scripts.cancel(record.id, account=record.account, kind=record.kind)
        return await read_here(services, record.id)

    with contextlib.suppress(BackendUnavailable):
        known = await request.services.deployments.get(*record.deployment.split("/"))
        if known is not None and known.is_disabled:
            canceled = await where_it_is(request, record.id, cancel)
            return filed if canceled is None else filed._replace(stored=canceled)
    return filed


async def _cancel_all(request: Request, deployment: Deployment) -> None:
    """Cancel the live predictions of a deployment at every site, as long as this is its release. Earlier releases may
    have some in other queues.
    """
    deployments = request.services.deployments
    for services in (request.services, *(site.services for site in others(request))):
        for queue in await services.catalog.queues():
            if model_and_kind(queue)[0] != deployment.release.model:
                continue
            async for found in services.predictions.live_of(queue, deployment.full_name):
                # A deployment that was enabled meanwhile may have new predictions, at the end of its queues.
                now = await deployments.get(deployment.owner, deployment.name) if found else deployment
                if now is None or now.release != deployment.release:
                    return
                cancels = (services.scripts.cancel(each, account=account) for each, account in found)
                await asyncio.gather(*cancels)


async def _version(request: Request, model: str, version: str) -> Version | None:
    return await request.versions.find_named(VersionRef(model=model, version=version), request.account)


async def refuse_missing(request: Request, model: str, version: str) -> None:
    """Raise a 422 unless a site has the version. Asks past the cache, which knows a deleted one for seconds more."""
    if await _version(request, model, version) is not None:
        for services in (request.services, *(site.services for site in others(request))):
            if await services.catalog.version(model, version) is not None:
                return
    raise invalid_version()


async def find_deployment(request: Request) -> Deployment:
    """Return the deployment of the path. Raises a 404."""
    owner, name = request.path_params["owner"], request.path_params["name"]
    if not _is_open(request, owner) or not NAME.fullmatch(owner) or not NAME.fullmatch(name):
        raise not_found()
    deployment = await request.services.deployments.get(owner, name)
    if deployment is None:
        raise not_found()
    return deployment


def _parse(body: bytes, kind: type[T]) -> T:
    members, is_new = Members(body), kind is NewDeployment
    given: dict[str, Any] = {}
    patterns = ({"name": NAME, "model": MODEL} if is_new else {}) | {"version": VERSION, "hardware": SKU}
    for name, pattern in patterns.items():
        given[name] = members.matching(name, pattern, required=is_new)
    for name, most in (("min_instances", MOST_MIN), ("max_instances", MOST_MAX)):
        given[name] = members.integer(name, most=most, required=is_new)
    members.refuse_unknown(frozenset(given))
    low, high = given["min_instances"], given["max_instances"]
    if is_new and low is not None and high is not None and high < low:
        members.faults.append(FEWER_THAN_LEAST)
    if members.faults:
        raise invalid_input(members.faults)
    return kind(**given)


async def answer(request: Request, deployment: Deployment) -> Response:
    return json_response((await _show_deployments(request, [deployment]))[0])


async def _show_deployments(request: Request, deployments: Sequence[Deployment]) -> list[DeploymentView]:
    types = {request.account.name: request.account.type}
    for name in sorted({deployment.release.by for deployment in deployments} - types.keys()):
        types[name] = (await request.services.accounts.read_written(name)).type
    return [
        DeploymentView(each.owner, each.name, _release(each.release, types[each.release.by]), show_split(each.trial))
        for each in deployments
    ]


def show_split(split: Split | None) -> SplitView | UnsetType:
    if split is None:
        return UNSET
    return SplitView(
        version=split.version,
        share=split.share,
        since=iso(split.since_ms),
        margin=split.margin,
        least=split.least,
        by=split.by,
        stopped_why=split.stopped_why or UNSET,
    )


def _release(release: Release, by_type: AccountType) -> ReleaseView:
    return ReleaseView(
        number=release.number,
        model=release.model,
        version=release.version,
        created_at=iso(release.created_ms),
        created_by=AccountView(username=release.by, name=release.by, type=by_type),
        configuration=ConfigurationView(release.hardware, release.min_instances, release.max_instances),
    )
