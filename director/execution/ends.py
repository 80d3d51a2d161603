"""What the end of a run makes of its prediction: one table for every outcome and every reason to stop it. Pure.

Believes a model server's word on how a run ended only where nobody asked it to stop. What is kept has its bounds here.
"""

from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from director.core.states import Status
from director.core.view import LINES_DROPPED
from director.servers.runners.runner import Ended, Outcome

# Which faults get another attempt, and how long it waits. Pure: the caller brings the dice.


class ErrorClass(StrEnum):
    """What kind of fault ended a run."""

    CAPACITY = "capacity"  # no room, or not ready: nothing was tried
    INFRASTRUCTURE = "infrastructure"  # the server, its worker or the connection died under it
    MODEL = "model"  # the model's own code raised: it would again
    INPUT = "input"  # the input was refused: it would be again


class Rule(Struct, frozen=True):
    """`again`: it may run again, as long as attempts are left. `spent`: this was one of them."""

    again: bool
    spent: bool


RULES: Final[dict[ErrorClass, Rule]] = {
    ErrorClass.CAPACITY: Rule(again=True, spent=False),
    ErrorClass.INFRASTRUCTURE: Rule(again=True, spent=True),
    ErrorClass.MODEL: Rule(again=False, spent=True),
    ErrorClass.INPUT: Rule(again=False, spent=True),
}

# A server that had no room gets this long to have some, unless it says how long itself.
CAPACITY_S: Final = 1.0


def backoff_s(
    error: ErrorClass, attempt: int, *, base_s: float, cap_s: float, dice: float, asked_s: float | None = None
) -> float:
    """How long to wait after the `attempt`-th attempt ended so. `dice` is 0..1.

    Full jitter, anywhere up to base, twice that, four times … up to the cap, so that a fleet never marches in step. A
    server's own Retry-After (`asked_s`) is the least, up to the cap.
    """
    asked = min(asked_s or 0.0, cap_s)
    if not RULES[error].spent:
        return max(CAPACITY_S, asked)
    return max(dice * min(cap_s, base_s * 2.0 ** (attempt - 1)), asked)


MOST_METRICS_BYTES: Final = 64 * 1024
MOST_ERROR_CHARS: Final = 16 * 1024
LINE_SOUGHT_CHARS: Final = 4096
NULL: Final = Raw(b"null")


class Limits(Struct, frozen=True):
    """What one prediction may leave behind, in bytes.

    `files`: of all its files together, as they are written in its output. `inline`: text in a data URI that may stay
    in an output, where files are stored; None where none are.
    """

    output: int = 8 << 20
    logs: int = 2 << 20
    files: int = 1 << 30
    inline: int | None = None


class Stop(StrEnum):
    """Why a run was asked to stop before its own end."""

    USER = "user"
    DEADLINE = "deadline"
    RUN_LIMIT = "run_limit"
    TOO_LARGE = "too_large"
    UNSTORED = "unstored"
    DRAIN = "drain"


class Finish(Struct, frozen=True, kw_only=True):
    """The prediction has ended, for good."""

    status: Status
    error: str = ""
    code: str = ""
    output: bytes = b""
    logs: str = ""
    metrics: bytes = b""


class GiveBack(Struct, frozen=True, kw_only=True):
    """It may run again. `fault` says whether this was an attempt; None is a drain or a slot that did not come in time,
    which never are.

    `error` and `code` are its end when it may not run again; `asked_s` is the server's own Retry-After.
    """

    fault: ErrorClass | None
    error: str
    code: str
    asked_s: float | None = None


# Its end only where nothing may run twice, and its run had begun
DRAINED: Final = GiveBack(
    fault=None,
    error="The run had begun when its director was drained, and this model allows no second run.",
    code="drained",
)

# The code of one that waited here for a slot, while the runs before it took longer than they did lately
CLAIMED_AHEAD: Final = "claimed_ahead"

# Outcome of a run that nobody asked to stop -> the kind of fault it is; a success is none
FAULTS: Final[dict[Outcome, ErrorClass]] = {
    Outcome.FAILED: ErrorClass.MODEL,
    Outcome.INVALID: ErrorClass.INPUT,
    Outcome.REFUSED: ErrorClass.CAPACITY,
    Outcome.LOST: ErrorClass.INFRASTRUCTURE,
    Outcome.CANCELED: ErrorClass.INFRASTRUCTURE,
}
# … and its code, with the error where the server gave none, or when it may not run again
CODES: Final[dict[Outcome, tuple[str, str]]] = {
    Outcome.FAILED: ("model_failed", "The model failed without saying why."),
    Outcome.INVALID: ("invalid_input", "The model server refused the input without saying why."),
    Outcome.REFUSED: ("refused", "The model server had no room for it."),
    Outcome.LOST: ("server_lost", "The model server died while it ran, and it may not run again."),
    Outcome.CANCELED: ("server_canceled", "The model server stopped it unasked, and it may not run again."),
}
# Why it was stopped -> what it ends as, whatever the server says. A drained one is given back.
STOPS: Final[dict[Stop, tuple[Status, str, str]]] = {
    Stop.USER: (Status.CANCELED, "", ""),
    Stop.DEADLINE: (Status.CANCELED, "", ""),
    Stop.RUN_LIMIT: (Status.FAILED, "timed_out", "Prediction timed out"),
    Stop.TOO_LARGE: (Status.FAILED, "output_too_large", "The output is larger than what is kept."),
    Stop.UNSTORED: (Status.FAILED, "output_not_stored", "A file of the output could not be stored."),
}


class Verdict(StrEnum):
    """May an output be released? UNKNOWN: whoever judges could not be asked for as long as there was time."""

    ALLOWED = "allowed"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Judged(Struct, frozen=True):
    """The verdict on an output. `reason` is for the caller."""

    verdict: Verdict
    reason: str = ""


# A verdict that releases nothing -> the code of the failure, and the error where no reason was given
VERDICTS: Final[dict[Verdict, tuple[str, str]]] = {
    Verdict.REFUSED: ("moderation_refused", "The output was refused."),
    Verdict.UNKNOWN: ("moderation_unavailable", "Nobody could say in time whether the output may be released."),
}


def end_of(ended: Ended, stopped: Stop | None, limits: Limits, *, has_begun: bool) -> Finish | GiveBack:
    """What becomes of a prediction whose run ended so. `ended` has all that is known of output and logs."""
    if stopped is Stop.DEADLINE and not has_begun:
        # only the record knows whether an earlier attempt began, and so what a passed deadline makes of it
        return GiveBack(fault=None, error="", code="deadline_exceeded")
    if stopped in STOPS:
        status, code, error = STOPS[stopped]
        return _finish(ended, limits, status, code=code, error=error)
    fault = FAULTS.get(ended.outcome)
    if fault is None:
        return _finish(ended, limits, Status.SUCCEEDED, code="", error="")
    code, error = CODES[ended.outcome]
    code = ended.code or code
    if not RULES[fault].again:
        return _finish(ended, limits, Status.FAILED, code=code, error=_cut(ended.error or error))
    if stopped is Stop.DRAIN:
        return DRAINED
    if code == CLAIMED_AHEAD:  # no server was asked, and another director may have a slot for it now
        return GiveBack(fault=None, error="", code=code)
    why = f"{error} ({_cut(ended.error)})" if ended.error else error
    return GiveBack(fault=fault, error=why, code=code, asked_s=ended.retry_after_s)


def released(end: Finish, judged: Judged, stopped: Stop | None) -> Finish | GiveBack:
    """What a success becomes by the verdict on its output."""
    if judged.verdict is Verdict.ALLOWED:
        return end
    if judged.verdict is Verdict.UNKNOWN and stopped is Stop.USER:
        return replace(end, status=Status.CANCELED, output=b"")
    if judged.verdict is Verdict.UNKNOWN and stopped is Stop.DRAIN:
        return DRAINED
    code, error = VERDICTS[judged.verdict]
    return replace(end, status=Status.FAILED, code=code, error=judged.reason or error, output=b"")


def tail(text: str, most_bytes: int) -> str:
    """The end of a text that is too long, from a line's start where one is near."""
    if size_of(text) <= most_bytes:
        return text
    kept = text.encode()[-(most_bytes - size_of(LINES_DROPPED)) :]
    cut = kept.decode(errors="ignore")  # the character that was cut through is left out
    return LINES_DROPPED + cut[cut.find("\n", 0, LINE_SOUGHT_CHARS) + 1 :]


def size_of(text: str) -> int:
    """In bytes, as it is kept."""
    return len(text) if text.isascii() else len(text.encode())


def _finish(ended: Ended, limits: Limits, status: Status, *, code: str, error: str) -> Finish:
    output, logs = ended.output, tail(ended.logs or "", limits.logs)
    metrics = msgspec.json.encode(ended.metrics) if ended.metrics else b""
    if len(metrics) > MOST_METRICS_BYTES:
        metrics = b""
    if output is not None and len(output) > limits.output:
        size, limit = len(output), limits.output
        return Finish(
            status=Status.FAILED if status is Status.SUCCEEDED else status,
            error=error or f"The output has {size:,} bytes: more than the {limit:,} that are kept.",
            code=code or "output_too_large",
            logs=logs,
            metrics=metrics,
        )
    kept = b"" if output is None or output == NULL else bytes(output)
    return Finish(status=status, error=error, code=code, output=kept, logs=logs, metrics=metrics)


def _cut(error: str) -> str:
    """An error goes into the record and every listing: its beginning is enough."""
    return error if len(error) <= MOST_ERROR_CHARS else error[:MOST_ERROR_CHARS] + " …"
