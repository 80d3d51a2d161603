"""Accept a prediction: check the request, file the prediction, and answer when the caller wants the answer. Every
refusal comes before anything is filed. The 201 or 202 is sent only after Redis has the prediction.
"""

import asyncio
import contextlib
import hashlib
import logging
import math
from collections.abc import Awaitable, Mapping
from functools import lru_cache, partial
from typing import Final, Self

import anyio
from msgspec import Raw
from msgspec.structs import replace
from starlette.responses import Response

from api.accounts.limits import DataLimit, give_back, refuse_full, reserve_compute
from api.predictions import bodies
from api.predictions.secrets import Secrets
from api.predictions.shown import shown_to
from api.predictions.streams import new_ticket
from api.predictions.validation import InputSchema
from api.services.services import Services
from api.services.waiters import Wait
from api.sites.placing import FILE, Submission, place
from api.sites.sites import services_at, sites_of, where_it_is
from api.web import errors
from api.web.errors import Moved, Problem
from api.web.http import Request, base_url, json_response, watching
from director.broker.replies import Accepted
from director.core.account_limits import Bucket
from director.core.data_bytes import ENTRY_BYTES, Counted, at_creation, lasting
from director.core.errors import BackendFull, BackendUnavailable, DataRefused, DirectorError, QueueError
from director.core.ids import LANES, PredictionId, lowest_id_at, new_prediction_id
from director.core.policy import shard
from director.core.schema import NewPrediction, Outlook, Stored, TraceHeaders
from director.core.states import Status, WebhookEvent
from director.core.usage import expected_tokens
from director.core.view import address, redact, view
from director.runtime import crash
from director.runtime.tracing import Facts, Span, trace_headers
from director.store.accounts import Account
from director.store.catalog import Version
from director.store.predictions import Ending

log = logging.getLogger(__name__)
UNEXPECTED: Final = "internal"
LONGEST_KEY: Final = 255
OUTLOOK_S: Final = 0.2  # the official Python client gives up half a second after the time that it asked for
EVERY_EVENT: Final = tuple(WebhookEvent)
# Requests that differ in these headers are different requests. The second group enters the fingerprint by name and only
# where it is sent, so that fingerprints of requests without these newer headers stay as they were.
OF_THE_REQUEST: Final = ("cancel-after", "x-priority", "x-start-by")
OF_THE_REQUEST_TOO: Final = ("x-cost", "x-affinity-key")


async def submit(
    request: Request, version: Version, asked: bodies.CreatePrediction, *, deployment: str = ""
) -> Response:
    """Accept a run of this version. `deployment`: owner/name of the deployment that was called."""
    services = request.services
    asked_at = services.clock.monotonic()
    if sites_of(request) is None:
        services.gate.pass_through()
    prefer = bodies.preference(request.headers.getlist("prefer"))
    wait = None if prefer is None else Wait()
    try:
        accepted, stored = await accept(
            request, version, asked, deployment=deployment, rate_token=request.rate_token, wait=wait
        )
        if deployment:
            stored = await _canceled_if_disabled(request, stored)
        headers = {"Location": address(stored.record)}
        if accepted.replayed:
            headers["Idempotency-Replayed"] = "true"
        if prefer is None or wait is None:
            return json_response(shown_to(request, stored), 201, headers)
        seconds, applied = prefer
        return await _answer(request, stored, headers, applied, until=asked_at + seconds, wait=wait)
    finally:
        if wait is not None:
            wait.leave()


async def _canceled_if_disabled(request: Request, stored: Stored) -> Stored:
    """Cancel what was filed while an update disabled its deployment, since the update may not have seen it. The
    prediction is accepted by now, so an outage here must not refuse it.
    """
    record = stored.record

    async def cancel(services: Services) -> Stored | None:
        await services.scripts.cancel(record.id, account=record.account, kind=record.kind)
        return await _read(services, record.id)

    with contextlib.suppress(BackendUnavailable):
        known = await request.services.deployments.get(*record.deployment.split("/"))
        if known is not None and known.is_disabled:
            return await where_it_is(request, record.id, cancel) or stored
    return stored


async def accept(
    request: Request,
    version: Version,
    asked: bodies.CreatePrediction,
    *,
    rate_token: tuple[Bucket, str] | None,
    deployment: str = "",
    place: str = "",
    wait: Wait | None = None,
) -> tuple[Accepted, Stored]:
    """Check and file one prediction. `place` distinguishes the predictions of a batch, which share a key."""
    with Step(request, version) as step:
        schema = InputSchema.of(version)
        if faults := schema.check(asked.input):
            raise errors.invalid_input(faults)
        ticket = new_ticket() if schema.can_stream else ""
        if schema.secrets is not None:
            asked = _marked(asked, schema.secrets)
        new = _new(request, version, asked, deployment=deployment, place=place, ticket=ticket, trace=step.headers)
        accepted, stored = await _file(request, version, new, rate_token=rate_token, wait=wait)
        record = stored.record
        step.facts = {"prediction": record.id, "lane": record.lane, "replayed": accepted.replayed}
        return accepted, stored


def _marked(asked: bodies.CreatePrediction, secrets: Secrets) -> bodies.CreatePrediction:
    """Return the request with the input as it is stored, and where its secret values lie.

    The values are taken out of the body, of which the fingerprint of an idempotency key is made. It lives for a day,
    also after the end, and a reader of Redis could try guesses of a short value against a digest of the whole body. So
    the same key with another secret value is the same request.
    """
    marked = secrets.mark(asked.input)
    body = asked.body.replace(bytes(asked.input), redact(marked.input, marked.secret))
    return replace(asked, input=Raw(marked.input), secret=marked.secret, body=body)


def _new(
    request: Request,
    version: Version,
    asked: bodies.CreatePrediction,
    *,
    deployment: str,
    place: str,
    ticket: str,
    trace: TraceHeaders,
) -> NewPrediction:
    services, account, headers = request.services, request.account, request.headers
    limits = account.limits
    lifetime, start_by = headers.get("cancel-after"), headers.get("x-start-by")
    cost, affinity = headers.get("x-cost"), headers.get("x-affinity-key")
    return NewPrediction(
        id=new_prediction_id(model=version.model, now_ms=services.clock.now_ms(), site=services.site),
        input=bytes(asked.input),
        account=account.name,
        model=version.model,
        version=version.id,
        queue=version.queue,
        kind=version.kind,
        api_token=account.token_id,
        tokens=expected_tokens(asked.input),
        deployment=deployment,
        destination=asked.destination or "",
        lane=_lane(headers, account),
        shard=_shard(account.name, version),
        cost=1 if cost is None else bodies.cost_units(cost),
        affinity="" if affinity is None else bodies.affinity_digest(affinity),
        weight=limits.weight,
        most_queued=limits.max_queued,
        most_running=limits.max_running,
        limits_rev=account.limits_rev,
        metered=limits.meters_compute,
        data_ttl_ms=None if limits.data_ttl_s is None else int(limits.data_ttl_s * 1000),
        url=base_url(request),
        ticket=ticket,
        webhook=asked.webhook or "",
        webhook_events=",".join(asked.webhook_events_filter or EVERY_EVENT) if asked.webhook else "",
        lifetime_ms=None if lifetime is None else bodies.cancel_after_seconds(lifetime) * 1000,
        # only a caller that sets a deadline gets the status aborted: older official clients fail on it
        deadline_status="" if lifetime is None else Status.ABORTED,
        start_by_ms=None if start_by is None else bodies.start_by_seconds(start_by) * 1000,
        idempotency=_idempotency(headers, asked.body, version=version, deployment=deployment, place=place),
        secret=asked.secret,
        traceparent=trace.get("traceparent", ""),
        tracestate=trace.get("tracestate", ""),
    )


def _shard(account: str, version: Version) -> str:
    return ",".join(map(str, shard(account, streams=version.streams, size=version.size)))


def _lane(headers: Mapping[str, str], account: Account) -> str:
    asked = headers.get("x-priority")
    if asked is None:
        return "normal" if "normal" in account.lanes else account.lanes[0]
    if asked not in LANES:
        raise errors.invalid_header("X-Priority", "high, normal or low")
    if asked not in account.lanes:
        raise errors.forbidden(f"This token may not use the lane '{asked}'.")
    return asked


def _idempotency(
    headers: Mapping[str, str], body: bytes, *, version: Version, deployment: str, place: str
) -> tuple[str, str] | None:
    """Return (digest of the key, fingerprint of the request), which reveal nothing of what was sent. The fingerprint
    has the model and not its version, so that a key holds across a deploy.
    """
    key = headers.get("idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= LONGEST_KEY:
        raise errors.invalid_header("Idempotency-Key", f"a text of 1 to {LONGEST_KEY} characters")
    asked = [version.model, *(headers.get(name, "") for name in OF_THE_REQUEST)]
    asked += [f"{name}: {headers[name]}" for name in OF_THE_REQUEST_TOO if name in headers]
    asked += [f"deployment: {deployment}"] if deployment else []
    asked += [f"kind: {version.kind}"] if version.kind else []
    # for a training the path names the version, and the body does not
    asked += [f"version: {version.id}"] if version.kind == "training" else []
    fingerprint = "\n".join([*asked, ""]).encode() + body
    return hashlib.sha256((key + place).encode()).hexdigest(), hashlib.sha256(fingerprint).hexdigest()


async def _file(
    request: Request, version: Version, new: NewPrediction, *, rate_token: tuple[Bucket, str] | None, wait: Wait | None
) -> tuple[Accepted, Stored]:
    """File the prediction, in one write to the socket. Returns it as stored, without a read where possible."""
    reserved = new.id
    try:
        await refuse_full(request, input_bytes=0 if _goes_to_files(request.services, new) else len(new.input))
        await reserve_compute(request, reserved, queue=new.queue, cost=new.cost)
    except (Problem, QueueError):
        await give_back(request, reserved, rate_token)
        if (stored := await _accepted_before(request, new)) is not None:
            return Accepted(stored.record.id, replayed=True), stored
        raise
    try:
        accepted, services = await _placed(request, version, new, wait)
    except QueueError as exc:
        await give_back(request, reserved, rate_token)
        if isinstance(exc, DataRefused) and (stored := await _accepted_before(request, new)) is not None:
            return Accepted(stored.record.id, replayed=True), stored
        raise
    except BackendFull as exc:
        if exc.is_untouched:
            await give_back(request, reserved)
        raise
    crash.at("after_enqueue")
    if not accepted.replayed:
        services.meters.accepted(new.kind, new.lane)
        log.info("prediction accepted", extra={"prediction": accepted.id, "queue": new.queue})
        record = new.record(accepted.id, created=accepted.created_ms, deadline=accepted.deadline_ms)
        return accepted, Stored(record=record, input=Raw(new.input), outlook=accepted.outlook)
    await give_back(request, reserved)  # its request still counts against the rate
    try:
        stored = await _known(services, accepted.id, new)
    except Moved:
        stored = await _where_it_moved(request, accepted.id, new)
    if stored is None:  # its record had a shorter life than the idempotency key
        raise errors.not_found()
    return accepted, stored


async def _placed(
    request: Request, version: Version, new: NewPrediction, wait: Wait | None
) -> tuple[Accepted, Services]:
    """File into the queue of the one server, or of one of several sites. Returns the services of the chosen one too."""
    most_data = request.account.limits.max_data_bytes
    if (sites := sites_of(request)) is None:
        services = request.services
        return await enter(services, version, new, most_data, wait), services
    run = Submission(
        id=new.id,
        account=request.account,
        version=version,
        asked=request.headers.get("x-site"),
        names_files=FILE.search(new.input) is not None,
        idempotency=new.idempotency,
    )

    async def enter_at(services: Services, version: Version, prediction_id: PredictionId) -> Accepted:
        there = replace(new, id=prediction_id, shard=_shard(new.account, version), bound=True)
        return await enter(services, version, there, most_data, wait)

    return await place(sites, run, enter_at)


def enter(
    services: Services, version: Version, new: NewPrediction, most_data: int | None, wait: Wait | None = None
) -> Awaitable[Accepted]:
    """File it in its queue, with a large input in the file store, and at most so many bytes of its account. Raises
    QueueError.
    """
    filed = _filed_by_reference if _goes_to_files(services, new) else _filed
    return filed(services, version, new, most_data, wait)


async def _filed_by_reference(
    services: Services, version: Version, new: NewPrediction, most_data: int | None, wait: Wait | None
) -> Accepted:
    """Put the input into the file store and file the prediction with a reference to it."""
    kept = await services.data_files.put(new.id, new.input)
    if kept is new.input:
        return await _filed(services, version, new, most_data, wait)
    crash.at("after_data_put")
    try:
        accepted = await _filed(services, version, replace(new, input=kept), most_data, wait)
    except (QueueError, BackendFull) as exc:
        if _is_refusal(exc):  # nothing was accepted; else it may be, and the file stays
            await services.data_files.drop(new.id)
        raise
    if accepted.replayed:  # another id was accepted: a repeat of this one is no replay
        await services.data_files.drop(new.id)
        return accepted
    until_ms = services.clock.now_ms() + int(services.settings.listing_ttl_s * 1000)  # or until its director counts it
    with contextlib.suppress(BackendUnavailable):  # it is accepted
        await services.scripts.stow(new.account, new.id, len(new.input), until_ms=until_ms)
    return accepted


def _goes_to_files(services: Services, new: NewPrediction) -> bool:
    """Return False for an input with secret values: it stays in Redis, where its end overwrites them."""
    return len(new.input) >= services.data_files.from_bytes and not new.secret


async def _filed(
    services: Services, version: Version, new: NewPrediction, most_data: int | None, wait: Wait | None
) -> Accepted:
    """Add the prediction to its account's list and to its queue, in one write to the socket. With a limit on the bytes
    of the account, or while memory is short, the queue waits until the list has answered.
    """
    counts = at_creation(new.id, len(new.input), new.data_ttl_ms or version.data_ttl_ms)
    stays = _lasting(services, version, new)
    limit = DataLimit.of(services, most_data, counts.bytes + stays.bytes)
    listing = services.scripts.enlist(
        new.id,
        account=new.account,
        oldest=_oldest_listed(services, new),
        kind=new.kind,
        input_bytes=len(new.input),
        counts=counts,
        lasting=stays,
        most=limit.most,
    )
    if limit.most is not None and isinstance(listed := await listing, list):
        services.memory.give_back(counts.bytes + stays.bytes)
        raise limit.refusal(listed)
    if wait is not None:
        new = replace(new, waiter=services.waiters.expect(new.id, wait))
    try:
        accepted = await services.scripts.enqueue(new)
    except (QueueError, BackendFull) as exc:
        if _is_refusal(exc):
            await _take_off(services, listing, new, counts, stays)
        raise
    if accepted.replayed:
        await _take_off(services, listing, new, counts, stays)
    try:
        await listing
    except BackendUnavailable as exc:
        exc.is_untouched = False  # the list may lack it, but the queue has it
        raise
    return accepted


def _lasting(services: Services, version: Version, new: NewPrediction) -> Counted:
    """Return what stays for longer than its data. A training makes a version, with a copy of the schema."""
    return lasting(
        (value for value in new.request_facts.values() if isinstance(value, str)),
        now_ms=services.clock.now_ms(),
        record_ttl_ms=version.record_ttl_ms,
        has_key=new.idempotency is not None,
        made_bytes=ENTRY_BYTES + len(version.schema) if new.kind == "training" else 0,
    )


def _oldest_listed(services: Services, new: NewPrediction) -> PredictionId:
    listed_s = max(services.settings.listing_ttl_s, (new.data_ttl_ms or 0) / 1000)
    return _lowest_id_at_s(services.clock.now_ms() // 1000 - math.ceil(listed_s))


def _is_refusal(exc: QueueError | BackendFull) -> bool:
    return isinstance(exc, QueueError) or exc.is_untouched


async def _take_off(
    services: Services, listing: "asyncio.Future[object]", new: NewPrediction, counted: Counted, stays: Counted
) -> None:
    services.memory.give_back(counted.bytes + stays.bytes)
    await asyncio.gather(listing, return_exceptions=True)  # first, or the entry could be added after its removal
    await services.scripts.delist(new.id, account=new.account, kind=new.kind, counted=counted, lasting=stays)


@lru_cache(maxsize=64)
def _lowest_id_at_s(seconds: int) -> PredictionId:
    """Return the lowest id of a whole second. Thousands of predictions share it, so it is cached."""
    return lowest_id_at(seconds * 1000)


async def _accepted_before(request: Request, new: NewPrediction) -> Stored | None:
    if new.idempotency is None:
        return None
    digest, fingerprint = new.idempotency
    known = await request.services.predictions.stands_for(
        new.account, model=new.model, digest=digest, fingerprint=fingerprint
    )
    return None if known is None else await _where_it_moved(request, known, new)


async def _where_it_moved(request: Request, prediction_id: PredictionId, new: NewPrediction) -> Stored | None:
    """Read what stands for a new prediction, as GET does, at any of our sites. Raises Moved if it went to a server
    outside this API.
    """
    return await where_it_is(request, prediction_id, partial(_known, prediction_id=prediction_id, new=new))


async def _known(services: Services, prediction_id: PredictionId, new: NewPrediction) -> Stored | None:
    """Read what stands for a new prediction, and put it on the list. The list may lack it: the process of the first
    request died, or lost Redis, once the queue had it.
    """
    stored = await _read(services, prediction_id)
    if stored is not None:
        oldest = _oldest_listed(services, new)
        await services.scripts.enlist(prediction_id, account=new.account, oldest=oldest, kind=new.kind)
    return stored


async def _read(services: Services, prediction_id: PredictionId) -> Stored | None:
    stored = await services.scripts.get(prediction_id)
    if stored is not None and stored.record.moved:
        raise Moved(stored.record.moved)
    return stored


async def _answer(
    request: Request, stored: Stored, headers: dict[str, str], applied: str, *, until: float, wait: Wait
) -> Response:
    services = services_at(request, stored.record.id)
    waiters = services.waiters
    weight = len(stored.input or b"")
    if stored.record.is_terminal:  # it takes no wait, so none ends for it
        return json_response(shown_to(request, stored), 201, headers | {"Preference-Applied": applied})
    if not waiters.make_room(request.account.name, weight):
        return json_response(shown_to(request, stored), 201, headers)
    headers["Preference-Applied"] = applied
    left_s = max(0.0, until - services.clock.monotonic())
    with watching(request) as gone:  # a caller that hangs up frees its wait; the prediction goes on
        ended = await waiters.ended(
            stored.record.id, seconds=left_s, account=request.account.name, weight=weight, wait=wait, gone=gone
        )
    if ended is not None:
        return json_response(shown_to(request, ended.of(stored) if isinstance(ended, Ending) else ended), 201, headers)
    # Clients take any other status for the end, and a part of the output for all of it.
    record = replace(stored.record, status=Status.STARTING, started=None)
    outlook = await _outlook(services, record.id)
    return json_response(view(Stored(record=record, input=stored.input, outlook=outlook)), 202, headers)


async def _outlook(services: Services, prediction_id: PredictionId) -> Outlook | None:
    """Return why the prediction waits, or None if Redis does not say in time: the caller is answered in any case."""
    with anyio.move_on_after(OUTLOOK_S), contextlib.suppress(BackendUnavailable):
        known = await services.scripts.story(prediction_id)
        return known.outlook if known else None
    return None


class Step:
    """The span of checking and filing one prediction. It belongs to the caller's trace, or begins one. `headers`: the
    trace headers to pass on, also where tracing is off.
    """

    def __init__(self, request: Request, version: Version) -> None:
        tracing, headers = request.services.tracing, request.headers
        self.headers = trace_headers(headers.getlist("traceparent"), headers.getlist("tracestate"))
        self.facts: Facts = {}
        self._span: Span | None = None
        if tracing.is_on:
            facts: Facts = {
                "kind": version.kind or "prediction",
                "queue": version.queue,
                "model": version.model,
                "version": version.id,
                **tracing.account(request.account.name),
            }
            self._span = tracing.begin("enqueue", self.headers, kind="server", facts=facts)
            self.headers = self._span.headers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, exc: BaseException | None, _traceback: object) -> None:
        if self._span is None:
            return
        error = "" if exc is None else UNEXPECTED
        if isinstance(exc, Problem | DirectorError):
            document = errors.problem_of(exc).document
            error = document.code or str(document.status)
        self._span.end(self.facts, error=error)
