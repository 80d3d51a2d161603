"""Define how the API refuses: one table of refusals with status, code and words, and the refusal of each exception. The
shape is RFC 7807, as Replicate's clients read it. Replicate's bodies are copied exactly; other refusals have a `code`.
Texts repeat nothing of a caller but shortened names of fields. Internal errors go to the log only.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from director.core.errors import (
    BackendFull,
    BackendUnavailable,
    DataRefused,
    IdempotencyMismatch,
    QueueRefused,
    UnknownModel,
    UnknownQueue,
)
from director.core.words import span
from director.store.accounts import Reason
from director.store.batches import MOST, MOST_LIVE

log = logging.getLogger(__name__)
MEDIA_TYPE: Final = "application/problem+json"
MAX_INVALID_FIELDS: Final = 20
MAX_NAME: Final = 100
MAX_DESCRIPTION: Final = 500
MOVED_RETRY_S: Final = 5  # the operator who moves queues also redirects callers to the other site


class Code(StrEnum):
    """The codes that a program may branch on. A closed set: a new one is a new promise. The text below a code is its
    documentation.
    """

    ACCOUNT_EXISTS = "account_exists"
    """There is an account of this name already. Choose another name."""
    ACCOUNT_SUSPENDED = "account_suspended"
    """The account may read and cancel, but run nothing. Ask the operator of the service."""
    ALREADY_EXISTS = "already_exists"
    """There is a model of this name already. Choose another name."""
    BREAKER_OPEN = "breaker_open"
    """The model's servers fail at the moment, and its queue starts nothing. Try again after `retry_after`."""
    CANNOT_START_IN_TIME = "cannot_start_in_time"
    """The prediction would not start within `X-Start-By`. Allow more time, or try again later."""
    COMPUTE_EXHAUSTED = "compute_exhausted"
    """The account's compute of this day or month is used up. It comes back after `retry_after`."""
    CONFIG_CHANGED = "config_changed"
    """Another operator changed the configuration in between. Read it again, then decide again."""
    CREDIT_EXHAUSTED = "credit_exhausted"
    """The account's compute is used up for good. Ask the operator for more."""
    DATA_FULL = "data_full"
    """The account's predictions, files and models take all of its bytes in Redis. Delete some, or try again after
    `retry_after`."""
    DATA_REMOVED = "data_removed"
    """Input and output were removed after their lifetime. Nothing is left to deliver."""
    DEPLOYMENT_DISABLED = "deployment_disabled"
    """The deployment may have no instances. Raise its `max_instances`."""
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
    """The key was used with another request. Use a new key for a new request."""
    INTERNAL = "internal"
    """A fault of the service. Its log has the details."""
    IN_USE = "in_use"
    """Something still needs what should be deleted: `detail` says what."""
    INVALID_HEADER = "invalid_header"
    """A header has a wrong value: `detail` says which one and what is allowed."""
    KIND_NOT_SERVED = "kind_not_served"
    """No director ever ran a training or procedure of this version. Start one with `DIRECTOR_KIND`."""
    MALFORMED = "malformed"
    """The body or the query cannot be read. Correct the request."""
    MEMORY_FULL = "memory_full"
    """Redis is full, and nothing new is accepted. Reads and cancels work. Try again after `retry_after`."""
    MEMORY_SHORT = "memory_short"
    """Redis has little memory left, and the account has more than its share of it. Try again after `retry_after`."""
    METHOD_NOT_ALLOWED = "method_not_allowed"
    """The path has no such method. The header `Allow` names those that it has."""
    MODEL_NOT_FOUND = "model_not_found"
    """OpenAI's API: `model` names nothing that the token may use there. `GET /openai/v1/models` lists what it may."""
    MOVED = "moved"
    """The prediction moved to another server that this API does not serve. Ask there."""
    NO_CAPACITY = "no_capacity"
    """The queue accepts only what can start at once, and nothing can. Try again after `retry_after`."""
    NO_WEBHOOK = "no_webhook"
    """The prediction was created without a webhook for its end."""
    NOT_IMPLEMENTED = "not_implemented"
    """The service stores no files, or a newer release wrote what was asked for."""
    NOT_TERMINAL = "not_terminal"
    """The prediction has not ended. Wait for its end, or cancel it first."""
    QUEUE_FULL = "queue_full"
    """The queue has as many waiting predictions as its operator allows. Try again after `retry_after`."""
    RATE_LIMITED = "rate_limited"
    """The account sends requests faster than its rate. Try again after `retry_after`."""
    SECRETS_GONE = "secrets_gone"
    """The prediction had secret inputs, which were removed at its end. Create it again."""
    STORAGE_FULL = "storage_full"
    """The account's files take all of its room. Delete some, or ask the operator for more."""
    TOKENS_EXHAUSTED = "tokens_exhausted"
    """The account's tokens of this minute, day or month are used up. They come back after `retry_after`."""
    TOO_LARGE = "too_large"
    """The body, a file or the headers are larger than what is accepted."""
    TOO_MANY_BATCHES = "too_many_batches"
    """OpenAI's API: the account has 100 batches that have not ended, or 2,000 in all. Wait until some have ended."""
    TOO_MANY_CALLS = "too_many_calls"
    """OpenAI's API: too many calls wait for their answers now. Try again."""
    TOO_MANY_CONNECTIONS = "too_many_connections"
    """There are too many connections, of all callers or of your address. Try again."""
    TOO_MANY_QUEUED = "too_many_queued"
    """The account has too many waiting predictions of this model. Wait until some have started."""
    TOO_MANY_STREAMS = "too_many_streams"
    """Too many event streams are read now. Try again: a stream begins at its start."""
    TOO_MANY_UPLOADS = "too_many_uploads"
    """Too many files are uploaded now. Try again after `retry_after`."""
    TOO_SLOW = "too_slow"
    """The body arrived too slowly. Send it again over a faster connection."""
    UNAVAILABLE = "unavailable"
    """Redis or the file store is away, or the API process ends. Try again; with an `Idempotency-Key` no second
    prediction is made."""
    UNUSABLE_SCHEMA = "unusable_schema"
    """The model's schema is at fault. The operator of the model must correct it."""


class InvalidField(Struct, frozen=True):
    """One thing wrong with a body. `type` is a name of gojsonschema's; `field` is a path like input.seed, or empty."""

    type: str
    field: str
    description: str


class ProblemDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body. Always an object whose `detail` can be read on its own: official clients drop `invalid_fields`."""

    title: str | None = None
    detail: str
    status: int
    code: Code | None = None
    retry_after: int | None = None
    limit: int | None = None
    eta_s: float | None = None
    invalid_fields: tuple[InvalidField, ...] = ()


class OpenAiError(Struct, frozen=True, kw_only=True):
    """A refusal of OpenAI's API. `param` is the field of the body that is at fault."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class OpenAiErrorDocument(Struct, frozen=True):
    """The body of each refusal of OpenAI's API."""

    error: OpenAiError


class Problem(Exception):
    """A refusal that code raises while it serves a request. A document with `retry_after` is sent with Retry-After."""

    def __init__(self, document: ProblemDocument, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(document.detail)
        self.document = document
        self.headers = dict(headers or {})
        if document.retry_after is not None:
            # whole seconds: the official Python client cannot read an HTTP date
            self.headers["Retry-After"] = str(document.retry_after)

    @property
    def status(self) -> int:
        return self.document.status

    @property
    def code(self) -> str:
        """Return the word by which logs and metrics name it."""
        return self.document.code or str(self.status)

    def response(self) -> Response:
        return Response(msgspec.json.encode(self.document), self.status, headers=self.headers, media_type=MEDIA_TYPE)


class Refusal(Struct, frozen=True):
    """One row of the table. Call it to get a Problem to raise; a row without `detail` needs one in the call."""

    status: int
    detail: str
    title: str | None = None
    code: Code | None = None
    headers: dict[str, str] = {}

    def __call__(self, detail: str = "", *, headers: Mapping[str, str] | None = None, **facts: Any) -> Problem:
        """The facts fill the row's words and the document's fields; `detail` and `headers` replace the row's."""
        soon = {"soon": span(facts["retry_after"])} if facts.get("retry_after") is not None else {}
        said = detail or self.detail.format(**facts, **soon)
        known = {name: fact for name, fact in facts.items() if name in ProblemDocument.__struct_fields__}
        document = ProblemDocument(title=self.title, detail=said, status=self.status, code=self.code, **known)
        own = {name: value.format(**facts) for name, value in self.headers.items()}
        return Problem(document, own if headers is None else headers)


def make_printable(text: str, limit: int = MAX_NAME) -> str:
    """Make untrusted text fit for one line of a response: replace unprintable characters, and cut a long text."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in cut)


# the newest official client retries a 409 unless this is sent
DO_NOT_RETRY: Final = {"x-should-retry": "false"}
UNAVAILABLE: Final = "Service unavailable"
THROTTLED: Final = "Capacity temporarily exceeded"
malformed = Refusal(400, "", "Malformed body", Code.MALFORMED)  # the body cannot be read at all
no_token = Refusal(
    401, "You did not pass an authentication token", "Unauthenticated", headers={"WWW-Authenticate": "Bearer"}
)
invalid_token = replace(no_token, detail="You did not pass a valid authentication token")
not_found = Refusal(404, "The requested resource could not be found.")  # the same for a prediction of another account
model_not_found = Refusal(  # of OpenAI's API. It names none: neither what was asked for, nor what is hidden
    404,
    "There is no such model, or this token may not use it. GET /openai/v1/models lists those that it may use.",
    code=Code.MODEL_NOT_FOUND,
)
file_not_found = Refusal(404, "File not found")
no_destination = Refusal(404, "The specified training destination does not exist")
forbidden = Refusal(403, "You do not have permission to do this.")
account_suspended = Refusal(  # the account may read and cancel, but not run anything
    403,
    "This account is suspended: {why}. Please ask the operator of this service.",
    "Account suspended",
    Code.ACCOUNT_SUSPENDED,
)
invalid_version = Refusal(  # 422 and not 404, and the same for unknown, malformed and not permitted
    422,
    "The specified version does not exist (or perhaps you don't have permission to use it?)",
    "Invalid version or not permitted",
)
invalid_host = Refusal(  # 400 and not 422, as RFC 9112 §3.2 asks
    400, "Host must be the name or address of this service", "Invalid header", Code.INVALID_HEADER
)
idempotency_mismatch = Refusal(
    422,
    "This Idempotency-Key was already used for a different request.",
    "Idempotency key reused",
    Code.IDEMPOTENCY_MISMATCH,
)
kind_not_served = Refusal(  # the version exists: its operator may start a director that runs this kind
    422, "No director ever ran a {kind} of this version.", "Not served", Code.KIND_NOT_SERVED
)
deployment_disabled = Refusal(  # what Replicate answers is not documented; some clients retry a 409 or a 429
    422,
    "The deployment {name} is disabled: it may have no instances. Raise max_instances to enable it.",
    "Deployment disabled",
    Code.DEPLOYMENT_DISABLED,
)
in_use = Refusal(422, "", "In use", Code.IN_USE)  # 422 and not 409, which some clients retry
method_not_allowed = Refusal(405, "This method is not allowed here.", code=Code.METHOD_NOT_ALLOWED)
account_exists = Refusal(
    409, "There is already an account of this name.", "Conflict", Code.ACCOUNT_EXISTS, DO_NOT_RETRY
)
model_exists = Refusal(409, "There is already a model of this name.", "Conflict", Code.ALREADY_EXISTS, DO_NOT_RETRY)
not_terminal = Refusal(
    409, "It has not ended yet: its webhook is sent once it has.", "Conflict", Code.NOT_TERMINAL, DO_NOT_RETRY
)
no_webhook = Refusal(409, "It was created without a webhook for its end.", "Conflict", Code.NO_WEBHOOK, DO_NOT_RETRY)
secrets_gone = Refusal(
    409,
    "It had secret inputs, which were removed at its end: its caller must create it again.",
    "Conflict",
    Code.SECRETS_GONE,
    DO_NOT_RETRY,
)
data_removed = Refusal(410, "Its input and output were removed: nothing is left to send.", "Gone", Code.DATA_REMOVED)
config_changed = Refusal(
    412,
    "It was changed since that revision: read it again, and decide again.",
    "Precondition failed",
    Code.CONFIG_CHANGED,
)
too_large = Refusal(
    413, "The body is too large: at most {limit:,} bytes are accepted", "Body too large", Code.TOO_LARGE
)
input_too_large = replace(
    too_large,
    detail="The body is too large: at most {limit:,} bytes are accepted. Upload its files, such as an image in "
    "messages, to /v1/files, and send their addresses instead.",
)
encoded_body = Refusal(415, "The body must come without a Content-Encoding.", code=Code.INVALID_HEADER)
file_too_large = Refusal(413, "Files must be less than 100MB in size", code=Code.TOO_LARGE)
head_too_large = Refusal(
    431,
    "The request line and headers are too large: at most {limit:,} bytes are accepted",
    "Headers too large",
    Code.TOO_LARGE,
)
too_many_batches = Refusal(
    429,
    f"The account has too many batches: {MOST_LIVE} may run, and {MOST:,} are kept. "
    "Please try again once some have ended.",
    code=Code.TOO_MANY_BATCHES,
)
# both close the connection: the rest of the body would be read as another request
too_slow = Refusal(
    408, "The body did not arrive within {seconds:g} seconds.", "Body too slow", Code.TOO_SLOW, {"Connection": "close"}
)
trickle = replace(too_slow, detail="The body comes with less than {bytes_s:,} bytes a second.")
no_such_part = Refusal(
    416,
    "The file has {size:,} bytes, and the Range asks for none of them.",
    headers={"Content-Range": "bytes */{size}"},
)
rate_limited = Refusal(429, "Request was throttled. Your rate limit resets in ~{reset_s}s.", code=Code.RATE_LIMITED)
compute_exhausted = Refusal(  # spent, or reserved for predictions that are not terminal
    429,
    "Request was throttled. Your {limit:,} seconds of compute a day are used up, and come back in about {soon}.",
    code=Code.COMPUTE_EXHAUSTED,
)
month_exhausted = Refusal(
    429,
    "Request was throttled. Your {limit:,} seconds of compute a month are used up, and come back in about {soon}.",
    code=Code.COMPUTE_EXHAUSTED,
)
tokens_exhausted = Refusal(  # used, or reserved for predictions that are not terminal
    429,
    "Request was throttled. Your {limit:,} tokens a {over} are used up. Please try again in about {soon}.",
    code=Code.TOKENS_EXHAUSTED,
)
credit_exhausted = Refusal(
    402,
    "You have insufficient credit: your {limit:,} seconds of compute are used up, or set aside for what has not "
    "ended yet. Please ask the operator of this service for more.",
    "Insufficient credit",
    Code.CREDIT_EXHAUSTED,
)
storage_full = Refusal(  # never 429: a short wait does not help
    402,
    "Your files, with those of outputs, may take {limit:,} bytes, and there is no room for more. Please delete "
    "some, wait until some expire, or ask the operator of this service for more.",
    "Storage full",
    Code.STORAGE_FULL,
)
input_over_data = Refusal(
    413,
    "The input is larger than all that the predictions of this account may take: {limit:,} bytes.",
    "Storage full",
    Code.DATA_FULL,
)
no_room_for_file = replace(storage_full, status=413)
unusable_schema = Refusal(  # `reason` completes 'it …': the model's operator must correct its schema
    500, "The schema of this model cannot be used: it {reason}.", "Unusable model schema", Code.UNUSABLE_SCHEMA
)
internal = Refusal(500, "Something went wrong on the server.", "Internal server error", Code.INTERNAL)
no_files = Refusal(
    501,
    "This service stores no files: give an http, https or data URI as the input instead.",
    "Not implemented",
    Code.NOT_IMPLEMENTED,
)
newer_release = Refusal(
    501,
    "A newer release wrote it in a form that this one does not know: ask that one, or write it again.",
    "Not implemented",
    Code.NOT_IMPLEMENTED,
)
# 5xx, since the JavaScript client then sends a data URI instead
file_not_stored = Refusal(503, "The file could not be stored. Please try again.", UNAVAILABLE, Code.UNAVAILABLE)
too_many_uploads = Refusal(
    503, "Too many files are uploaded now. Please try again.", UNAVAILABLE, Code.TOO_MANY_UPLOADS
)
# nothing is lost by coming later: a stream begins at its start
too_many_connections = Refusal(
    503,
    "There are too many connections, of all callers or of your address. Please try again.",
    UNAVAILABLE,
    Code.TOO_MANY_CONNECTIONS,
)
too_many_calls = Refusal(
    503, "Too many calls wait for their answers now. Please try again.", UNAVAILABLE, Code.TOO_MANY_CALLS
)
too_many_streams = Refusal(
    503, "Too many event streams are read now. Please try again.", UNAVAILABLE, Code.TOO_MANY_STREAMS
)
unavailable = Refusal(  # the request may have been carried out, because a reply of Redis may be lost
    503,
    "The service cannot answer now. Please try again. A prediction may have been accepted all the same: "
    "where the request has an Idempotency-Key, repeating it makes no second one.",
    UNAVAILABLE,
    Code.UNAVAILABLE,
)
leaving = Refusal(503, "This process of the service ends. Please try again.", UNAVAILABLE, Code.UNAVAILABLE)
memory_full = Refusal(
    503,
    "The memory of this service is full, so it accepts nothing new now. Its operator must give it more, or data must "
    "expire. Reads and cancels work. Please try again.",
    UNAVAILABLE,
    Code.MEMORY_FULL,
)
was_moved = Refusal(
    503,
    "It was moved to another site of this service, which answers for it. Please ask there, or again later.",
    "Moved",
    Code.MOVED,
)
# refusals of a queue or an API process that takes no more, by code
QUEUE_REFUSALS: Final = {
    Code.QUEUE_FULL: Refusal(429, THROTTLED, code=Code.QUEUE_FULL),
    Code.NO_CAPACITY: Refusal(429, THROTTLED, code=Code.NO_CAPACITY),
    Code.TOO_MANY_QUEUED: Refusal(
        429, "Too many predictions of this account are waiting for this model.", code=Code.TOO_MANY_QUEUED
    ),
    Code.DATA_FULL: Refusal(
        429,
        "The data of this account may take {limit:,} bytes, and takes {used:,}: its predictions, waiting and ended, "
        "files, models and deployments. Predictions and files expire, and the others stay until they are deleted. "
        "Please try again in about {soon}.",
        code=Code.DATA_FULL,
    ),
    Code.MEMORY_SHORT: Refusal(  # 429: clients of Replicate try again
        429,
        "The memory of this service is short, and the data of this account takes {used:,} bytes of it: "
        "its share is {limit:,} now. Please try again in about {soon}.",
        code=Code.MEMORY_SHORT,
    ),
    Code.CANNOT_START_IN_TIME: Refusal(
        429, "It would not start in the time that X-Start-By allows.", code=Code.CANNOT_START_IN_TIME
    ),
    Code.TOO_MANY_CALLS: too_many_calls,
    Code.TOO_MANY_STREAMS: too_many_streams,
    Code.UNAVAILABLE: leaving,
    Code.BREAKER_OPEN: Refusal(
        503, "The servers of this model fail at the moment. Please try again later.", code=Code.BREAKER_OPEN
    ),
}
WHY_SUSPENDED: Final[Mapping[Reason, str]] = {
    "unpaid": "its bills are unpaid",
    "abuse": "it was used against the rules of this service",
    "security": "its tokens may be in the wrong hands",
    "asked": "its owner asked for it",
    "review": "it is being looked into",
}


def invalid_input(fields: Iterable[InvalidField]) -> Problem:
    """422 with the first twenty wrong fields of a body, in `detail` too."""
    first = tuple(
        InvalidField(field.type, make_printable(field.field), make_printable(field.description, MAX_DESCRIPTION))
        for field, _ in zip(fields, range(MAX_INVALID_FIELDS), strict=False)
    )
    # the whole body has no name, and Replicate writes no colon then: `- version is required`
    said = [f"{field.field}: {field.description}" if field.field else field.description for field in first]
    detail = "".join(f"- {one}\n" for one in said)
    return Refusal(422, "", "Input validation failed")(detail, invalid_fields=first)


def invalid_field(kind: str, field: str, description: str) -> Problem:
    return invalid_input([InvalidField(kind, field, description)])


def invalid_header(name: str, expected: str) -> Problem:
    """422. `expected` completes the sentence 'Cancel-After must be …'."""
    return Refusal(422, "{name} must be {expected}", "Invalid header", Code.INVALID_HEADER)(
        name=name, expected=expected
    )


class Moved(Problem):
    """The prediction moved to the server `to` with its queue. If that is one of our sites, the request goes there."""

    def __init__(self, to: str) -> None:
        super().__init__(was_moved(retry_after=MOVED_RETRY_S).document)
        self.to = to


# The refusal of each exception. The log has the internal error; the response never shows it.


def _of_starlette(exc: HTTPException) -> Problem:
    if exc.status_code == method_not_allowed.status:
        allowed = (exc.headers or {}).get("Allow", "").split(", ")
        return method_not_allowed(headers={"Allow": ", ".join(sorted(allowed))})
    # the framework's own detail may quote the request, so only the status's name is shown
    return Refusal(exc.status_code, HTTPStatus(exc.status_code).phrase)(headers=exc.headers or {})


def _of_backend(exc: BackendUnavailable) -> Problem:
    log.warning("request refused: backend unavailable", extra={"reason": str(exc)})
    return unavailable(retry_after=exc.retry_after_s)


def _of_full(exc: BackendFull) -> Problem:
    log.warning("request refused: Redis is full")
    return memory_full(retry_after=exc.retry_after_s)


PROBLEMS: Final[Mapping[Any, Callable[[Any], Problem]]] = {
    Problem: lambda problem: problem,
    HTTPException: _of_starlette,
    BackendFull: _of_full,
    BackendUnavailable: _of_backend,
    UnknownModel: lambda _: not_found(),
    UnknownQueue: lambda _: invalid_version(),
    IdempotencyMismatch: lambda _: idempotency_mismatch(),
    DataRefused: lambda exc: QUEUE_REFUSALS[Code(exc.code)](
        limit=exc.limit, used=exc.used, retry_after=exc.retry_after_s
    ),
    QueueRefused: lambda exc: QUEUE_REFUSALS[Code(exc.code)](
        limit=exc.limit, eta_s=exc.eta_s, retry_after=exc.retry_after_s
    ),
    ClientDisconnect: lambda _: malformed("The request ended before its body did."),
    # raised again once this was sent, so that the server logs the traceback
    Exception: lambda _: internal(),
}
EXPECTED: Final = tuple(kind for kind in PROBLEMS if kind is not Exception)


def is_expected(exc: Exception) -> bool:
    return isinstance(exc, EXPECTED)


def problem_of(exc: Exception) -> Problem:
    return next(refuse(exc) for kind, refuse in PROBLEMS.items() if isinstance(exc, kind))
