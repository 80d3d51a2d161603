"""Serve the verbs of a release: try a version with a share of a deployment's calls, promote it, or take it back.
Another account's deployments answer 404.
"""

from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace
from starlette.responses import Response

from api.models.deployments import (
    RETRY_AFTER_S,
    TRIES,
    DeploymentView,
    SplitView,
    VersionId,
    answer,
    find_deployment,
    refuse_disabled,
    refuse_missing,
    show_split,
)
from api.predictions.bodies import VERSION
from api.predictions.validation import InputSchema
from api.services.lookups import VersionRef
from api.sites.sites import Sites
from api.web.errors import InvalidField, invalid_input, unavailable
from api.web.http import Members, Request, json_response, read_body
from api.web.route import Answer, Body, reads, stores
from director.core.ids import queue_name
from director.core.split import LEAST_SHARE, MOST_RUNS, MOST_SHARE, Runs
from director.store.catalog import has_openai_api
from director.store.deployments import Deployment
from director.store.splits import MOST, Counts

MOST_MARGIN: Final = 100
NOT_TRIED: Final = InvalidField("invalid", "", "No version is tried here: give one with a share of the calls first")
NO_WAY_BACK: Final = InvalidField(
    "invalid", "", "Nothing is tried here and no version before this one is known: release the version that you want"
)
ELSEWHERE: Final = InvalidField(
    "invalid",
    "version",
    "Of several sites the home runs what is tried, and it does not have this version: start it there",
)
SAME: Final = InvalidField("invalid", "version", "This is the version of the deployment already")
NOT_READY: Final = InvalidField(
    "invalid", "version", "No server of this version is ready, so its calls would wait. Start one, or set force"
)
NOT_AT_HOME: Final = InvalidField(
    "invalid",
    "version",
    "Of several sites the home runs what is tried, and it takes no new runs of this model: see the file of sites",
)
CHANGED: Final = InvalidField(
    "invalid",
    "",
    "The trial was changed meanwhile, maybe by a keeper: look at it, and promote again if you still want to",
)
TOO_MANY: Final = InvalidField("array_max_items", "", f"An account tries versions with at most {MOST} deployments")


class NewSplit(Struct, kw_only=True, forbid_unknown_fields=True):
    """A version that gets `share` percent of the calls. It is stopped once at least `least` of its runs have ended and
    its failure rate is above the other one's by more than `margin` percentage points.
    """

    version: VersionId
    share: Annotated[int, Meta(ge=LEAST_SHARE, le=MOST_SHARE)]
    margin: Annotated[int, Meta(ge=0, le=MOST_MARGIN)] | None = None
    least: Annotated[int, Meta(ge=1, le=MOST_RUNS)] | None = None
    force: bool | None = None


class SideView(Struct, frozen=True, kw_only=True):
    """One version, and how runs of it ended since the split began. Without runs `failure_rate` and `p50_s` are null."""

    version: str
    share: int
    succeeded: int
    failed: int
    failure_rate: float | None
    p50_s: float | None


class RolloutView(Struct, frozen=True, kw_only=True):
    """A deployment with both of its versions. `tried` and `split` are missing while there is only one. `former`: the
    version that a rollback brings back, if nothing is tried.
    """

    deployment: str
    model: str
    current: SideView
    tried: SideView | UnsetType = UNSET
    split: SplitView | UnsetType = UNSET
    former: str | UnsetType = UNSET


@reads(
    "/deployments/{owner}/{name}/split",
    name="deployments.split.get",
    summary="Show how the calls of a deployment are split",
    about=(
        "The answer has the runs of both versions that this deployment started and that ended since the split began. A "
        "canceled run does not count, nor one that was never started in its time. One that ran out of time has failed. "
        "A keeper counts every 2 seconds, at the home site, from the log of steps: after an outage of keepers runs may "
        "be missing."
    ),
    answers={200: Answer("The versions, with their figures.", RolloutView)},
)
async def get_split(request: Request) -> Response:
    return json_response(await _show(request, await find_deployment(request)))


@stores(
    "POST",
    "/deployments/{owner}/{name}/split",
    name="deployments.split.set",
    summary="Try another version with a share of the calls",
    about=(
        "Later predictions of the deployment run the version in `share` of 100 cases. The same `Idempotency-Key` "
        "gets the same version while the share stays or grows. A version without a ready server is refused, as is one "
        "that would refuse inputs or APIs which the other one takes, unless `force` is set. A keeper stops the version "
        "when it fails more than the other one. Another share of the same version goes on with its figures, and is "
        "judged by its own."
    ),
    body=Body(NewSplit),
    answers={200: Answer("The versions, with their figures.", RolloutView)},
)
async def set_split(request: Request) -> Response:
    asked = _parse(await read_body(request, max_bytes=request.services.settings.max_body_bytes))
    for _ in range(TRIES):
        deployment = refuse_disabled(await find_deployment(request))
        await _refuse_unfit(request, deployment, asked)
        written, wanted = await request.services.deployments.share(
            deployment,
            by=request.account.name,
            version=asked.version,
            share=asked.share,
            margin=asked.margin,
            least=asked.least,
        )
        if written == "full":
            raise invalid_input([TOO_MANY])
        deployment = refuse_disabled(await find_deployment(request))
        if written == "written" and deployment.kept == wanted.kept and deployment.trial is not None:
            return json_response(await _show(request, deployment))  # else another release came first
    raise unavailable(retry_after=RETRY_AFTER_S)


@stores(
    "POST",
    "/deployments/{owner}/{name}/promote",
    name="deployments.promote",
    summary="Give all calls to the version that is tried",
    about=(
        "That makes a new release. Earlier predictions keep their version. A rollback brings the version before back."
    ),
    answers={200: Answer("The deployment as it is then.", DeploymentView)},
    refusals={422},
)
async def promote(request: Request) -> Response:
    first: tuple[str, str] | None = None
    for _ in range(TRIES):
        deployment = await find_deployment(request)
        split, release = deployment.split, deployment.release
        if split is None:
            raise invalid_input([NOT_TRIED])
        if split.is_promoted and release.version == split.version:  # by an earlier call whose answer was lost
            return await answer(request, deployment)
        # the caller asked for the trial that was there first, unless the promotion itself changed it
        first = first or (split.version, split.stopped_why)
        if not split.is_promoted and first != (split.version, split.stopped_why):
            raise invalid_input([CHANGED])
        await refuse_missing(request, split.model, split.version)
        wanted = replace(release, version=split.version)
        written, became = await request.services.deployments.release(deployment, wanted, by=request.account.name)
        if written == "written":
            return await answer(request, became)
    raise unavailable(retry_after=RETRY_AFTER_S)


@stores(
    "POST",
    "/deployments/{owner}/{name}/rollback",
    name="deployments.rollback",
    summary="Take the version that is tried, or the last one, back",
    about=(
        "While a version is tried, the version of the release gets all calls again. After a promotion, or another "
        "change of version, the version before it is released. What waits already keeps its version."
    ),
    answers={200: Answer("The deployment as it is then.", DeploymentView)},
    refusals={422},
)
async def rollback(request: Request) -> Response:
    for _ in range(TRIES):
        deployment = await find_deployment(request)
        split = deployment.split
        if split is None:
            raise invalid_input([NO_WAY_BACK])
        if split.is_promoted:
            await refuse_missing(request, split.model, split.former)
        if (await request.services.deployments.rollback(deployment, by=request.account.name))[0] == "written":
            return await answer(request, await find_deployment(request))
    raise unavailable(retry_after=RETRY_AFTER_S)


async def _refuse_unfit(request: Request, deployment: Deployment, asked: NewSplit) -> None:
    """Raise a 422 for a version that is missing or released already. Unless forced, also for one without a server, or
    one that would refuse calls which the other version takes: no run of them would fail, so no keeper would stop it.
    """
    release = deployment.release
    if release.version == asked.version:
        raise invalid_input([SAME])
    sites: Sites | None = request.sites
    if sites is not None and not sites.may_run_at_home(release.model):
        raise invalid_input([NOT_AT_HOME])
    if await request.services.catalog.version(release.model, asked.version) is None:
        await refuse_missing(request, release.model, asked.version)
        raise invalid_input([ELSEWHERE])
    if asked.force:
        return
    if not await _is_ready(request, release.model, asked.version):
        raise invalid_input([NOT_READY])
    refs = (VersionRef(model=release.model, version=version) for version in (release.version, asked.version))
    former, new = [await request.versions.find_named(ref, request.account) for ref in refs]
    if former is None or new is None:
        return
    why = InputSchema.of(new).find_refusal(InputSchema.of(former))
    if not why and has_openai_api(former.server) and not has_openai_api(new.server):
        why = "it has no API of OpenAI"
    if why:
        said = f"It would refuse calls that the current version takes: {why}. Set force to try it anyway"
        raise invalid_input([InvalidField("invalid", "version", said)])


async def _is_ready(request: Request, model: str, version: str) -> bool:
    """Return whether a server of the version is ready at the home, which runs what is tried."""
    return any(stats.slots for _, stats in await request.services.queues.stats_of([queue_name(model, version)]))


async def _show(request: Request, deployment: Deployment) -> RolloutView:
    release, split = deployment.release, deployment.split
    if split is None or split.is_promoted:
        return RolloutView(
            deployment=deployment.full_name,
            model=release.model,
            current=_side(release.version, 100, Runs()),
            former=UNSET if split is None or split.former == release.version else split.former,
        )
    counts = await request.services.deployments.splits.read_counts([deployment.full_name])
    runs = (counts.get(deployment.full_name) or Counts.of({})).figures.all
    return RolloutView(
        deployment=deployment.full_name,
        model=release.model,
        current=_side(release.version, 100 - split.share, runs["old"]),
        tried=_side(split.version, split.share, runs["new"]),
        split=show_split(split),
    )


def _side(version: str, share: int, runs: Runs) -> SideView:
    return SideView(
        version=version,
        share=share,
        succeeded=runs.succeeded,
        failed=runs.failed,
        failure_rate=runs.failure_rate if runs.ended else None,
        p50_s=runs.p50_s,
    )


def _parse(body: bytes) -> NewSplit:
    members = Members(body)
    version = members.matching("version", VERSION, required=True)
    share = members.integer("share", least=LEAST_SHARE, most=MOST_SHARE, required=True)
    margin, least = members.integer("margin", most=MOST_MARGIN), members.integer("least", least=1, most=MOST_RUNS)
    force = members.boolean("force")
    members.refuse_unknown(frozenset(NewSplit.__struct_fields__))
    if members.faults or version is None or share is None:
        raise invalid_input(members.faults)
    return NewSplit(version=version, share=share, margin=margin, least=least, force=force)
