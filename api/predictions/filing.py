"""File a checked prediction into a queue: of the one server, or of one of several sites.

If nothing was filed, what the limits had counted is given back. If that is unknown, it stays counted.
"""

import asyncio
import logging
import math
from functools import lru_cache

from msgspec import Raw, Struct
from msgspec.structs import replace

from api.errors import Moved, Problem, not_found
from api.limits import Taken, give_back, refuse_full, reserve_compute, return_compute
from api.predictions.waiters import Wait
from api.request import Request
from api.services import Services
from api.sites.placing import Wanted, names_a_file, place
from api.sites.sites import sites_of, where_it_is
from director.broker.replies import Accepted
from director.core.errors import BackendUnavailable, QueueError
from director.core.ids import Kind, PredictionId, lowest_id_at, new_prediction_id
from director.core.policy import shard
from director.core.schema import Record, Stored
from director.core.states import Status
from director.core.trace_context import TraceHeaders
from director.runtime import crash
from director.store.accounts import Account
from director.store.catalog import Version

log = logging.getLogger(__name__)


class Submission(Struct, frozen=True, kw_only=True):
    """A checked request for one prediction. `wait`: the caller's wait, if it waits for the end."""

    account: Account
    version: Version
    deployment: str
    destination: str
    input: bytes
    lane: str
    cost: float
    affinity: str
    url: str
    ticket: str
    webhook: str
    events: str
    lifetime_ms: int | None
    late: str
    start_by_ms: int | None
    idempotency: tuple[str, str] | None
    site: str | None
    taken: Taken | None
    trace: TraceHeaders
    wait: Wait | None


async def file(request: Request, submission: Submission) -> tuple[Accepted, Stored]:
    """File the prediction, in one write to the socket. Returns it as stored, without a read where possible."""
    services, account, version = request.services, submission.account, submission.version
    now_ms = services.clock.now_ms()
    prediction_id = new_prediction_id(model=version.model, now_ms=now_ms, site=services.site)
    try:
        await refuse_full(request, account)
        await reserve_compute(request, account, prediction_id, queue=version.queue, cost=submission.cost)
    except (Problem, QueueError):
        await give_back(request, account, prediction_id, submission.taken)
        if (stored := await _accepted_before(request, submission)) is not None:
            return Accepted(stored.record.id, replayed=True), stored
        raise
    try:
        accepted, services = await _placed(request, prediction_id, submission)
    except QueueError:
        await give_back(request, account, prediction_id, submission.taken)
        raise
    crash.at("after_enqueue")
    if not accepted.replayed:
        services.meters.accepted(version.kind, submission.lane)
        log.info("prediction accepted", extra={"prediction": accepted.id, "queue": version.queue})
        return accepted, _as_enqueued(submission, accepted)
    await return_compute(request, account, prediction_id)
    stored = await services.scripts.get(accepted.id)
    if stored is not None and stored.record.moved:
        stored = await _where_it_moved(request, accepted.id)
    if stored is None:  # its record had a shorter life than the idempotency key
        raise not_found()
    return accepted, stored


async def _placed(request: Request, prediction_id: PredictionId, submission: Submission) -> tuple[Accepted, Services]:
    """File into the queue of the one server, or of one of several sites. Returns the services of the chosen one too."""
    if (sites := sites_of(request)) is None:
        services = request.services
        return await _enter(services, prediction_id, submission), services
    wanted = Wanted(
        id=prediction_id,
        account=submission.account,
        version=submission.version,
        asked=submission.site,
        names_files=names_a_file(submission.input),
        idempotency=submission.idempotency,
    )

    async def enter(services: Services, version: Version, new: PredictionId) -> Accepted:
        return await _enter(services, new, replace(submission, version=version), is_bound=True)

    return await place(sites, wanted, enter)


async def _enter(
    services: Services, prediction_id: PredictionId, submission: Submission, *, is_bound: bool = False
) -> Accepted:
    """Add the prediction to its account's list and to its queue, in one write to the socket."""
    account, version = submission.account, submission.version
    listed_s = max(services.settings.listing_ttl_s, account.limits.data_ttl_s or 0)
    oldest = _lowest_id_at_s(services.clock.now_ms() // 1000 - math.ceil(listed_s))
    listing = services.scripts.enlist(
        prediction_id, account=account.name, oldest=oldest, kind=version.kind, input_bytes=len(submission.input)
    )
    try:
        accepted = await _enqueue(services, prediction_id, submission, is_bound=is_bound)
    except QueueError:
        await _take_off(services, listing, account.name, prediction_id, version.kind)
        raise
    if accepted.replayed:
        await _take_off(services, listing, account.name, prediction_id, version.kind)
    try:
        await listing
    except BackendUnavailable as exc:
        exc.is_untouched = False  # the list may lack it, but the queue has it
        raise
    return accepted


async def _take_off(
    services: Services, listing: "asyncio.Future[object]", account: str, prediction_id: PredictionId, kind: Kind
) -> None:
    """Remove the id from its account's list, because nothing new was filed under it."""
    await asyncio.gather(listing, return_exceptions=True)  # first, or the entry could be added after its removal
    await services.predictions.unlist(account, prediction_id, kind)


@lru_cache(maxsize=64)
def _lowest_id_at_s(seconds: int) -> PredictionId:
    """Return the lowest id of a whole second. Thousands of predictions share it, so it is cached."""
    return lowest_id_at(seconds * 1000)


async def _accepted_before(request: Request, submission: Submission) -> Stored | None:
    """Return the prediction that the same request made earlier. A replay uses nothing, so no limit applies to it."""
    if submission.idempotency is None:
        return None
    digest, fingerprint = submission.idempotency
    model, account = submission.version.model, submission.account
    known = await request.services.predictions.stands_for(
        account.name, model=model, digest=digest, fingerprint=fingerprint
    )
    return None if known is None else await _where_it_moved(request, known)


async def _where_it_moved(request: Request, prediction_id: PredictionId) -> Stored | None:
    """Read the prediction as GET does, also at another of our sites. Raises Moved if it went to a server outside this
    API.
    """

    async def read(services: Services) -> Stored | None:
        stored = await services.scripts.get(prediction_id)
        if stored is not None and stored.record.moved:
            raise Moved(stored.record.moved)
        return stored

    return await where_it_is(request, prediction_id, read)


async def _enqueue(
    services: Services, prediction_id: PredictionId, submission: Submission, *, is_bound: bool
) -> Accepted:
    version, account, wait = submission.version, submission.account, submission.wait
    return await services.scripts.enqueue(
        prediction_id,
        queue=version.queue,
        account=account.name,
        model=version.model,
        version=version.id,
        kind=version.kind,
        deployment=submission.deployment,
        destination=submission.destination,
        shard=shard(account.name, streams=version.streams, size=version.size),
        input=submission.input,
        lane=submission.lane,
        cost=submission.cost,
        affinity=submission.affinity,
        weight=account.limits.weight,
        most_queued=account.limits.max_queued,
        most_running=account.limits.max_running,
        limits_rev=account.limits_rev,
        metered=account.limits.meters_compute,
        data_ttl_s=account.limits.data_ttl_s,
        url=submission.url,
        ticket=submission.ticket,
        webhook=submission.webhook,
        events=submission.events,
        lifetime_ms=submission.lifetime_ms,
        late=submission.late,
        start_by_ms=submission.start_by_ms,
        idempotency=submission.idempotency,
        is_bound=is_bound,
        trace=submission.trace,
        waiter="" if wait is None else services.waiters.expect(prediction_id, wait),
    )


def _as_enqueued(submission: Submission, accepted: Accepted) -> Stored:
    version, lifetime_ms = submission.version, submission.lifetime_ms
    asked_ms = None if lifetime_ms is None else accepted.created_ms + lifetime_ms
    record = Record(
        id=accepted.id,
        account=submission.account.name,
        model=version.model,
        version=version.id,
        queue=version.queue,
        kind=version.kind,
        deployment=submission.deployment,
        destination=submission.destination,
        lane=submission.lane,
        status=Status.STARTING,
        created=accepted.created_ms,
        deadline=accepted.deadline_ms or asked_ms,
        late=submission.late,
        url=submission.url,
        ticket=submission.ticket,
        webhook=submission.webhook,
        events=submission.events,
    )
    return Stored(record=record, input=Raw(submission.input), outlook=accepted.outlook)
