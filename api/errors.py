"""What a refusal of the API is: its codes, and its shape (RFC 7807, as Replicate's clients read it).

Never says why: `api/errors.py` has the words of each.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from director.core.errors import BackendUnavailable, IdempotencyMismatch, QueueRefused, UnknownQueue
from director.store.accounts import Reason

MEDIA_TYPE: Final = "application/problem+json"
MAX_INVALID_FIELDS: Final = 20
MAX_NAME: Final = 100
MAX_DESCRIPTION: Final = 500


class Code(StrEnum):
    """What a program may branch on. A closed set: a new one is a new promise."""

    ACCOUNT_EXISTS = "account_exists"
    ACCOUNT_SUSPENDED = "account_suspended"
    ALREADY_EXISTS = "already_exists"
    BREAKER_OPEN = "breaker_open"
    CANNOT_START_IN_TIME = "cannot_start_in_time"
    COMPUTE_EXHAUSTED = "compute_exhausted"
    CONFIG_CHANGED = "config_changed"
    CREDIT_EXHAUSTED = "credit_exhausted"
    DATA_REMOVED = "data_removed"
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
    INTERNAL = "internal"
    IN_USE = "in_use"
    INVALID_HEADER = "invalid_header"
    KIND_NOT_SERVED = "kind_not_served"
    MALFORMED = "malformed"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    MOVED = "moved"
    NO_CAPACITY = "no_capacity"
    NO_WEBHOOK = "no_webhook"
    NOT_IMPLEMENTED = "not_implemented"
    NOT_TERMINAL = "not_terminal"
    QUEUE_FULL = "queue_full"
    RATE_LIMITED = "rate_limited"
    STORAGE_FULL = "storage_full"
    TOO_LARGE = "too_large"
    TOO_MANY_QUEUED = "too_many_queued"
    TOO_MANY_STREAMS = "too_many_streams"
    TOO_MANY_UPLOADS = "too_many_uploads"
    TOO_SLOW = "too_slow"
    UNAVAILABLE = "unavailable"
    UNUSABLE_SCHEMA = "unusable_schema"


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


class Problem(Exception):
    """The caller is refused: raise it anywhere above the queue, and this is the answer."""

    def __init__(self, document: ProblemDocument, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(document.detail)
        self.document = document
        self.headers = dict(headers or {})

    @property
    def status(self) -> int:
        return self.document.status

    def response(self) -> Response:
        return Response(msgspec.json.encode(self.document), self.status, headers=self.headers, media_type=MEDIA_TYPE)


def shown(text: str, limit: int = MAX_NAME) -> str:
    """A stranger's text, fit for one line of an answer: what does not print is replaced, what is long is cut."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in cut)


def problem(status: int, detail: str, *, headers: Mapping[str, str] | None = None, **facts: Any) -> Problem:
    """A refusal of this status and these words, with other facts of the document."""
    return Problem(ProblemDocument(status=status, detail=detail, **facts), headers)


def retry_after(seconds: int) -> dict[str, str]:
    """The header that says when to come again."""
    # whole seconds: the official Python client cannot read an HTTP date
    return {"Retry-After": str(seconds)}


# Own every refusal of the API: its HTTP status and its words.
#
# Never repeats what a caller sent, save the names of fields, shortened; never shows what went wrong inside.
# Where Replicate's body for an error is known, it is kept to the letter; every other one carries a `code`.

MOVED_RETRY_S: Final = 5  # callers are sent to the other site by whoever moves its queues
DO_NOT_RETRY: Final = {"x-should-retry": "false"}  # the newest official client takes a 409 for a passing one


def malformed(detail: str) -> Problem:
    """The body cannot be read at all."""
    return problem(400, detail, title="Malformed body", code=Code.MALFORMED)


def unauthenticated(*, passed: bool) -> Problem:
    """No token, or one that names no account. `passed`: was there an Authorization header?"""
    token = "a valid authentication token" if passed else "an authentication token"
    return problem(401, f"You did not pass {token}", title="Unauthenticated", headers={"WWW-Authenticate": "Bearer"})


def forbidden(detail: str = "You do not have permission to do this.") -> Problem:
    return problem(403, detail)


WHY_SUSPENDED: Final[Mapping[Reason, str]] = {
    "unpaid": "its bills are unpaid",
    "abuse": "it was used against the rules of this service",
    "security": "its tokens may be in the wrong hands",
    "asked": "its owner asked for it",
    "review": "it is being looked into",
}


def account_suspended(reason: Reason) -> Problem:
    """It may look, and cancel, but have nothing run."""
    detail = f"This account is suspended: {WHY_SUSPENDED[reason]}. Please ask whoever runs this service."
    return problem(403, detail, title="Account suspended", code=Code.ACCOUNT_SUSPENDED)


def not_found() -> Problem:
    """Unknown, or another account's: the two must look the same."""
    return problem(404, "The requested resource could not be found.")


def method_not_allowed(headers: Mapping[str, str] | None = None) -> Problem:
    return problem(405, "This method is not allowed here.", code=Code.METHOD_NOT_ALLOWED, headers=headers)


def no_such_part(size: int) -> Problem:
    """Of a file of so many bytes."""
    detail = f"The file has {size:,} bytes, and the Range asks for none of them."
    return problem(416, detail, headers={"Content-Range": f"bytes */{size}"})


def too_large(max_bytes: int) -> Problem:
    detail = f"The body is too large: at most {max_bytes:,} bytes are accepted"
    return problem(413, detail, title="Body too large", code=Code.TOO_LARGE, limit=max_bytes)


def head_too_large(max_bytes: int) -> Problem:
    detail = f"The request line and headers are too large: at most {max_bytes:,} bytes are accepted"
    return problem(431, detail, title="Headers too large", code=Code.TOO_LARGE, limit=max_bytes)


def too_slow(seconds: float) -> Problem:
    """The body did not come. What of it still comes would be read as another request, so the connection ends."""
    detail = f"The body did not arrive within {seconds:g} seconds."
    return problem(408, detail, title="Body too slow", code=Code.TOO_SLOW, headers={"Connection": "close"})


def trickled(bytes_s: int) -> Problem:
    """The body comes, and would keep others from their turn for a quarter of an hour."""
    detail = f"The body comes with less than {bytes_s:,} bytes a second."
    return problem(408, detail, title="Body too slow", code=Code.TOO_SLOW, headers={"Connection": "close"})


def invalid_version() -> Problem:
    """422 and not 404, as on Replicate. The same for unknown, malformed and not permitted."""
    return problem(
        422,
        "The specified version does not exist (or perhaps you don't have permission to use it?)",
        title="Invalid version or not permitted",
    )


def invalid_input(fields: Iterable[InvalidField]) -> Problem:
    """Some of a body's fields are wrong. Says the first twenty, in `detail` too."""
    first = tuple(
        InvalidField(field.type, shown(field.field), shown(field.description, MAX_DESCRIPTION))
        for field, _ in zip(fields, range(MAX_INVALID_FIELDS), strict=False)
    )
    detail = "".join(f"- {field.field}: {field.description}\n" for field in first)
    return problem(422, detail, title="Input validation failed", invalid_fields=first)


def invalid_header(name: str, wanted: str) -> Problem:
    """`wanted` finishes the sentence 'Cancel-After must be …'."""
    return problem(422, f"{name} must be {wanted}", title="Invalid header", code=Code.INVALID_HEADER)


def invalid_host() -> Problem:
    """400 and not 422, as RFC 9112 §3.2 asks."""
    detail = "Host must be the name or address of this service"
    return problem(400, detail, title="Invalid header", code=Code.INVALID_HEADER)


def file_not_found() -> Problem:
    """Unknown, expired, or another account's: all look the same. Replicate's words."""
    return problem(404, "File not found")


def file_too_large(max_bytes: int) -> Problem:
    """Replicate's words."""
    return problem(413, "Files must be less than 100MB in size", code=Code.TOO_LARGE, limit=max_bytes)


def file_not_stored(retry_after_s: int) -> Problem:
    """The store failed. 5xx, since the JavaScript client then sends a data URI instead."""
    return problem(
        503,
        "The file could not be stored. Please try again.",
        title="Service unavailable",
        code=Code.UNAVAILABLE,
        retry_after=retry_after_s,
        headers=retry_after(retry_after_s),
    )


def too_many_uploads(retry_after_s: int) -> Problem:
    """As many files come in as this process takes at once, and none of them ended in time."""
    return problem(
        503,
        "Too many files are uploaded now. Please try again.",
        title="Service unavailable",
        code=Code.TOO_MANY_UPLOADS,
        retry_after=retry_after_s,
        headers=retry_after(retry_after_s),
    )


def kind_not_served(kind: str) -> Problem:
    """The version is there, and nobody runs such requests of it: its operator may start a director that does."""
    return problem(
        422,
        f"No director ever ran a {kind} of this version.",
        title="Not served",
        code=Code.KIND_NOT_SERVED,
    )


def no_destination() -> Problem:
    """Unknown, malformed, or not the caller's to add a version to. Replicate's words."""
    return problem(404, "The specified training destination does not exist")


def no_files() -> Problem:
    return problem(
        501,
        "This service stores no files: give an http, https or data URI as the input instead.",
        title="Not implemented",
        code=Code.NOT_IMPLEMENTED,
    )


def newer_release() -> Problem:
    return problem(
        501,
        "A newer release wrote it, in words that this one does not know: ask that one, or write it anew.",
        title="Not implemented",
        code=Code.NOT_IMPLEMENTED,
    )


def already_exists(what: str, *, code: Code = Code.ALREADY_EXISTS) -> Problem:
    """`what` finishes 'There is already …'."""
    return problem(409, f"There is already {what}.", title="Conflict", code=code, headers=DO_NOT_RETRY)


def in_use(detail: str) -> Problem:
    """It cannot be taken away as it stands. 422 and not 409, which some clients send again."""
    return problem(422, detail, title="In use", code=Code.IN_USE)


def not_terminal(detail: str = "It has not ended yet: its webhook is sent when it has.") -> Problem:
    return problem(409, detail, title="Conflict", code=Code.NOT_TERMINAL, headers=DO_NOT_RETRY)


def account_exists() -> Problem:
    return already_exists("an account of this name", code=Code.ACCOUNT_EXISTS)


def config_changed() -> Problem:
    detail = "It was changed since that revision: read it again, and decide anew."
    return problem(412, detail, title="Precondition failed", code=Code.CONFIG_CHANGED)


def no_webhook() -> Problem:
    return problem(
        409,
        "It was made without a webhook that is told of its end.",
        title="Conflict",
        code=Code.NO_WEBHOOK,
        headers=DO_NOT_RETRY,
    )


def data_removed() -> Problem:
    """What would be shown or sent is not what it was any more."""
    return problem(
        410, "Its input and output were removed: there is nothing left to tell.", title="Gone", code=Code.DATA_REMOVED
    )


def idempotency_mismatch() -> Problem:
    return problem(
        422,
        "This Idempotency-Key was already used for a different request.",
        title="Idempotency key reused",
        code=Code.IDEMPOTENCY_MISMATCH,
    )


def internal() -> Problem:
    """A fault of ours. The log has the traceback; the answer has nothing of it."""
    return problem(500, "Something went wrong on the server.", title="Internal server error", code=Code.INTERNAL)


def unusable_schema(reason: str) -> Problem:
    """The model's own schema is at fault: whoever runs the model must mend it. `reason` finishes 'it …'."""
    return problem(
        500,
        f"The schema of this model cannot be used: it {reason}.",
        title="Unusable model schema",
        code=Code.UNUSABLE_SCHEMA,
    )


class Moved(Problem):
    """`to`: what the other server is called. Where it is one of ours, it is asked instead."""

    def __init__(self, to: str) -> None:
        told = problem(
            503,
            "It was moved to another site of this service, which answers for it. Please ask there, or again later.",
            title="Moved",
            code=Code.MOVED,
            retry_after=MOVED_RETRY_S,
            headers=retry_after(MOVED_RETRY_S),
        )
        super().__init__(told.document, told.headers)
        self.to = to


def moved(to: str) -> Moved:
    """It moved to another Redis server with its queue, and waits, runs or has ended there."""
    return Moved(to)


def unavailable(retry_after_s: int) -> Problem:
    """The store behind the API cannot answer now. What was asked of it may have been done: a reply may be lost."""
    return problem(
        503,
        "The service cannot answer now. Please try again. A prediction may have been accepted all the same: "
        "where the request has an Idempotency-Key, repeating it makes no second one.",
        title="Service unavailable",
        code=Code.UNAVAILABLE,
        retry_after=retry_after_s,
        headers=retry_after(retry_after_s),
    )


def too_many_streams(retry_after_s: int) -> Problem:
    """As many are read as this process can serve. Nothing is lost by coming later: a stream begins at its start."""
    return problem(
        503,
        "Too many event streams are read now. Please try again.",
        title="Service unavailable",
        code=Code.TOO_MANY_STREAMS,
        retry_after=retry_after_s,
        headers=retry_after(retry_after_s),
    )


def rate_limited(burst: int, *, retry_after_s: int, reset_s: int) -> Problem:
    """Too many requests at once. Replicate's words; `retry_after_s` is when there is room for one again."""
    return problem(
        429,
        f"Request was throttled. Your rate limit resets in ~{max(reset_s, retry_after_s)}s.",
        code=Code.RATE_LIMITED,
        limit=burst,
        retry_after=retry_after_s,
        headers=retry_after(retry_after_s),
    )


def compute_exhausted(seconds: int, *, retry_after_s: int) -> Problem:
    """The account's compute of the day is spent, or reserved by what has not ended."""
    return problem(
        429,
        f"Request was throttled. Your {seconds:,} seconds of compute a day are used up, and come back "
        f"in ~{retry_after_s}s.",
        code=Code.COMPUTE_EXHAUSTED,
        limit=seconds,
        retry_after=retry_after_s,
        headers=retry_after(retry_after_s),
    )


def credit_exhausted(seconds: int) -> Problem:
    """All that the account may ever spend is spent, or reserved by what has not ended. Title and status Replicate's."""
    return problem(
        402,
        f"You have insufficient credit: your {seconds:,} seconds of compute are used up, or set aside for what has not "
        "ended yet. Please ask whoever runs this service for more.",
        title="Insufficient credit",
        code=Code.CREDIT_EXHAUSTED,
        limit=seconds,
    )


def storage_full(status: int, limit: int) -> Problem:
    """The account keeps as many bytes of files as it may. Not 429: it does not pass by waiting a moment."""
    return problem(
        status,
        f"Your files, with those of outputs, may take {limit:,} bytes, and there is no room for more. Please delete "
        "some, wait until some expire, or ask whoever runs this service for more.",
        title="Storage full",
        code=Code.STORAGE_FULL,
        limit=limit,
    )


REFUSALS: Final[Mapping[Code, tuple[int, str]]] = {
    Code.QUEUE_FULL: (429, "Capacity temporarily exceeded"),
    Code.NO_CAPACITY: (429, "Capacity temporarily exceeded"),
    Code.TOO_MANY_QUEUED: (429, "Too many predictions of this account are waiting for this model."),
    Code.CANNOT_START_IN_TIME: (429, "It would not start in the time that X-Start-By allows."),
    Code.BREAKER_OPEN: (503, "The servers of this model fail at the moment. Please try again later."),
}


def queue_refused(exc: QueueRefused) -> Problem:
    """The queue takes no more of this now, and wrote nothing."""
    code = Code(exc.code)
    status, detail = REFUSALS[code]
    facts = {"limit": exc.limit, "eta_s": exc.eta_s, "retry_after": exc.retry_after_s}
    return problem(status, detail, code=code, headers=retry_after(exc.retry_after_s), **facts)


# What a caller is told of each error that a handler may raise.
#
# Never shows what went wrong inside: the log has it.

log = logging.getLogger(__name__)


def _of_starlette(exc: HTTPException) -> Problem:
    # the framework's own detail may quote the request, so only the status's name is said
    return problem(exc.status_code, HTTPStatus(exc.status_code).phrase, headers=exc.headers)


def _of_backend(exc: BackendUnavailable) -> Problem:
    log.warning("request refused: backend unavailable", extra={"reason": str(exc)})
    return unavailable(exc.retry_after_s)


PROBLEMS: Final[Mapping[Any, Callable[[Any], Problem]]] = {
    Problem: lambda problem: problem,
    HTTPException: _of_starlette,
    BackendUnavailable: _of_backend,
    UnknownQueue: lambda _: invalid_version(),
    IdempotencyMismatch: lambda _: idempotency_mismatch(),
    QueueRefused: queue_refused,
    ClientDisconnect: lambda _: malformed("The request ended before its body did."),
    # raised again once this was sent, so that the server logs the traceback
    Exception: lambda _: internal(),
}
EXPECTED: Final = tuple(kind for kind in PROBLEMS if kind is not Exception)


def is_expected(exc: Exception) -> bool:
    """May a handler raise this, or is it a fault of ours?"""
    return isinstance(exc, EXPECTED)


def problem_of(exc: Exception) -> Problem:
    """What a caller is told of this."""
    return next(tell(exc) for kind, tell in PROBLEMS.items() if isinstance(exc, kind))
