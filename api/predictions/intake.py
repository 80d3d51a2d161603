"""Accept a prediction: check the request, file the prediction, and answer when the caller wants the answer.

Every refusal comes before anything is filed. The 201 or 202 is sent only after Redis has the prediction.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import anyio
from msgspec.structs import replace
from starlette.responses import Response

from api.bodies import (
    CreatePrediction,
    affinity_digest,
    applied,
    cancel_after_seconds,
    cost_units,
    start_by_seconds,
    wait_seconds,
)
from api.errors import Problem, forbidden, invalid_header, invalid_input, problem_of
from api.limits import Taken, taken_of
from api.predictions.filing import Submission, file
from api.predictions.streams import new_ticket
from api.predictions.validation import InputSchema
from api.predictions.waiters import Wait, Waiters
from api.request import Request
from api.response import base_url, json_response
from api.services import Services
from api.sites.sites import services_at, sites_of
from director.broker.replies import Accepted
from director.core.errors import BackendUnavailable, DirectorError
from director.core.ids import LANES, PredictionId
from director.core.schema import Outlook, Record, Stored
from director.core.states import Status, WebhookEvent
from director.core.trace_context import TraceHeaders, trace_headers
from director.core.view import address, view
from director.runtime.tracing import Facts
from director.store.accounts import Account
from director.store.catalog import Version
from director.store.predictions import Ending

# The span `enqueue` covers the checking and filing of one prediction. It belongs to the caller's trace, or begins one.
#
# The trace headers are passed on with the prediction even where tracing is off.

UNEXPECTED: Final = "internal"


class Step:
    """The content of the span. `headers`: the trace headers to pass on with the prediction."""

    def __init__(self, headers: TraceHeaders) -> None:
        self.headers = headers
        self.facts: Facts = {}

    def found(self, accepted: Accepted, record: Record) -> None:
        """Note the accepted prediction, which may be the replay of an earlier one."""
        self.facts = {"prediction": record.id, "lane": record.lane, "replayed": accepted.replayed}


@contextmanager
def enqueue_span(request: Request, account: Account, version: Version) -> Iterator[Step]:
    """Wrap the checking and filing of one prediction in a span."""
    tracing, headers = request.services.tracing, request.headers
    trace = trace_headers(headers.getlist("traceparent"), headers.getlist("tracestate"))
    if not tracing.is_on:
        yield Step(trace)
        return
    span = tracing.begin("enqueue", trace, kind="server", facts=_facts(version, tracing.account(account.name)))
    step, error = Step(span.headers), UNEXPECTED
    try:
        yield step
        error = ""
    except (Problem, DirectorError) as exc:
        document = problem_of(exc).document
        error = document.code or str(document.status)
        raise
    finally:
        span.end(step.facts, error=error)


def _facts(version: Version, whose: Facts) -> Facts:
    return {
        "kind": version.kind or "prediction",
        "queue": version.queue,
        "model": version.model,
        "version": version.id,
        **whose,
    }


LONGEST_KEY: Final = 255
OUTLOOK_S: Final = 0.2  # the official Python client gives up half a second after the time that it asked for
EVERY_EVENT: Final = tuple(WebhookEvent)
# Requests that differ in these headers are different requests. The second group enters the fingerprint by name and only
# where it is sent, so that fingerprints of requests without these newer headers stay as they were.
OF_THE_REQUEST: Final = ("cancel-after", "x-priority", "x-start-by")
OF_THE_REQUEST_TOO: Final = ("x-cost", "x-affinity-key")


async def submit(
    request: Request,
    *,
    account: Account,
    version: Version,
    asked: CreatePrediction,
    body: bytes,
    deployment: str = "",
) -> Response:
    """Accept a run of this version. Answers 201 with it, or 202 if the caller waited and it is not terminal yet.

    `deployment`: owner/name of the deployment that was called.
    """
    services = request.services
    asked_at = services.clock.monotonic()
    if sites_of(request) is None:
        services.gate.pass_through()
    seconds = wait_seconds(request.headers.getlist("prefer"))
    wait = None if seconds is None else Wait()
    try:
        accepted, stored = await accept(
            request,
            account=account,
            version=version,
            asked=asked,
            body=body,
            deployment=deployment,
            taken=taken_of(request),
            wait=wait,
        )
        headers = {"Location": address(stored.record)}
        if accepted.replayed:
            headers["Idempotency-Replayed"] = "true"
        until = None if seconds is None else asked_at + seconds
        return await _answer(request, stored, headers, until=until, wait=wait)
    finally:
        if wait is not None:
            wait.leave()


async def accept(
    request: Request,
    *,
    account: Account,
    version: Version,
    asked: CreatePrediction,
    body: bytes,
    taken: Taken | None,
    deployment: str = "",
    place: str = "",
    wait: Wait | None = None,
) -> tuple[Accepted, Stored]:
    """Check and file one prediction. `place` distinguishes the predictions of a batch, which share an idempotency key.

    `wait`: the caller's wait, if it waits for the end.
    """
    with enqueue_span(request, account, version) as step:
        schema = InputSchema.of(version)
        if faults := schema.check(asked.input):
            raise invalid_input(faults)
        submission = _judged(
            request,
            account=account,
            version=version,
            asked=asked,
            body=body,
            deployment=deployment,
            taken=taken,
            place=place,
            wait=wait,
            ticket=new_ticket() if schema.can_stream else "",
            trace=step.headers,
        )
        accepted, stored = await file(request, submission)
        step.found(accepted, stored.record)
        return accepted, stored


def _judged(
    request: Request,
    *,
    account: Account,
    version: Version,
    asked: CreatePrediction,
    body: bytes,
    deployment: str,
    taken: Taken | None,
    place: str,
    wait: Wait | None,
    ticket: str,
    trace: TraceHeaders,
) -> Submission:
    lifetime, start_by = request.headers.get("cancel-after"), request.headers.get("x-start-by")
    cost, affinity = request.headers.get("x-cost"), request.headers.get("x-affinity-key")
    return Submission(
        account=account,
        version=version,
        deployment=deployment,
        destination=asked.destination or "",
        input=bytes(asked.input),
        lane=_lane(request.headers, account),
        cost=1 if cost is None else cost_units(cost),
        affinity="" if affinity is None else affinity_digest(affinity),
        url=base_url(request),
        ticket=ticket,
        webhook=asked.webhook or "",
        events=",".join(asked.webhook_events_filter or EVERY_EVENT) if asked.webhook else "",
        lifetime_ms=None if lifetime is None else cancel_after_seconds(lifetime) * 1000,
        # only a caller that sets a deadline gets the status aborted: older official clients fail on it
        late="" if lifetime is None else Status.ABORTED,
        start_by_ms=None if start_by is None else start_by_seconds(start_by) * 1000,
        idempotency=_idempotency(request.headers, body, version=version, deployment=deployment, place=place),
        site=request.headers.get("x-site"),
        taken=taken,
        trace=trace,
        wait=wait,
    )


def _lane(headers: Mapping[str, str], account: Account) -> str:
    """Return the requested lane if the token allows it. Without a request: normal, or else the token's first lane."""
    asked = headers.get("x-priority")
    if asked is None:
        return "normal" if "normal" in account.lanes else account.lanes[0]
    if asked not in LANES:
        raise invalid_header("X-Priority", "high, normal or low")
    if asked not in account.lanes:
        raise forbidden(f"This token may not use the lane '{asked}'.")
    return asked


def _idempotency(
    headers: Mapping[str, str], body: bytes, *, version: Version, deployment: str, place: str
) -> tuple[str, str] | None:
    """Return (digest of the key, fingerprint of the request), which reveal nothing of what was sent.

    The fingerprint has the model and not the version that it led to, so that a key holds across a deploy. A body names
    its version itself.
    """
    key = headers.get("idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= LONGEST_KEY:
        raise invalid_header("Idempotency-Key", f"a text of 1 to {LONGEST_KEY} characters")
    asked = [version.model, *(headers.get(name, "") for name in OF_THE_REQUEST)]
    asked += [f"{name}: {headers[name]}" for name in OF_THE_REQUEST_TOO if name in headers]
    asked += [f"deployment: {deployment}"] if deployment else []
    asked += [f"kind: {version.kind}"] if version.kind else []
    # for a training the path names the version, and the body does not
    asked += [f"version: {version.id}"] if version.kind == "training" else []
    fingerprint = "\n".join([*asked, ""]).encode() + body
    return hashlib.sha256((key + place).encode()).hexdigest(), hashlib.sha256(fingerprint).hexdigest()


async def _answer(
    request: Request, stored: Stored, headers: dict[str, str], *, until: float | None, wait: Wait | None
) -> Response:
    """Answer 201 with the prediction. If the caller waits: 201 once it is terminal, or 202 showing it as not started.

    `until`: when the caller's time is over; the time to file the prediction is part of it.
    """
    services = services_at(request, stored.record.id)
    waiters = services.waiters
    weight = len(stored.input or b"")
    if until is None or not waiters.has_room(weight):
        return json_response(view(stored), 201, headers)
    headers["Preference-Applied"] = applied(request.headers.getlist("prefer")) or ""
    if stored.record.is_terminal:
        return json_response(view(stored), 201, headers)
    left_s = max(0.0, until - services.clock.monotonic())
    ended = await _hold(request, waiters, stored.record.id, seconds=left_s, weight=weight, wait=wait)
    if ended is not None:
        return json_response(view(ended.of(stored) if isinstance(ended, Ending) else ended), 201, headers)
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


async def _hold(
    request: Request,
    waiters: Waiters,
    prediction_id: PredictionId,
    *,
    seconds: float,
    weight: int,
    wait: Wait | None,
) -> Ending | Stored | None:
    """Wait as long as the caller does. A caller that hangs up frees its wait; the prediction goes on."""
    gone = asyncio.get_running_loop().create_task(_gone(request))
    try:
        return await waiters.ended(prediction_id, seconds=seconds, weight=weight, wait=wait, gone=gone)
    finally:
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
