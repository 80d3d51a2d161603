"""What a Cog server's answer means: one table from its status and body to how the run ended, or to trying again.

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
)  # coglet puts one on for each layer that the error crosses

OUTCOMES: Final = {
    "succeeded": Outcome.SUCCEEDED,
    "failed": Outcome.FAILED,
    "canceled": Outcome.CANCELED,
}

# coglet's own faults come as failed predictions. What a model raises has "Prediction failed: " in front of it.
SERVER_FAULTS: Final = (
    "Worker crashed",
    "Failed to send request:",
    "Failed to create output dir:",
    "Slot socket error:",
    "Slot dropped unexpectedly",
    "Internal error:",
    "prediction task lost",
)


# … and what the Python servers say of theirs, whatever the model is: the whole text, since a model's comes bare there
PYTHON_FAULT: Final = re.compile(
    r"(?:Prediction|Training) failed for an unknown reason\. It might have run out of memory\? \(exitcode -?\d+\)"
)


class Again(Enum):
    """The run has to be put once more, and why."""

    NO_SLOT = "no slot"  # right after an end this is normal: the slot comes back a little later than the answer
    RUNNING = "running"  # a run of this id is already there, left by a director that died
    NO_STREAM = "no stream"  # this server does not stream this model
    LAGGED = "lagged"  # it put out more than its stream holds for us, gave up, and its end will never be told


class Answer(Struct, frozen=True, kw_only=True):
    """An answer to a PUT, as received. `coglet` is False for the Python servers that came before it."""

    prediction_id: str
    status: int
    body: bytes = b""
    retry_after: str | None = None
    coglet: bool = True


class Snapshot(Struct, frozen=True):
    """A prediction as a server tells it. Other fields are not believed, so they are not read."""

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
    """What to make of an answer, whatever it is."""
    return ANSWERS.get(answer.status, _strange)(answer)


def read_end(body: bytes, *, prediction_id: str, coglet: bool = True) -> Ended:
    """The terminal snapshot of a run, from an answer's body or a stream's last event."""
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
    """A snapshot of this prediction. Raises `Unreadable`, also when it is of another one."""
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
        logs=snapshot.logs or None,  # coglet answers "" here whatever was printed, so "" is not news
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
    # the Python servers answer this when their worker dies, and coglet never does
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
