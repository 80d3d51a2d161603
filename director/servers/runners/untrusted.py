"""Read what a model server wrote, as if it meant harm: JSON, and the reasons and headers of a refusal.

Never raises anything but `Unreadable` for what the server sent, and never re-encodes: parts that are only passed on
stay `msgspec.Raw`.
"""

from typing import Final, TypeVar

import msgspec
from msgspec import Struct

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
    """Return the beginning of a body that is not understood, in one line."""
    return one_line(body[: EXCERPT_CHARS * 4].decode(errors="replace"))


def one_line(text: str) -> str:
    """Return the text as one line of at most 500 characters."""
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
    """Return the end of a run that was answered with one of NO_ENTRY."""
    error = f"The model server answered {status}: {WRONG_KEY}"
    return Ended(outcome=Outcome.REFUSED, error=error, is_locked=True, code=SERVER_AUTH)


def reason(body: bytes) -> str:
    """Return a refusal in words: what the server's JSON says if its shape is known, else how its text begins."""
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


def seconds(retry_after: str | None) -> float | None:
    """Return Retry-After as seconds. None for its other form, a date, since that is by another clock."""
    if retry_after is None or not (retry_after.isascii() and retry_after.isdigit()):
        return None
    return min(float(retry_after[:9]), RETRY_AFTER_MAX_S)


def _complaint(complaint: _Complaint) -> str:
    where = [str(part) for part in complaint.loc]
    for wrapping in ("body", "input"):  # a caller knows only what is inside `input`
        if where[:1] == [wrapping]:
            where = where[1:]
    return f"{'.'.join(where)}: {complaint.msg}" if where else complaint.msg
