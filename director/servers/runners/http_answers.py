"""Decide how a run ended from the HTTP answer of a model server.

Pure, and never raises for what a server wrote.
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw, Struct

from director.core.json_pointer import Pointer
from director.core.runner_config import HttpConfig, PollingConfig
from director.servers.runners.runner import Ended, Outcome
from director.servers.runners.untrusted import (
    NO_ENTRY,
    WRONG_KEY,
    Unreadable,
    excerpt,
    locked,
    one_line,
    read_json,
    reason,
    seconds,
)

# The outcome of an answer other than 2xx. A status in no row is FAILED: 3xx and 4xx would be the same again, and 5xx is
# how most servers report that the model's own code raised
OUTCOMES: Final[dict[int, Outcome]] = {
    400: Outcome.INVALID,
    408: Outcome.LOST,
    409: Outcome.REFUSED,
    413: Outcome.INVALID,
    415: Outcome.INVALID,
    422: Outcome.INVALID,
    429: Outcome.REFUSED,
    502: Outcome.LOST,
    503: Outcome.REFUSED,
    504: Outcome.LOST,
}
NULL: Final = Raw(b"null")
# Values in the place of an error that mean no error
NO_ERROR: Final = frozenset({b"null", b"false", b"0", b'""', b"{}", b"[]"})
# Media types of answers that are the output itself. Never text: a page about an error is not an output
FILE: Final = re.compile(
    r"(?:image|audio|video|model|font)/[a-z0-9][a-z0-9.+_-]{0,63}|application/(?:octet-stream|pdf|zip)"
)


class Answer(Struct, frozen=True, kw_only=True):
    """An answer as received. `complete`: False if its body is longer than what was read.

    `headers` by their names in lower case.
    """

    status: int
    body: bytes = b""
    complete: bool = True
    retry_after: str | None = None
    content_type: str = ""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The media type without parameters."""
        return self.content_type.partition(";")[0].strip().lower()

    @property
    def is_file(self) -> bool:
        """True if the body itself is the output, not JSON with an output in it."""
        return self.is_ok and self.complete and FILE.fullmatch(self.kind) is not None

    @property
    def is_ok(self) -> bool:
        return 200 <= self.status < 300


def refused(answer: Answer, *, error: Pointer | None = None) -> Ended:
    """Return the end of a run that was answered with anything but 2xx."""
    if answer.status in NO_ENTRY:
        return locked(answer.status)
    said = said_of(answer, error=error)
    outcome = OUTCOMES.get(answer.status, Outcome.FAILED)
    words = one_line(said) if outcome is Outcome.INVALID and said else f"The model server answered {answer.status}"
    return Ended(
        outcome=outcome,
        error=words if outcome is Outcome.INVALID or not said else f"{words}: {one_line(said)}",
        retry_after_s=seconds(answer.retry_after),
    )


def said_of(answer: Answer, *, error: Pointer | None = None) -> str:
    """Return the reason that an answer other than 2xx gives; '' if none."""
    return WRONG_KEY if answer.status in NO_ENTRY else _error_at(answer.body, error) or reason(answer.body)


def file_end(answer: Answer) -> Ended:
    """Return the end of a run whose answer is a file: a data URI, which is stored where files are."""
    return Ended(
        outcome=Outcome.SUCCEEDED, output=Raw(b'"data:%b;base64,%b"' % (answer.kind.encode(), b64encode(answer.body)))
    )


def too_large(max_body: int) -> Ended:
    """Return the end of a run whose answer is too large. The same input would give as much again."""
    return Ended(outcome=Outcome.FAILED, error=f"The model's output is larger than {max_body} bytes")


def read_document(body: bytes) -> Raw:
    """Return the JSON of an answer. Raises `Unreadable`."""
    return Raw(bytes(read_json(body, Raw)))


def mapped_end(document: Raw, config: HttpConfig | PollingConfig) -> Ended:
    """Return the end of a successful run: what its answer holds where the configuration points to."""
    output = config.output.find(document)
    if output is None:
        where = config.output.text
        return Ended(outcome=Outcome.FAILED, error=f"The model server's answer has nothing at {where}")
    found = {name: pointer.find(document) for name, pointer in config.metrics.items()}
    metrics = {name: value for name, value in found.items() if value is not None and value != NULL}
    return Ended(outcome=Outcome.SUCCEEDED, output=output, metrics=metrics)


def mapped_error(document: Raw, error: Pointer | None) -> str:
    """Return the error in an answer where the configuration points to; '' without one."""
    found = error.find(document) if error is not None else None
    if found is None or bytes(found) in NO_ERROR:
        return ""
    try:
        return one_line(read_json(bytes(found), str))
    except Unreadable:
        return excerpt(bytes(found))


def _error_at(body: bytes, error: Pointer | None) -> str:
    try:
        return mapped_error(read_document(body), error)
    except Unreadable:
        return ""
