"""Accept a prediction: check the request, reserve what it needs, and file it at one server. Every refusal comes before
anything is filed. The 201 or 202 is sent only after Redis has the prediction.
"""

import asyncio
import contextlib
import hashlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Final, NamedTuple, Protocol, Self

import anyio
from msgspec import Raw, Struct
from msgspec.structs import replace
from starlette.responses import Response

from api.accounts import limits
from api.predictions import bodies
from api.predictions.bodies import show_to
from api.predictions.streams import EventStream
from api.predictions.validation import InputSchema
from api.services.lookups import VersionRef
from api.services.services import Services
from api.services.stream_events import Frames, Mark
from api.services.stream_readers import Place, Send
from api.services.waiters import News, Wait
from api.sites.placing import SETTLED_MS, check_site, choose_site
from api.sites.sites import where_it_is
from api.web import errors
from api.web.errors import InvalidField, Moved, Problem
from api.web.http import Request, base_url, json_response, watching
from director.broker.replies import Accepted
from director.core.account_limits import UNLIMITED, Bucket
from director.core.data_bytes import ENTRY_BYTES, at_creation, lasting
from director.core.errors import (
    BackendUnavailable,
    DataRefused,
    DirectorError,
    IdempotencyMismatch,
    QueueRefused,
    UnknownQueue,
)
from director.core.ids import ALL_LANES, IDLE, PredictionId, lowest_id_at, new_prediction_id, new_ticket
from director.core.schema import NewPrediction, Outlook, Stored, TraceHeaders
from director.core.states import Status
from director.core.usage import estimate_tokens
from director.core.view import address, view
from director.runtime import crash
from director.runtime.tracing import Facts, Span, trace_headers
from director.store.accounts import Account
from director.store.catalog import Version, has_openai_api
from director.store.predictions import Ending
from director.store.undo import Undo

log = logging.getLogger(__name__)
UNEXPECTED: Final = "internal"
LONGEST_KEY: Final = 255
OUTLOOK_S: Final = 0.2  # the official Python client gives up half a second after the time that it asked for
# Requests that differ in these headers are different requests. The second group enters the fingerprint by name and only
# where it is sent, so that fingerprints of requests without these newer headers stay as they were.
HEADERS: Final = ("cancel-after", "x-priority", "x-start-by")
NEWER_HEADERS: Final = ("x-cost", "x-affinity-key", "x-start-after")
EVENT_STREAM: Final = "text/event-stream"
REFUSED: Final = (Problem, DataRefused, UnknownQueue)  # nothing new, but what an idempotency key names is answered


class Listener(Protocol):
    """Gets to know where a prediction is filed, before it is: so nothing of it is missed."""

    def listen(self, services: Services, new: NewPrediction) -> NewPrediction:
        """Return the prediction to file at this server next. Raises QueueRefused if it may not be."""


class Hold:
    """The caller's wait for its answer. Enter it before the prediction is filed: no ending is missed then."""

    def __init__(self, request: Request) -> None:
        prefer = bodies.preference(request.headers.getlist("prefer"))
        self.wait = None if prefer is None else Wait()
        seconds, self.applied = prefer or (0.0, "")
        self.until = request.services.clock.monotonic() + seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.wait is not None:
            self.wait.leave()

    def listen(self, services: Services, new: NewPrediction) -> NewPrediction:
        return new if self.wait is None else replace(new, waiter=services.waiters.expect(new.id, self.wait))


class Following:
    """The caller's stream of events, in the answer to its create. It listens from before its prediction is filed, so
    that it misses no event. Leave it once. `stays`: it gives way to no other reader.
    """

    def __init__(self, *, stays: bool = False) -> None:
        self.news: News | None = None
        self.place: Place | None = None
        self._stays = stays
        self._listening = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        self._listening.close()
        self.news = self.place = None

    async def accept(self, accept_for: "Callable[[Listener], Awaitable[Filed]]") -> "Filed":
        """Accept a prediction, and listen to it. A repeat is not listened to: another request has filed it."""
        try:
            filed = await accept_for(self)
        except BaseException:
            self.leave()
            raise
        if filed.is_repeat:
            self.leave()
        return filed

    def listen(self, services: Services, new: NewPrediction) -> NewPrediction:
        self.leave()
        readers = services.readers
        self.place = place = readers.reserve(new.account, stays=self._stays)
        self._listening.callback(readers.leave, place)
        self.news = self._listening.enter_context(readers.waiters.listening(new.id))
        return new


class Called(Struct, frozen=True):
    """The version that a call runs. `deployment`: owner/name of the deployment that it named, if any. `split`: a mark
    that says why it has this version, if that deployment has two. `released`: for a version that is tried, the one that
    runs the call if this one's queue refuses it, or its site is away.
    """

    version: Version
    deployment: str = ""
    split: str = ""
    released: str = ""


class Filed(NamedTuple):
    """A prediction that was accepted, and the services of the server that has it."""

    stored: Stored
    services: Services
    is_repeat: bool = False


async def submit(
    request: Request,
    called: Called,
    asked: bodies.CreatePrediction,
    *,
    review: Callable[[Request, Filed], Awaitable[Filed]] | None = None,
) -> Response:
    """Accept a run of this version, and answer. `review` sees what was accepted, and returns what it is then."""

    async def accept_for(listener: Listener) -> Filed:
        filed = await accept(request, called, asked, rate_token=request.rate_token, listener=listener)
        return filed if review is None else await review(request, filed)

    if request.headers.get("accept", "").startswith(EVENT_STREAM):
        return await follow(accept_for)
    with Hold(request) as hold:
        return await answer(request, await accept_for(hold), hold)


async def follow(accept_for: Callable[[Listener], Awaitable[Filed]]) -> Response:
    """Answer with the events of what is accepted, as GET of its stream would."""
    following = Following()
    filed = await following.accept(accept_for)
    record, readers = filed.stored.record, filed.services.readers

    async def tell(send: Send) -> bool:
        with following:
            return await readers.read(
                *(record.id, Frames(Mark()), send),
                account=record.account,
                is_over=record.is_terminal,
                news=following.news,
                place=following.place,
            )

    return EventStream(tell, headers_of(filed))


async def accept(
    request: Request,
    called: Called,
    asked: bodies.CreatePrediction,
    *,
    rate_token: tuple[Bucket, str] | None,
    item: str = "",
    listener: Listener | None = None,
) -> Filed:
    """Check and file one prediction. `item` distinguishes the predictions of a batch, which share a key. A refusal by
    the queue gives the token of the rate back. A repeat counts, as does a request that is invalid.
    """
    async with Undo() as undo:
        try:
            return await _accept(request, called, asked, undo, item, listener, rate_token=rate_token)
        except (QueueRefused, UnknownQueue, BackendUnavailable) as exc:
            released = await _find_released(request, called, asked) if _may_run_elsewhere(request, exc) else None
            if released is None:
                raise
        return await _accept(request, released, asked, undo, item, listener)


def _may_run_elsewhere(request: Request, exc: Exception) -> bool:
    """Return whether another version may be accepted in its place: nothing was taken, and another site may answer."""
    return not isinstance(exc, BackendUnavailable) or (exc.is_untouched and request.sites is not None)


async def _find_released(request: Request, called: Called, asked: bodies.CreatePrediction) -> Called | None:
    """Return the call of a tried version as the released one runs it: no mark, as the trial did not choose it."""
    if not called.released:
        return None
    ref = VersionRef(model=called.version.model, version=called.released)
    version = await request.versions.find_named(ref, request.account)
    if version is None or (asked.endpoint and not has_openai_api(version.server)):
        return None
    return Called(version, called.deployment)


async def _accept(
    request: Request,
    called: Called,
    asked: bodies.CreatePrediction,
    undo: Undo,
    item: str,
    listener: Listener | None,
    *,
    rate_token: tuple[Bucket, str] | None = None,
) -> Filed:
    version = called.version
    with Step(request, version) as step:
        checked = check(request, version, asked)
        new = describe(request, called, checked, item=item, trace=step.headers)
        try:
            if not checked.faults:
                if rate_token is not None:
                    undo.push(lambda: limits.give_back_token(request, rate_token))
                filed = await file(request, version, new, undo, listener)
            elif (known := await find_repeated(request, new)) is not None:  # a version with other inputs has run it
                filed = known
            else:
                raise errors.invalid_input(checked.faults)
        except IdempotencyMismatch:
            if (known := await find_repeated_of_other_version(request, new, asked)) is None:
                raise
            filed = known
        record = filed.stored.record
        step.facts = {"prediction": record.id, "lane": record.lane, "replayed": filed.is_repeat}
        return filed


async def file(
    request: Request,
    version: Version,
    new: NewPrediction,
    outer: Undo,
    listener: Listener | None,
) -> Filed:
    """File a checked prediction. Returns it as stored, without a read where possible."""
    try:
        async with Undo(outer) as undo:
            await reserve_compute(request, new, undo)
            most_data = request.account.limits.max_data_bytes
            if request.sites is None:
                services = request.services
                accepted = await file_at(services, version, new, most_data, undo, listener)
            else:
                at = partial(file_at_site, most_data=most_data, outer=undo, listener=listener)
                accepted, services = await choose_site(request, version, new, at)
            if accepted.replayed:
                await undo.note_repeat()
    except REFUSED:
        if (known := await find_repeated(request, new)) is not None:
            return known
        raise
    crash.at("after_enqueue")
    if accepted.replayed:
        if (known := await read_repeated(request, accepted.id, new, services)) is not None:
            return known
        raise errors.not_found()  # its record had a shorter life than the idempotency key
    services.meters.note_acceptance(new.kind, new.lane)
    log.info("prediction accepted", extra={"prediction": accepted.id, "queue": new.queue})
    record = new.record(accepted.id, created=accepted.created_ms, deadline=accepted.deadline_ms)
    return Filed(Stored(record=record, input=Raw(new.input), outlook=accepted.outlook), services)


async def file_at_site(
    services: Services,
    version: Version,
    new: NewPrediction,
    most_data: int | None,
    outer: Undo,
    listener: Listener | None,
) -> Accepted:
    """File it at one of several servers, and leave nothing there if the server takes nothing: the next one is asked."""
    async with Undo(outer) as undo:
        accepted = await file_at(services, version, new, most_data, undo, listener)
        if accepted.replayed:
            await undo.note_repeat()
        return accepted


async def file_at(
    services: Services,
    version: Version,
    new: NewPrediction,
    most_data: int | None,
    undo: Undo,
    listener: Listener | None = None,
) -> Accepted:
    """File it at one server, in one write to the socket. `most_data`: bytes that its account may have there. Raises
    QueueError.
    """
    heard = new if listener is None else listener.listen(services, new)
    kept = await store_input(services, heard, undo)
    if new.open_hours:  # before its first prediction is there, so that none starts out of them
        await services.scripts.hours(new.queue, new.open_hours, account=new.account, revision=new.limits_rev)
    listing = await list_for_account(services, version, kept, most_data, undo)
    accepted = await undo.enqueue(services.scripts.enqueue(kept))
    if accepted.replayed:
        return accepted
    try:
        await listing
    except BackendUnavailable as exc:
        exc.is_untouched = False  # the list may lack it, but the queue has it
        raise
    if kept is not heard:  # its file counts for as long as the list lives, or until its director counts it
        until_ms = services.clock.now_ms() + int(services.settings.listing_ttl_s * 1000)
        with contextlib.suppress(BackendUnavailable):
            await services.scripts.stow(new.account, new.id, len(new.input), until_ms=until_ms)
    return accepted


class Checked(NamedTuple):
    """A request as it is stored. `faults`: what the model does not take of its input."""

    asked: bodies.CreatePrediction
    faults: Sequence[InvalidField] = ()
    can_stream: bool = True


def check(request: Request, version: Version, asked: bodies.CreatePrediction) -> Checked:
    """Raises a 422 for an input that the model does not take, unless a key may stand for a run of another version."""
    if asked.endpoint:
        return Checked(asked)
    schema = InputSchema.of(version)
    faults = schema.check(asked.input)
    if faults and "idempotency-key" not in request.headers:
        raise errors.invalid_input(faults)
    if schema.secrets is not None:  # also of a repeat, whose first request was stored without them
        asked = schema.secrets.mark_request(asked)
    return Checked(asked, faults, schema.can_stream)


def describe(
    request: Request,
    called: Called,
    checked: Checked,
    *,
    item: str,
    trace: TraceHeaders,
) -> NewPrediction:
    """Return the prediction that a request asks for. Raises a 422 for a header that says nothing."""
    asked, version = checked.asked, called.version
    services, account, headers = request.services, request.account, request.headers
    caps, given = account.limits, bytes(asked.input)
    lifetime, start_by = headers.get("cancel-after"), headers.get("x-start-by")
    cost, affinity = headers.get("x-cost"), headers.get("x-affinity-key")
    now_ms = services.clock.now_ms()
    new = NewPrediction(
        id=new_prediction_id(model=version.model, now_ms=now_ms, site=services.site),
        input=given,
        account=account.name,
        model=version.model,
        version=version.id,
        queue=version.queue,
        kind=version.kind,
        api_token=account.token_id,
        tokens=estimate_tokens(given),
        deployment=called.deployment,
        split=called.split,
        destination=asked.destination or "",
        lane=lane_of(headers, account, asked.lane),
        shard=version.shard_of(account.name),
        cost=1 if cost is None else bodies.cost_units(cost),
        affinity=asked.affinity if affinity is None else bodies.affinity_digest(affinity),
        weight=caps.weight,
        most_queued=caps.max_queued,
        most_running=caps.max_running,
        limits_rev=account.limits_rev,
        open_hours=caps.closing_hours,
        metered=caps.meters_compute,
        budgeted=caps.has_budget,
        data_ttl_ms=None if caps.data_ttl_s is None else int(caps.data_ttl_s * 1000),
        url=base_url(request),
        ticket=new_ticket() if checked.can_stream else "",
        webhook=asked.webhook or "",
        webhook_events=asked.events,
        lifetime_ms=None if lifetime is None else bodies.cancel_after_seconds(lifetime) * 1000,
        # only a caller that sets a deadline gets the status aborted: older official clients fail on it
        deadline_status="" if lifetime is None else Status.ABORTED,
        start_by_ms=None if start_by is None else bodies.start_by_seconds(start_by) * 1000,
        idempotency=_idempotency(headers, asked, version=version, deployment=called.deployment, item=item),
        start_after=_start_after(headers, now_ms),
        secret=asked.secret,
        endpoint=asked.endpoint,
        once_shown=asked.once_shown,
        traceparent=trace.get("traceparent", ""),
        tracestate=trace.get("tracestate", ""),
    )
    refuse_ends_before_start(new.start_after, now_ms, start_by_ms=new.start_by_ms, lifetime_ms=new.lifetime_ms)
    if request.sites is not None:
        check_site(request, new)
    return new


def _start_after(headers: Mapping[str, str], now_ms: int) -> int | None:
    """Return the time that the caller planned, or None where it may start at once."""
    asked = headers.get("x-start-after")
    at_ms = now_ms if asked is None else bodies.start_after_ms(asked, now_ms)
    return at_ms if at_ms > now_ms else None


def refuse_ends_before_start(
    start_after: int | None, now_ms: int, *, start_by_ms: int | None, lifetime_ms: int | None
) -> None:
    """Raise a 422 for a limit that passes before the prediction may start: it could never run."""
    for header, limit_ms in (("X-Start-By", start_by_ms), ("Cancel-After", lifetime_ms)):
        if start_after is not None and limit_ms is not None and now_ms + limit_ms <= start_after:
            raise errors.invalid_header(header, "later than X-Start-After, or it could never start")


def lane_of(headers: Mapping[str, str], account: Account, in_body: str) -> str:
    if account.limits.open_hours == IDLE:
        return IDLE
    asked = headers.get("x-priority", in_body or None)
    if asked is None:
        return "normal" if "normal" in account.lanes else account.lanes[0]
    if asked not in ALL_LANES:
        raise errors.invalid_header("X-Priority", "high, normal, low or idle")
    if asked not in account.lanes:
        raise errors.forbidden(f"This token may not use the lane '{asked}'.")
    return asked


def _idempotency(
    headers: Mapping[str, str], sent: bodies.CreatePrediction, *, version: Version, deployment: str, item: str
) -> tuple[str, str] | None:
    """Return (digest of the key, fingerprint of the request), which reveal nothing of what was sent. The fingerprint
    has the model and not its version, so that a key holds across a deploy. It lacks the values that this version takes
    for secrets: see `find_repeated_of_other_version`.
    """
    key = headers.get("idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= LONGEST_KEY:
        raise errors.invalid_header("Idempotency-Key", f"a text of 1 to {LONGEST_KEY} characters")
    fingerprint = _fingerprint(headers, sent, version=version, deployment=deployment)
    return hashlib.sha256((key + item).encode()).hexdigest(), fingerprint


def _fingerprint(
    headers: Mapping[str, str], sent: bodies.CreatePrediction, *, version: Version, deployment: str
) -> str:
    asked = [version.model, *(headers.get(name, "") for name in HEADERS)]
    asked += [f"{name}: {headers[name]}" for name in NEWER_HEADERS if name in headers]
    asked += [f"deployment: {deployment}"] if deployment else []
    asked += [f"kind: {version.kind}"] if version.kind else []
    asked += [f"endpoint: {sent.endpoint}"] if sent.endpoint else []
    # for a training the path names the version, and the body does not
    asked += [f"version: {version.id}"] if version.kind == "training" else []
    return hashlib.sha256("\n".join([*asked, ""]).encode() + sent.body).hexdigest()


async def reserve_compute(request: Request, new: NewPrediction, undo: Undo) -> None:
    """Raises a 402, a 413 or a 429 for an account without room for it."""
    if request.account.limits == UNLIMITED:
        return

    undo.push(lambda: limits.give_back(request, new.id))
    await limits.refuse_full(request, input_bytes=0 if _goes_to_files(request.services, new) else len(new.input))
    await limits.reserve_compute(request, new.id, queue=new.queue, cost=new.cost)
    await limits.reserve_budget(request, new)


async def store_input(services: Services, new: NewPrediction, undo: Undo) -> NewPrediction:
    """Put a large input into the file store, and return the prediction with a reference to it."""
    if not _goes_to_files(services, new):
        return new
    kept = await services.data_files.put(new.id, new.input)
    if kept is new.input:
        return new
    undo.push(lambda: services.data_files.drop(new.id))
    crash.at("after_data_put")
    return replace(new, input=kept)


def _goes_to_files(services: Services, new: NewPrediction) -> bool:
    """Return False for an input with secret values: it stays in Redis, where its end overwrites them."""
    return len(new.input) >= services.data_files.from_bytes and not new.secret


async def list_for_account(
    services: Services, version: Version, new: NewPrediction, most_data: int | None, undo: Undo
) -> "asyncio.Future[object]":
    """Add the prediction to its account's list. Waits for the answer only with a limit on the bytes of the account, or
    while memory is short.
    """
    oldest = _oldest_listed(services, new)
    counts = at_creation(new.id, len(new.input), new.data_ttl_ms or version.data_ttl_ms)
    stays = lasting(  # longer than its data
        new.texts,
        now_ms=services.clock.now_ms(),
        record_ttl_ms=version.record_ttl_ms,
        has_key=new.idempotency is not None,
        # a training makes a version, with a copy of the schema
        made_bytes=ENTRY_BYTES + len(version.schema) if new.kind == "training" else 0,
    )
    limit = services.memory.limit(most_data, counts.bytes + stays.bytes)
    undo.push(lambda: services.memory.uncount(counts.bytes + stays.bytes))
    listing = services.scripts.enlist(
        new.id,
        account=new.account,
        oldest=oldest,
        kind=new.kind,
        input_bytes=len(new.input),
        counts=counts,
        lasting=stays,
        most=limit.most,
    )
    if limit.most is not None and isinstance(refused := await listing, list):
        raise limit.refusal(refused)

    async def take_off() -> None:
        await asyncio.gather(listing, return_exceptions=True)  # first, or the entry could be added after its removal
        await services.scripts.delist(new.id, account=new.account, kind=new.kind, counted=counts, lasting=stays)

    undo.push(take_off)
    return listing


def _oldest_listed(services: Services, new: NewPrediction) -> PredictionId:
    listed_s = max(services.settings.listing_ttl_s, (new.data_ttl_ms or 0) / 1000)
    return _lowest_id_at_s(services.clock.now_ms() // 1000 - math.ceil(listed_s))


@lru_cache(maxsize=64)
def _lowest_id_at_s(seconds: int) -> PredictionId:
    """Return the lowest id of a whole second. Thousands of predictions share it, so it is cached."""
    return lowest_id_at(seconds * 1000)


async def find_repeated(request: Request, new: NewPrediction) -> Filed | None:
    """Return what the idempotency key of a refused prediction stands for."""
    if new.idempotency is None:
        return None
    digest, fingerprint = new.idempotency
    known = await request.services.predictions.stands_for(
        new.account, model=new.model, digest=digest, fingerprint=fingerprint
    )
    return None if known is None else await read_repeated(request, known, new)


async def find_repeated_of_other_version(
    request: Request, new: NewPrediction, asked: bodies.CreatePrediction
) -> Filed | None:
    """Return what the key of a prediction stands for if that is the same request as its own version reads it. A version
    whose schema marks secrets takes them out of the fingerprint, and another one does not. Raises BackendUnavailable
    while nothing can say which version that is, since the other request is being placed.
    """
    if new.idempotency is None or new.kind or asked.endpoint:
        return None
    digest, _ = new.idempotency
    held = await request.services.predictions.read_key(new.account, model=new.model, digest=digest)
    if held is None:
        return None
    known, fingerprint = held.id, held.fingerprint
    stored = await where_it_is(request, known, lambda services: read_here(services, known))
    if stored is None and request.sites is not None and held.age_ms < SETTLED_MS:
        raise BackendUnavailable("a request with the same key is being placed")
    if stored is None or stored.record.version == new.version:
        return None
    its = VersionRef(model=new.model, version=stored.record.version)
    version = await request.versions.find_named(its, request.account)
    if version is None:
        return None
    sent = check(request, version, asked).asked
    if fingerprint != _fingerprint(request.headers, sent, version=version, deployment=new.deployment):
        return None
    return await read_repeated(request, known, new)


async def read_repeated(
    request: Request, prediction_id: PredictionId, new: NewPrediction, services: Services | None = None
) -> Filed | None:
    """Read the prediction that has the idempotency key of a new one, as GET does, at any of our sites. Raises Moved if
    it went to a server outside this API.
    """

    async def read(services: Services) -> Filed | None:
        stored = await read_here(services, prediction_id)
        if stored is None:
            return None
        # the list may lack it: the process of the first request died, or lost Redis, once the queue had it
        oldest = _oldest_listed(services, new)
        await services.scripts.enlist(prediction_id, account=new.account, oldest=oldest, kind=new.kind)
        return Filed(stored, services, is_repeat=True)

    return await where_it_is(request, prediction_id, read, services)


async def read_here(services: Services, prediction_id: PredictionId) -> Stored | None:
    """Raises Moved."""
    stored = await services.scripts.get(prediction_id)
    if stored is not None and stored.record.moved:
        raise Moved(stored.record.moved)
    return stored


def headers_of(filed: Filed) -> dict[str, str]:
    headers = {"Location": address(filed.stored.record)}
    if filed.is_repeat:
        headers["Idempotency-Replayed"] = "true"
    return headers


async def answer(request: Request, filed: Filed, hold: Hold) -> Response:
    """Answer at once, or hold the answer until the prediction has ended."""
    stored, services, wait = filed.stored, filed.services, hold.wait
    headers = headers_of(filed)
    weight = len(stored.input or b"")
    is_over = stored.record.is_terminal  # then it takes no wait, so none ends for it
    if wait is None or not (is_over or services.waiters.make_room(request.account.name, weight)):
        return json_response(show_to(request, stored), 201, headers)
    headers["Preference-Applied"] = hold.applied
    if is_over:
        return json_response(show_to(request, stored), 201, headers)
    left_s = max(0.0, hold.until - services.clock.monotonic())
    with watching(request) as gone:  # a caller that hangs up frees its wait; the prediction goes on
        ended = await services.waiters.wait_for_end(
            stored.record.id, seconds=left_s, account=request.account.name, weight=weight, wait=wait, gone=gone
        )
    if ended is not None:
        return json_response(show_to(request, ended.of(stored) if isinstance(ended, Ending) else ended), 201, headers)
    # Clients take any other status for the end, and a part of the output for all of it.
    record = replace(stored.record, status=Status.STARTING, started=None)
    outlook = await read_outlook(services, record.id)
    return json_response(view(Stored(record=record, input=stored.input, outlook=outlook)), 202, headers)


async def read_outlook(services: Services, prediction_id: PredictionId) -> Outlook | None:
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
            error = errors.problem_of(exc).code
        self._span.end(self.facts, error=error)
