"""What a refusal of the API is: its codes, and its shape (RFC 7807, as Replicate's clients read it).

Never says why: `api/refusals.py` has the words of each.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.responses import Response

__all__ = (
    "MAX_INVALID_FIELDS",
    "Code",
    "InvalidField",
    "Problem",
    "ProblemDocument",
    "problem",
    "retry_after",
    "shown",
)

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
