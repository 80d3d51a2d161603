"""Read the lines of a batch's input, and write those of its output. Pure, and bounded whatever a line holds."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from api.batches.targets import Target, read_target, replicate_may_have
from api.openai.errors import describe
from api.web.errors import Problem
from api.web.http import decode_json
from director.core.ids import FileId
from director.core.nesting import MOST_LEVELS, is_deeper

MOST_LINES: Final = 50_000
LONGEST_ID: Final = 512
ENVELOPE_BYTES: Final = 16 << 10  # of a line beside its body
BREAKS: Final = re.compile(rb"[\r\n]")
BLANK: Final = b" \t\r"


class Line(Struct, frozen=True):
    """A line that is not blank. `number` counts these from 0, and `place` all lines from 1. `at` is its first byte, and
    `end` that of the next line. `text` is None if it is too long: it was not read.
    """

    number: int
    place: int
    at: int
    end: int
    text: bytes | None


class Splitter:
    """Cut blocks of a file into lines. It holds no more than one block and one line of `longest` bytes."""

    def __init__(self, *, number: int, at: int, longest: int) -> None:
        self._number = number
        self._place = 0
        self._at = at
        self._longest = longest
        self._left = bytearray()
        self._dropped = 0  # bytes of a line that is too long

    @property
    def place(self) -> int:
        """Return how many lines there were, with blank ones."""
        return self._place

    def feed(self, block: bytes) -> list[Line]:
        """Return the lines that end in this block."""
        first, *rest = block.split(b"\n")
        found = list[Line]()
        for following in rest:
            found += self._end(first)
            first = following
        self._keep(first)
        return found

    def close(self) -> list[Line]:
        """Return the last line, if it ends without a line break."""
        return list(self._end(b"")) if self._left or self._dropped else []

    def _keep(self, piece: bytes) -> None:
        if self._dropped or len(self._left) + len(piece) > self._longest:
            self._dropped += len(self._left) + len(piece)
            self._left.clear()
        else:
            self._left += piece

    def _end(self, piece: bytes) -> Iterator[Line]:
        self._keep(piece)
        self._place += 1
        size = self._dropped or len(self._left)
        text = None if self._dropped else bytes(self._left)
        if text is None or text.strip(BLANK):
            yield Line(self._number, self._place, self._at, self._at + size + 1, text)
            self._number += 1
        self._at += size + 1
        self._left.clear()
        self._dropped = 0


class BatchFault(Struct, frozen=True, kw_only=True):
    """A fault of a line. `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BadLine(Exception):
    """A line cannot be run."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param

    def fault(self, line: int) -> BatchFault:
        return BatchFault(code=self.code, message=str(self), param=self.param, line=line)


class Call(Struct, frozen=True):
    """A line that was read."""

    custom_id: str
    target: Target


def read_call(text: bytes | None, *, endpoint: str, max_body_bytes: int) -> Call:
    """Read a line. Raises BadLine."""
    if text is None:
        raise BadLine("line_too_long", f"A line has a body of at most {max_body_bytes:,} bytes.")
    try:
        members = decode_json(text, dict[str, Raw])
    except Problem as exc:
        raise BadLine("invalid_json_line", f"This line is no JSON object: {exc.document.detail}") from exc
    custom_id, method, url = (_text(members, name) for name in ("custom_id", "method", "url"))
    if not 0 < len(custom_id) <= LONGEST_ID:
        raise BadLine("invalid_custom_id", f"custom_id has 1 to {LONGEST_ID} characters.", "custom_id")
    if method != "POST":
        raise BadLine("invalid_method", "method is POST.", "method")
    if url != endpoint and not replicate_may_have(endpoint, url):
        raise BadLine("invalid_url", f"url is the endpoint of the batch: {endpoint}", "url")
    body = bytes(members.get("body", b""))
    if not body.startswith(b"{"):
        raise BadLine("invalid_request", "body is a JSON object.", "body")
    if len(body) > max_body_bytes:
        raise BadLine("line_too_long", f"A line has a body of at most {max_body_bytes:,} bytes.", "body")
    try:
        return Call(custom_id, read_target(url, body))
    except Problem as exc:
        raise bad_line_of(exc) from exc


def bad_line_of(problem: Problem) -> BadLine:
    """Say a refusal of a body as that of its line."""
    _, error = describe(problem)
    param = f"body.{error.param}" if error.param else "body"
    return BadLine(error.code or "invalid_request", error.message.strip(), param)


def digest_of(custom_id: str) -> bytes:
    """Return what 50,000 of can be held to see that none comes twice."""
    return hashlib.blake2b(custom_id.encode(errors="replace"), digest_size=16).digest()


def _text(members: dict[str, Raw], name: str) -> str:
    if name not in members:
        raise BadLine("missing_required_parameter", f"{name} is required.", name)
    try:
        return msgspec.json.decode(members[name], type=str)
    except msgspec.DecodeError as exc:
        raise BadLine("invalid_type", f"{name} is a text.", name) from exc


class Outcome(Struct, frozen=True, kw_only=True):
    """The end of a line: the answer that its POST would have had, or an error of the batch (`code`). `cause`: why it
    failed, in a word that a batch counts.
    """

    status: int = 0
    request_id: str = ""
    body: bytes = b""
    is_good: bool = False
    code: str = ""
    message: str = ""
    cause: str = ""


ENDED: Final = {
    "expired": Outcome(
        code="batch_expired", message="This request could not be executed before the completion window expired."
    ),
    "cancelled": Outcome(
        code="batch_cancelled", message="This request was not executed, because the batch was cancelled."
    ),
}


def encode_outcome(batch_id: FileId, number: int, custom_id: str, outcome: Outcome) -> bytes:
    """Return one line of the output file, or of the error file."""
    response: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    if outcome.code:
        error = {"code": outcome.code, "message": outcome.message}
    else:
        response = {"status_code": outcome.status, "request_id": outcome.request_id, "body": _as_json(outcome.body)}
    line = {"id": f"batch_req_{batch_id}_{number}", "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(line) + b"\n"


def _as_json(body: bytes) -> Any:
    """Return the answer as it is, in one line: in JSON a line break stands only between values."""
    with suppress(msgspec.DecodeError):
        if not is_deeper(body, MOST_LEVELS):
            msgspec.json.decode(body, type=Raw)
            return Raw(BREAKS.sub(b" ", body))
    return body.decode(errors="replace") or HTTPStatus.BAD_GATEWAY.phrase
