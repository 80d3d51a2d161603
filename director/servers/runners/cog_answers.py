"""Decide how a run ended, or that it has to be tried again, from the status and body of a Cog server's answer.

Pure: it never sends anything, never waits, and never raises for what a server wrote.
"""

import re
from collections.abc import Callable
from enum import Enum
from typing import Final

from msgspec import Raw, Struct

from director.servers.runners.http_answers import NULL
from director.servers.runners.runner import Ended, Outcome
from director.servers.runners.untrusted import NO_ENTRY, Unreadable, locked, one_line, read_json, reason, seconds

PREFIXES: Final = re.compile(
    r"(?:(?:Prediction|Training) failed: )+"
)  # coglet adds one for each layer that the error crosses

OUTCOMES: Final = {
    "succeeded": Outcome.SUCCEEDED,
    "failed": Outcome.FAILED,
    "canceled": Outcome.CANCELED,
}

# coglet's own faults come as failed predictions. An error that a model raised begins with "Prediction failed: ".
SERVER_FAULTS: Final = (
    "Worker crashed",
    "Failed to send request:",
    "Failed to create output dir:",
    "Slot socket error:",
    "Slot dropped unexpectedly",
    "Internal error:",
    "prediction task lost",
)


# The Python servers' own faults. The whole text has to match, since a model's error comes without a prefix there
PYTHON_FAULT: Final = re.compile(
    r"(?:Prediction|Training) failed for an unknown reason\. It might have run out of memory\? \(exitcode -?\d+\)"
)


class Again(Enum):
    """The reason why the run has to be put once more."""

    NO_SLOT = "no slot"  # normal right after an end: the slot is free a little later than the answer
    RUNNING = "running"  # a run of this id is already there, left by a director that died
    NO_STREAM = "no stream"  # this server does not stream this model
    LAGGED = "lagged"  # the stream held too much for us, the server gave it up, and it will never report the end


class Answer(Struct, frozen=True, kw_only=True):
    """An answer to a PUT, as received. `coglet` is False for the older servers, written in Python."""

    prediction_id: str
    status: int
    body: bytes = b""
    retry_after: str | None = None
    coglet: bool = True


class Snapshot(Struct, frozen=True):
    """A prediction as the server reports it. Other fields are not trusted, so they are not read."""

    status: str
    id: str | None = None
    output: Raw = Raw(b"")
    logs: str | None = None
    error: str | None = None
    metrics: dict[str, Raw] | None = None

    @property
    def is_terminal(self) -> bool:
        return self.status in OUTCOMES

    @property
    def output_or_none(self) -> Raw | None:
        return None if self.output in (Raw(b""), NULL) else self.output


def read_answer(answer: Answer) -> Ended | Again:
    return ANSWERS.get(answer.status, _strange)(answer)


def read_end(body: bytes, *, prediction_id: str, coglet: bool = True) -> Ended:
    """Read the terminal snapshot of a run, from an answer's body or a stream's last event."""
    try:
        snapshot = read_snapshot(body, prediction_id=prediction_id)
    except Unreadable as exc:
        return Ended(outcome=Outcome.LOST, error=f"The model server's answer is {exc}")
    if not snapshot.is_terminal:
        said = one_line(snapshot.status)
        return Ended(outcome=Outcome.LOST, error=f"The model server answered before the run had ended: it is {said!r}")
    if snapshot.status == "succeeded":
        return Ended(
            outcome=Outcome.SUCCEEDED,
            output=snapshot.output_or_none or NULL,
            logs=snapshot.logs or "",
            metrics=snapshot.metrics or {},
        )
    return _unsuccessful(snapshot, coglet=coglet)


def read_snapshot(body: bytes, *, prediction_id: str) -> Snapshot:
    """Read a snapshot of this prediction. Raises `Unreadable`, also for a snapshot of another prediction."""
    snapshot = read_json(body, Snapshot)
    if snapshot.id not in (None, prediction_id):
        raise Unreadable("about another prediction")
    return snapshot


def _terminal(answer: Answer) -> Ended:
    return read_end(answer.body, prediction_id=answer.prediction_id, coglet=answer.coglet)


def _unsuccessful(snapshot: Snapshot, *, coglet: bool) -> Ended:
    error = snapshot.error or ""
    is_fault = error.startswith(SERVER_FAULTS) if coglet else PYTHON_FAULT.fullmatch(error) is not None
    server_fault = snapshot.status == "failed" and is_fault
    if prefixes := PREFIXES.match(error):
        error = error[prefixes.end() :]
    if not error and snapshot.status == "failed":
        error = "The model failed without saying why"
    return Ended(
        outcome=Outcome.LOST if server_fault else OUTCOMES[snapshot.status],
        output=snapshot.output_or_none,
        logs=snapshot.logs or None,  # coglet answers "" here whatever was printed, so "" says nothing
        error=error or None,
        metrics=snapshot.metrics or {},
        server_is_dead=server_fault,
    )


def _invalid(answer: Answer) -> Ended:
    return Ended(outcome=Outcome.INVALID, error=reason(answer.body) or f"The model server answered {answer.status}")


def _not_ready(answer: Answer) -> Ended:
    return Ended(
        outcome=Outcome.REFUSED,
        error=reason(answer.body) or "The model server is not ready",
        retry_after_s=seconds(answer.retry_after),
    )


def _crashed(answer: Answer) -> Ended:
    # The Python servers answer this when their worker dies, and coglet never does
    return Ended(
        outcome=Outcome.LOST, error=f"The model server answered 500: {reason(answer.body)}", server_is_dead=True
    )


def _strange(answer: Answer) -> Ended:
    said = f"The model server answered {answer.status}: {reason(answer.body)}"
    return Ended(outcome=Outcome.LOST, error=said.removesuffix(": "))


ANSWERS: Final[dict[int, Callable[[Answer], Ended | Again]]] = {
    200: _terminal,
    202: lambda _: Again.RUNNING,
    400: _invalid,
    406: lambda _: Again.NO_STREAM,
    409: lambda _: Again.NO_SLOT,
    413: _invalid,
    415: _invalid,
    422: _invalid,
    500: _crashed,
    503: _not_ready,
    **dict.fromkeys(NO_ENTRY, lambda answer: locked(answer.status)),
}
