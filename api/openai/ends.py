"""Say how a call ended, in the shape of OpenAI's API: what failed, and an answer as chunks of a stream. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from api.openai.errors import encode, find_type
from api.openai.lenient import read_leniently
from api.web.errors import OpenAiError
from director.core.schema import Record, Stored
from director.core.states import Status

T = TypeVar("T")
LINE_END: Final = re.compile(rb"\r\n|\r|\n")
DONE: Final = b"data: [DONE]\n\n"
CHUNK: Final = Raw(b'"chat.completion.chunk"')
RETRY_S: Final = 5
MOST_RETRY_S: Final = 60  # clients of OpenAI wait no longer

# Status of a failure before anything of its answer was sent, by the code of the end
STATUSES: Final[Mapping[str, int]] = {
    "canceled": 409,
    "deadline_exceeded": 504,
    "director_lost": 502,
    "drained": 503,
    "invalid_input": 400,
    "moderation_refused": 400,
    "moderation_unavailable": 503,
    "refused": 503,
    "server_auth": 502,
    "server_canceled": 502,
    "server_lost": 502,
    "start_by_exceeded": 503,
    "timed_out": 504,
    "too_many_claims": 502,
}
OTHER: Final = 500
# The run has not begun: another call may have better luck
NOT_BEGUN: Final = frozenset({"start_by_exceeded"})
WORDS: Final[Mapping[str, str]] = {
    "canceled": "The call was canceled.",
    "deadline_exceeded": "The call had not ended by its deadline.",
}
NO_CHUNK: Final = "The answer is not in the form of OpenAI's API. Its director may be of an older release."
CANCELED: Final = frozenset({Status.CANCELED, Status.ABORTED})


class Failure(Struct, frozen=True, kw_only=True):
    """A call that failed. `body`: an object with the member `error`, or what the model server said in its own shape.
    `retry_after_s`: None if a repeat is useless.
    """

    status: int
    body: bytes
    code: str
    retry_after_s: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        if self.retry_after_s is None:
            return {"x-should-retry": "false"}
        return {"Retry-After": str(self.retry_after_s), "retry-after-ms": str(1000 * self.retry_after_s)}


def failure_of(stored: Stored) -> Failure:
    """Return the failure of a call that ended without success."""
    record = stored.record
    if (said := _find_server_refusal(stored)) is not None:
        return said
    code = record.code or ("canceled" if record.status in CANCELED else "model_failed")
    if record.status is Status.ABORTED:
        code = "deadline_exceeded"
    message = record.error or WORDS.get(code, "The run of this call failed.")
    return failure(code, message, retry_after_s=_retry_s(record) if code in NOT_BEGUN else None)


def failure(code: str, message: str, *, status: int | None = None, retry_after_s: int | None = None) -> Failure:
    status = status or STATUSES.get(code, OTHER)
    error = OpenAiError(message=message, type=find_type(status), code=code)
    return Failure(status=status, body=encode(error), code=code, retry_after_s=retry_after_s)


def event(data: bytes) -> bytes:
    """Return a server-sent event with this data, unchanged: a line end in JSON is no more than a space."""
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(LINE_END.split(data))
    return b"data: %b\n\n" % data


def error_event(failure: Failure) -> bytes:
    """Return the failure as an event after the head was sent. Clients look for the member `error`."""
    body = failure.body
    members = _members(body) or read_leniently(body) or {}
    return event(body if "error" in members else b'{"error":%b}' % body)


def as_chunks(answer: bytes, *, with_usage: bool) -> list[bytes]:
    """Return an assembled answer as one chunk of a stream, and its usage as another one if that was asked for."""
    members = _members(answer)
    if members is None:
        return [answer]
    usage = members.pop("usage", None)
    choices = _items(members.get("choices"))
    deltas = [_as_delta(choice) for choice in choices]
    if deltas != choices:
        members |= {"object": CHUNK, "choices": _json(deltas)}
    chunks = [bytes(_json(members))]
    if with_usage and usage is not None:
        chunks.append(bytes(_json({**members, "choices": Raw(b"[]"), "usage": usage})))
    return chunks


def _as_delta(choice: Raw) -> Raw:
    """Return the choice of an answer as that of a chunk. One of another shape stays as it is."""
    members = _members(choice)
    delta = None if members is None else _members(members.pop("message", None))
    if members is None or delta is None:
        return choice
    if tools := _items(delta.get("tool_calls")):  # in a chunk each has its place in the list
        delta["tool_calls"] = _json([_place_tool(tool, number) for number, tool in enumerate(tools)])
    return _json({**members, "delta": delta})


def _place_tool(tool: Raw, number: int) -> Raw:
    members = _members(tool)
    return tool if members is None else _json({"index": number, **members})


def _members(value: bytes | Raw | None) -> dict[str, Raw] | None:
    """Return the members of an object, or None for anything else."""
    return _decode(value, dict[str, Raw])


def _items(value: Raw | None) -> list[Raw]:
    return _decode(value, list[Raw]) or []


def _decode(value: bytes | Raw | None, kind: type[T]) -> T | None:
    try:
        return None if value is None else msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError:
        return None


def _json(value: Any) -> Raw:
    return Raw(msgspec.json.encode(value))


def _find_server_refusal(stored: Stored) -> Failure | None:
    """Return the refusal in the words of the model server, if it refused the call before it ran."""
    record = stored.record
    if record.status is not Status.FAILED or not record.metrics or stored.output is None:
        return None
    body = bytes(stored.output)
    status = msgspec.json.decode(record.metrics, type=dict[str, Raw]).get("http_status")
    if status is None or not body.startswith(b"{"):
        return None
    number = msgspec.json.decode(status)
    if not isinstance(number, int) or not 400 <= number < 500:
        return None
    return Failure(status=number, body=body, code=record.code)


def _retry_s(record: Record) -> int:
    """Return when a repeat should come: after the time that was estimated when it was accepted."""
    return RETRY_S if record.eta50 is None else min(MOST_RETRY_S, max(1, round(record.eta50 / 1000)))
