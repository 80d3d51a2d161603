"""Refuse in the shape of OpenAI's API: what is refused is the same as elsewhere. OpenAI's clients turn the status into
their exceptions, and repeat 408, 409, 429 and from 500 on twice by themselves, unless `x-should-retry` is `false`. They
wait as `retry-after` says if that is at most a minute, else for seconds.
"""

from typing import Final

import msgspec
from msgspec import Struct
from starlette.responses import Response

from api.web.errors import Code, OpenAiError, OpenAiErrorDocument, Problem, model_not_found, problem_of
from api.web.route import OPENAI_STATUSES
from director.core.errors import UnknownModel, UnknownQueue

MEDIA_TYPE: Final = "application/json"
LONGEST_RETRY_S: Final = 60  # clients do not wait longer than this between two tries
NO_RETRY: Final = {"x-should-retry": "false"}


class Row(Struct, frozen=True, kw_only=True):
    """How a code is said to OpenAI's clients, where that differs from the table of statuses."""

    status: int | None = None
    type: str = ""
    code: str = ""
    may_retry: bool = True


TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
REQUEST: Final = "invalid_request_error"  # other statuses below 500
SERVER: Final = "server_error"  # others
QUOTA: Final = Row(status=429, type="insufficient_quota", code="insufficient_quota", may_retry=False)
ROWS: Final = {
    "401": Row(code="invalid_api_key"),
    Code.RATE_LIMITED: Row(code="rate_limit_exceeded"),
    Code.CREDIT_EXHAUSTED: QUOTA,
    Code.STORAGE_FULL: QUOTA,
    Code.IDEMPOTENCY_MISMATCH: Row(status=422),
    Code.CANNOT_START_IN_TIME: Row(status=503),
    Code.UNUSABLE_SCHEMA: Row(may_retry=False),
}
PLAIN: Final = Row()


def describe(problem: Problem) -> tuple[int, OpenAiError]:
    """Return the status and the error that OpenAI's clients get for this refusal."""
    document = problem.document
    row = ROWS.get(problem.code, PLAIN)
    status = row.status or OPENAI_STATUSES.get(document.status, document.status)
    fields = document.invalid_fields
    message = "; ".join(f"{each.field}: {each.description}" if each.field else each.description for each in fields)
    error = OpenAiError(
        message=message or document.detail,
        type=row.type or find_type(status),
        param=next((each.field for each in fields if each.field), None),
        code=row.code or document.code,
    )
    return status, error


def find_type(status: int) -> str:
    return TYPES.get(status, REQUEST if status < 500 else SERVER)


def refuse(exc: Exception) -> Problem:
    """Return the refusal of an exception. A version that was deleted in between is as an unknown model."""
    return model_not_found() if isinstance(exc, UnknownModel | UnknownQueue) else problem_of(exc)


def answer(problem: Problem) -> Response:
    """Return the response of a refusal."""
    status, error = describe(problem)
    headers = dict(problem.headers)
    after_s = problem.document.retry_after
    if after_s is not None:
        headers["retry-after-ms"] = str(after_s * 1000)
    if not ROWS.get(problem.code, PLAIN).may_retry or (after_s is not None and after_s > LONGEST_RETRY_S):
        headers |= NO_RETRY
    return Response(encode(error), status, headers=headers, media_type=MEDIA_TYPE)


def encode(error: OpenAiError) -> bytes:
    return msgspec.json.encode(OpenAiErrorDocument(error))
