"""Read what a model server wrote, as if it meant harm: JSON, and the reasons and headers of a refusal.

Never raises anything but `Unreadable` for what the server sent, and never re-encodes: parts that are only passed on
stay `msgspec.Raw`.
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from director.core.json_pointer import Pointer
from director.core.runner_config import MappedConfig
from director.servers.runners.runner import Ended, Outcome

EXCERPT_CHARS: Final = 500
RETRY_AFTER_MAX_S: Final = 3600.0
COMPLAINTS_MAX: Final = 20
# The server does not let the director in, whatever a caller sends. Its body may repeat the secret that it was sent
NO_ENTRY: Final = frozenset({401, 403, 407})
SERVER_AUTH: Final = "server_auth"  # also the state of a director whose servers are all locked
WRONG_KEY: Final = "the operator of the model has to give its director the right key"

T = TypeVar("T")


class Unreadable(ValueError):
    """The server sent something that is not JSON, or not of the expected shape. The message says which, for people."""


def read_json(body: bytes, shape: type[T]) -> T:
    """Decode `body` as `shape`. Raises `Unreadable`, also for invalid UTF-8 in `Raw` parts."""
    try:
        if not body.isascii():
            body.decode()  # msgspec skips over Raw parts without a look at their UTF-8
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as exc:
        raise Unreadable(f"not of the expected shape: {exc}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise Unreadable(f"not JSON: {exc}") from exc
    except RecursionError as exc:
        raise Unreadable("nested too deeply") from exc


def excerpt(body: bytes) -> str:
    return one_line(body[: EXCERPT_CHARS * 4].decode(errors="replace"))


def one_line(text: str) -> str:
    line = " ".join(text[: EXCERPT_CHARS * 4].split())
    return line if len(line) <= EXCERPT_CHARS else line[: EXCERPT_CHARS - 1] + "…"


class _Complaint(Struct):
    msg: str = ""
    loc: list[str | int] = msgspec.field(default_factory=list)


class _Error(Struct):
    message: str = ""


class _Refusal(Struct):
    detail: str | list[_Complaint] | None = None
    error: str | _Error | None = None
    message: str | None = None


def locked(status: int) -> Ended:
    error = f"The model server answered {status}: {WRONG_KEY}"
    return Ended(outcome=Outcome.REFUSED, error=error, is_locked=True, code=SERVER_AUTH)


def reason(body: bytes) -> str:
    try:
        refusal = read_json(body, _Refusal)
    except Unreadable:
        return excerpt(body)
    match refusal.detail:
        case list() as complaints if complaints:
            return one_line("; ".join(_complaint(complaint) for complaint in complaints[:COMPLAINTS_MAX]))
        case str() as detail if detail:
            return one_line(detail)
        case _:
            error = refusal.error.message if isinstance(refusal.error, _Error) else refusal.error
            said = error or refusal.message
            return one_line(said) if said else excerpt(body)


def _complaint(complaint: _Complaint) -> str:
    where = [str(part) for part in complaint.loc]
    for wrapping in ("body", "input"):  # a caller knows only what is inside `input`
        if where[:1] == [wrapping]:
            where = where[1:]
    return f"{'.'.join(where)}: {complaint.msg}" if where else complaint.msg


# Decide how a run ended from the HTTP answer of a model server. Pure: never raises for what a server wrote.

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
    """An answer as received. `complete`: False if its body is longer than what was read. `headers`: lower-case names.
    `trouble`: why no answer came, with status 0.
    """

    status: int = 0
    body: bytes = b""
    complete: bool = True
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    trouble: str = ""

    @property
    def retry_after_s(self) -> float | None:
        """Retry-After in seconds. None for its other form, a date, since that is by another clock."""
        text = self.headers.get("retry-after", "")
        return min(float(text[:9]), RETRY_AFTER_MAX_S) if text.isascii() and text.isdigit() else None

    @property
    def kind(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_file(self) -> bool:
        return self.is_ok and self.complete and FILE.fullmatch(self.kind) is not None

    @property
    def is_ok(self) -> bool:
        return 200 <= self.status < 300


def status_of(answer: Answer) -> str:
    """Say how the server answered, and where a redirect leads, without its query: that may have a key."""
    location = answer.headers.get("location", "") if 300 <= answer.status < 400 else ""
    place = one_line(re.split(r"[?#]", location)[0])
    leads = f" and points to {place}, where redirects are not followed" if place else ""
    return f"The model server answered {answer.status}{leads}"


def refused(answer: Answer, *, error: Pointer | None = None) -> Ended:
    if answer.status in NO_ENTRY:
        return locked(answer.status)
    said = said_of(answer, error=error)
    outcome = OUTCOMES.get(answer.status, Outcome.FAILED)
    words = one_line(said) if outcome is Outcome.INVALID and said else status_of(answer)
    return Ended(
        outcome=outcome,
        error=words if outcome is Outcome.INVALID or not said else f"{words}: {one_line(said)}",
        retry_after_s=answer.retry_after_s,
    )


def said_of(answer: Answer, *, error: Pointer | None = None) -> str:
    if answer.status in NO_ENTRY:
        return WRONG_KEY
    try:
        return mapped_error(read_document(answer.body), error) or reason(answer.body)
    except Unreadable:
        return reason(answer.body)


def file_end(answer: Answer) -> Ended:
    """Return the end of a run whose answer is a file: a data URI, which is stored where files are."""
    return Ended(
        outcome=Outcome.SUCCEEDED, output=Raw(b'"data:%b;base64,%b"' % (answer.kind.encode(), b64encode(answer.body)))
    )


def too_large(max_body: int) -> Ended:
    """Return the end of a run whose answer is too large. The same input would give as much again."""
    return Ended(outcome=Outcome.FAILED, error=f"The model's output is larger than {max_body} bytes")


def read_document(body: bytes) -> Raw:
    return Raw(bytes(read_json(body, Raw)))


def mapped_end(document: Raw, config: MappedConfig) -> Ended:
    """Return the end of a successful run: what its answer holds where the configuration points to."""
    output = config.output.find(document)
    if output is None:
        where = config.output.text
        return Ended(outcome=Outcome.FAILED, error=f"The model server's answer has nothing at {where}")
    if not config.metrics:
        return Ended(outcome=Outcome.SUCCEEDED, output=output)
    found = {name: pointer.find(document) for name, pointer in config.metrics.items()}
    metrics = {name: value for name, value in found.items() if value is not None and value != NULL}
    return Ended(outcome=Outcome.SUCCEEDED, output=output, metrics=metrics)


def mapped_error(document: Raw, error: Pointer | None) -> str:
    found = error.find(document) if error is not None else None
    if found is None or bytes(found) in NO_ERROR:
        return ""
    try:
        return one_line(read_json(bytes(found), str))
    except Unreadable:
        return excerpt(bytes(found))


# Parse server-sent events as the network brings them. Pure: keeps at most one unfinished event, up to its limit

EVENT_STREAM: Final = "text/event-stream"
BOM: Final = b"\xef\xbb\xbf"


class Frame(Struct, frozen=True):
    event: str
    data: bytes


class FrameTooLarge(ValueError):
    """One event is larger than the limit. The rest of the stream cannot be read."""


class SseParser:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tail = bytearray()  # a line that has no end yet
        self._after_cr = False  # the last chunk ended with CR: a LF that follows belongs to it
        self._at_start = True
        self._event = "message"
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the events that end within `chunk`. Raises `FrameTooLarge`; the parser then cannot be used further."""
        if not chunk:
            return []
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r")
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        lines: list[bytes] = []
        if end:
            lines = (bytes(self._tail) + chunk[:end]).splitlines()
            self._tail = bytearray()
        self._tail += chunk[end:]
        frames = [frame for line in lines if (frame := self._take(line)) is not None]
        if len(self._tail) + self._data_bytes > self._max_bytes:
            raise FrameTooLarge
        return frames

    def _take(self, line: bytes) -> Frame | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(BOM)
        if not line:
            # The standard drops an event without data; a keep-alive comment looks like that
            frame = Frame(self._event or "message", b"\n".join(self._data)) if self._data else None
            self._event, self._data, self._data_bytes = "message", [], 0
            return frame
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._data_bytes += len(value) + 1
            if self._data_bytes > self._max_bytes:
                raise FrameTooLarge
        elif name == b"event":
            self._event = value.decode(errors="replace")
        return None
