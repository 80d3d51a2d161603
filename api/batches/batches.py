"""Serve batches as OpenAI's API has them. The keeper runs them: see `engine`."""

import hashlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.responses import Response

from api.batches.lines import BatchFault
from api.batches.opening import Opening
from api.batches.progress import BatchProgress, progress_of
from api.batches.targets import OPENAI, PREDICTIONS, is_endpoint
from api.files.outputs import store_of
from api.openai.files import AFTER, LIFE_S, PREFIX, file_id_of, find_openai_file
from api.predictions import bodies
from api.predictions.intake import LONGEST_KEY as LONGEST_IDEMPOTENCY_KEY
from api.predictions.intake import lane_of, refuse_ends_before_start
from api.web import errors
from api.web.http import Members, Request, base_url, json_response, number_of, read_body
from api.web.route import Answer, Body, Parameter, changes, reads, stores
from director.core.errors import SettingsError
from director.core.ids import IDLE, FileId, is_file_id, new_file_id
from director.core.webhooks import parse_webhook_url
from director.store.batches import Batch, Batches

BATCH: Final = "batch_"
WINDOW: Final = "24h"
WINDOW_MS: Final = 24 * 3600 * 1000
AFTER_MS: Final = 3600 * 1000  # for which an input is there after its batch's window, at least
MOST_METADATA: Final = 16
LONGEST_KEY, LONGEST_VALUE = 64, 512
MOST_BYTES: Final = 64 << 10  # of the body
PAGE: Final = 20
MOST_IN_PAGE: Final = 100
KNOWN: Final = frozenset(
    {"input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after", "webhook"}
)
# Headers of a create that apply to each line
HEADERS: Final = tuple(one.name.lower() for one in bodies.HOW if one.name != "Idempotency-Key")
OPEN_HOURS: Final = "X-Open-Hours"
HOURS: Final = Parameter(
    OPEN_HOURS,
    "When its lines may start: `22:00-06:00 Europe/Berlin`, or `idle` for the lane of that name.",
    place="header",
)
CHECKS: Final[Mapping[str, Callable[[str], Any]]] = {
    "x-cost": bodies.cost_units,
    "x-affinity-key": bodies.affinity_digest,
    "x-start-by": bodies.start_by_seconds,
    "cancel-after": bodies.cancel_after_seconds,
}
EXPIRY: Final = f"the anchor created_at, and seconds from {LIFE_S[0]} to {LIFE_S[-1]}"
ENDPOINTS: Final = f"{', '.join((*OPENAI, PREDICTIONS))}, or another route of Replicate's that creates a prediction"


class OutputExpiry(Struct, frozen=True, forbid_unknown_fields=True):
    """When the files that a batch writes are deleted: `seconds` after each was made."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=LIFE_S[0], le=LIFE_S[-1])]


class NewBatch(Struct, kw_only=True, forbid_unknown_fields=True):
    """A batch to create. `webhook` is notified about its end."""

    input_file_id: str
    endpoint: Annotated[str, Meta(description=f"What the lines call: {ENDPOINTS}.")]
    completion_window: Literal["24h"]
    metadata: dict[str, str] | UnsetType | None = UNSET
    output_expires_after: OutputExpiry | UnsetType | None = UNSET
    webhook: Annotated[str, Meta(description="An http or https URL.")] | UnsetType | None = UNSET


class BatchFaults(Struct, frozen=True, kw_only=True):
    """The first hundred of what is wrong."""

    object: Literal["list"] = "list"
    data: list[BatchFault]


class RequestCounts(Struct, frozen=True, kw_only=True):
    """Lines: all, those in the output file, and those in the error file."""

    total: int
    completed: int
    failed: int


class BatchView(Struct, frozen=True, kw_only=True):
    """A batch on the wire. Times are in seconds since 1970."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchFaults | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: Raw | None
    progress: BatchProgress


class BatchPage(Struct, frozen=True, kw_only=True):
    """A page of batches, the newest first."""

    object: Literal["list"] = "list"
    data: list[BatchView]
    first_id: str | None
    last_id: str | None
    has_more: bool


SHOWN: Final = {200: Answer("The batch.", BatchView)}


@stores(
    "POST",
    "/openai/v1/batches",
    name="openai.batches.create",
    summary="Create a batch",
    about=(
        "Each line of the input file is a request, and becomes a prediction in the lane low. All lines are checked "
        "before any runs. The headers that say how to run apply to each of them. The answer comes at once."
    ),
    body=Body(NewBatch),
    parameters=(*bodies.HOW, HOURS),
    answers=SHOWN,
    refusals={404, 501},
)
async def create_batch(request: Request) -> Response:
    services, account = request.services, request.account
    if "authorization" not in request.headers:  # its lines run as the token, also after a log-out
        raise errors.forbidden("A batch outlives a log-in at the page: send a token.")
    store_of(request)
    batches = Batches(services.redis, services.scripts)
    body = await read_body(request, max_bytes=MOST_BYTES)
    new, idempotency = _read(request, body), _idempotency(request, body)
    if idempotency and (known := await batches.stands_for(account.name, idempotency)) is not None:
        return await _replay(request, known)
    file = await find_openai_file(request, new.input)
    services.gate.pass_through()
    if file.expires < (until_ms := new.expires + AFTER_MS):
        await services.scripts.stow(account.name, file.id, file.size, until_ms=until_ms)
        await services.caller_files.prolong(file, until_ms=until_ms)
    opened = await batches.open(new, ttl_s=services.settings.batch_ttl_s, idempotency=idempotency)
    if opened == "full":
        raise errors.too_many_batches(retry_after=60)
    if opened != "opened":
        return await _replay(request, FileId(opened))
    return json_response(show_batch(new, new.created))


async def _replay(request: Request, batch_id: FileId) -> Response:
    return json_response(await _show(request, batch_id), headers={"Idempotency-Replayed": "true"})


async def _show(request: Request, batch_id: str) -> BatchView:
    return show_batch(await _find(request, batch_id), request.services.clock.now_ms())


def _idempotency(request: Request, body: bytes) -> tuple[str, str] | None:
    """Return digests of the key and of the request. Raises a 422 for a key that is too long."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= LONGEST_IDEMPOTENCY_KEY:
        raise errors.invalid_header("Idempotency-Key", f"a text of 1 to {LONGEST_IDEMPOTENCY_KEY} characters")
    headers = "\n".join(f"{name}: {request.headers.get(name, '')}" for name in (*HEADERS, OPEN_HOURS.lower()))
    return hashlib.sha256(key.encode()).hexdigest(), hashlib.sha256(headers.encode() + b"\n" + body).hexdigest()


def _read(request: Request, body: bytes) -> Batch:
    """Raises a 422 with all that is wrong with the body."""
    members = Members(body)
    file_id = (members.text("input_file_id", required=True) or "").removeprefix(PREFIX)
    endpoint = members.text("endpoint", required=True) or ""
    window = members.text("completion_window", required=True) or WINDOW
    metadata, webhook = members.take("metadata", "object"), members.text("webhook")
    expiry = members.take("output_expires_after", "object")
    members.refuse_unknown(KNOWN)
    if endpoint and not is_endpoint(endpoint):
        members.fault("enum", "endpoint", f"must be one of {ENDPOINTS}")
    if window != WINDOW:
        members.fault("enum", "completion_window", f"must be {WINDOW}")
    if webhook is not None and (fault := parse_webhook_url(webhook)):
        members.fault("format", "webhook", fault)
    if metadata is not None and not _is_metadata(metadata):
        said = f"has at most {MOST_METADATA} texts of {LONGEST_VALUE} characters, with names of {LONGEST_KEY}"
        members.fault("invalid_type", "metadata", said)
    life_s = 0 if expiry is None else _life_s(expiry)
    if life_s is None:
        members.fault("invalid_type", "output_expires_after", f"has {EXPIRY}")
    if members.faults:
        raise errors.invalid_input(members.faults)
    if not is_file_id(file_id):
        raise errors.file_not_found()
    account, services = request.account, request.services
    now_ms = services.clock.now_ms()
    headers, hours = _headers_of(request, now_ms), request.headers.get(OPEN_HOURS.lower(), "")
    _refuse_closed(hours, headers, now_ms)
    return Batch(
        id=new_file_id(now_ms),
        account=account.name,
        api_token=account.token_digest,
        endpoint=endpoint,
        input=FileId(file_id),
        window=window,
        headers=msgspec.json.encode(headers),
        hours=hours,
        metadata=b"" if metadata is None else bytes(metadata),
        base=base_url(request),
        created=now_ms,
        expires=now_ms + WINDOW_MS,
        status="validating",
        webhook=webhook or "",
        output_life_s=life_s or 0,
    )


def _headers_of(request: Request, now_ms: int) -> dict[str, str]:
    """Return the headers that apply to each line. X-Start-After becomes a time. Raises the refusal that each line would
    get.
    """
    account = request.account
    if request.sites is not None:
        request.sites.find_asked(request)
    is_idle = request.headers.get(OPEN_HOURS.lower()) == IDLE
    given = {"x-priority": IDLE if is_idle else "low" if "low" in account.lanes else account.lanes[-1]}
    given |= {name: request.headers[name] for name in HEADERS if name in request.headers}
    if is_idle and given["x-priority"] != IDLE:
        raise errors.invalid_header("X-Priority", "idle, or left out, with X-Open-Hours: idle")
    lane_of(given, account, "")
    read = {name: check(given[name]) for name, check in CHECKS.items() if name in given}
    if (after := given.get("x-start-after")) is not None:
        at_ms = bodies.start_after_ms(after, now_ms)
        if at_ms >= now_ms + WINDOW_MS:
            raise errors.invalid_header("X-Start-After", "within the batch's 24 hours")
        start_by, lifetime = (read[name] * 1000 if name in read else None for name in ("x-start-by", "cancel-after"))
        refuse_ends_before_start(at_ms, now_ms, start_by_ms=start_by, lifetime_ms=lifetime)
        given["x-start-after"] = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return given


def _life_s(expiry: Raw) -> int | None:
    """Return for how long output is kept, or None for what cannot be read."""
    try:
        return msgspec.json.decode(expiry, type=OutputExpiry).seconds
    except msgspec.DecodeError:
        return None


def _refuse_closed(hours: str, headers: Mapping[str, str], now_ms: int) -> None:
    """Raise a 422 for hours that cannot be read, or that do not begin in the batch's window."""
    try:
        opening = Opening(hours, headers)
    except SettingsError as exc:
        raise errors.invalid_header(OPEN_HOURS, f"idle, or open hours: {exc}") from exc
    opens_ms = opening.opens_at(now_ms)
    if opens_ms is None or opens_ms >= now_ms + WINDOW_MS:
        raise errors.invalid_header(OPEN_HOURS, "hours that begin within the batch's 24 hours")


def _is_metadata(value: Raw) -> bool:
    try:
        metadata = msgspec.json.decode(value, type=dict[str, str])
    except msgspec.DecodeError:
        return False
    fits = (len(name) <= LONGEST_KEY and len(text) <= LONGEST_VALUE for name, text in metadata.items())
    return len(metadata) <= MOST_METADATA and all(fits)


@reads(
    "/openai/v1/batches",
    name="openai.batches.list",
    summary="List the batches of the account",
    about="Batches are kept for `DIRECTOR_BATCH_TTL_S` from their creation.",
    parameters=(
        Parameter("limit", "The most to return; 20 without it.", Annotated[int, Meta(ge=1, le=MOST_IN_PAGE)]),
        AFTER,
    ),
    answers={200: Answer("A page, newest first.", BatchPage)},
    refusals={422},
)
async def list_batches(request: Request) -> Response:
    services, account = request.services, request.account.name
    batches = Batches(services.redis, services.scripts)
    limit = number_of(request, "limit", default=PAGE, least=1, most=MOST_IN_PAGE)
    after = request.query_params.get("after", "").removeprefix(BATCH)
    if after and not is_file_id(after):
        raise errors.invalid_field("format", "after", "is the id of a batch")
    ids = await batches.newest(account, after=FileId(after) if after else None, count=limit + 1)
    now_ms = services.clock.now_ms()
    known = await batches.many(account, ids[:limit], whole=False)
    found = [show_batch(each, now_ms) for each in known if each is not None]
    first, last = (found[0].id, found[-1].id) if found else (None, None)
    return json_response(BatchPage(data=found, first_id=first, last_id=last, has_more=len(ids) > limit))


@reads(
    "/openai/v1/batches/{id}",
    name="openai.batches.get",
    summary="Get a batch",
    about="The counts are those of the lines that are written: they grow with each part, within five minutes.",
    answers=SHOWN,
)
async def get_batch(request: Request) -> Response:
    return json_response(await _show(request, request.path_params["id"]))


@changes(
    "POST",
    "/openai/v1/batches/{id}/cancel",
    name="openai.batches.cancel",
    summary="Cancel a batch",
    about=(
        "Lines that wait or run are canceled, and no more are filed. What has ended is in the files, and all others "
        "are in the error file with `batch_cancelled`. A batch that has ended stays as it is."
    ),
    answers=SHOWN,
    frees=True,
)
async def cancel_batch(request: Request) -> Response:
    batch, services = await _find(request, request.path_params["id"]), request.services
    await Batches(services.redis, services.scripts).cancel(batch, now_ms=services.clock.now_ms())
    return json_response(await _show(request, batch.id))


async def _find(request: Request, text: str) -> Batch:
    text, services = text.removeprefix(BATCH), request.services
    found = None
    if is_file_id(text):
        batches = Batches(services.redis, services.scripts)
        [found] = await batches.many(request.account.name, [FileId(text)], whole=False)
    if found is None:
        raise errors.not_found()
    return found


def show_batch(batch: Batch, now_ms: int) -> BatchView:
    times: dict[str, Any] = {
        f"{name}_at": batch.times[name] // 1000 if name in batch.times else None
        for name in ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    }
    faults = BatchFaults(data=msgspec.json.decode(batch.errors, type=list[BatchFault])) if batch.errors else None
    return BatchView(
        id=BATCH + batch.id,
        endpoint=batch.endpoint,
        errors=faults,
        input_file_id=PREFIX + batch.input,
        completion_window=batch.window,
        status=batch.status,
        output_file_id=file_id_of(batch.output),
        error_file_id=file_id_of(batch.error),
        created_at=batch.created // 1000,
        expires_at=batch.expires // 1000,
        request_counts=RequestCounts(total=batch.total, completed=batch.completed, failed=batch.failed),
        metadata=Raw(batch.metadata) if batch.metadata else None,
        progress=progress_of(batch, now_ms),
        **times,
    )
