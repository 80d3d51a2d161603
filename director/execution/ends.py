"""Decide what the end of a run makes of its prediction: one table for outcomes, one for reasons to stop. Pure.

A model server's word on how a run ended counts only where nothing asked the run to stop. The bounds on what is kept
are here too.
"""

from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from director.core.states import Status
from director.core.view import LINES_DROPPED
from director.servers.runners.runner import Ended, Outcome


class ErrorClass(StrEnum):
    """The kind of fault that ended a run."""

    CAPACITY = "capacity"  # no room, or not ready: the run never began
    INFRASTRUCTURE = "infrastructure"  # the server, its worker or the connection died during the run
    MODEL = "model"  # the model's own code raised: it would raise again
    INPUT = "input"  # the input was refused: it would be refused again


class Rule(Struct, frozen=True):
    """`again`: the prediction may run again while attempts are left. `spent`: this run was an attempt."""

    again: bool
    spent: bool


RULES: Final[dict[ErrorClass, Rule]] = {
    ErrorClass.CAPACITY: Rule(again=True, spent=False),
    ErrorClass.INFRASTRUCTURE: Rule(again=True, spent=True),
    ErrorClass.MODEL: Rule(again=False, spent=True),
    ErrorClass.INPUT: Rule(again=False, spent=True),
}

# The wait for a server that had no room, unless the server says how long itself
CAPACITY_S: Final = 1.0


def backoff_s(
    error: ErrorClass, attempt: int, *, base_s: float, cap_s: float, dice: float, asked_s: float | None = None
) -> float:
    """Return the wait in seconds after the `attempt`-th attempt. `dice` is 0..1.

    Full jitter: anywhere up to base, twice base, four times base … up to the cap, so that a fleet does not retry in
    step. A server's own Retry-After (`asked_s`) is the minimum, up to the cap.
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
    """The most that one prediction may leave behind, in bytes.

    `files`: all its files together, as written in its output. `inline`: the longest text in a data URI that stays in an
    output where files are stored; None where no files are stored.
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
    """The prediction becomes terminal."""

    status: Status
    error: str = ""
    code: str = ""
    output: bytes = b""
    logs: str = ""
    metrics: bytes = b""


class GiveBack(Struct, frozen=True, kw_only=True):
    """The claim is released and the prediction may run again. With a `fault` this was an attempt, if its rule says so.
    A drain, or a slot that did not come in time, has None and is no attempt.

    `error` and `code` become the prediction's own when it may not run again. `asked_s` is the server's Retry-After.
    """

    fault: ErrorClass | None
    error: str
    code: str
    asked_s: float | None = None


# The end of a drained run where nothing may run twice and the run had begun
DRAINED: Final = GiveBack(
    fault=None,
    error="The run had begun when its director was drained, and this model allows no second run.",
    code="drained",
)

# The code of a claim that waited in this process for a slot while the runs before it took longer than expected
CLAIMED_AHEAD: Final = "claimed_ahead"

# The outcome of a run that was not asked to stop → its kind of fault. A success has no row.
FAULTS: Final[dict[Outcome, ErrorClass]] = {
    Outcome.FAILED: ErrorClass.MODEL,
    Outcome.INVALID: ErrorClass.INPUT,
    Outcome.REFUSED: ErrorClass.CAPACITY,
    Outcome.LOST: ErrorClass.INFRASTRUCTURE,
    Outcome.CANCELED: ErrorClass.INFRASTRUCTURE,
}
# The outcome → its code, and the error if the server gave no error or no attempt is left
CODES: Final[dict[Outcome, tuple[str, str]]] = {
    Outcome.FAILED: ("model_failed", "The model failed without saying why."),
    Outcome.INVALID: ("invalid_input", "The model server refused the input without saying why."),
    Outcome.REFUSED: ("refused", "The model server had no room for it."),
    Outcome.LOST: ("server_lost", "The model server died while it ran, and it may not run again."),
    Outcome.CANCELED: ("server_canceled", "The model server stopped it unasked, and it may not run again."),
}
# The reason to stop → the end, whatever the server answers. A drain has no row: it releases the claim.
STOPS: Final[dict[Stop, tuple[Status, str, str]]] = {
    Stop.USER: (Status.CANCELED, "", ""),
    Stop.DEADLINE: (Status.CANCELED, "", ""),
    Stop.RUN_LIMIT: (Status.FAILED, "timed_out", "Prediction timed out"),
    Stop.TOO_LARGE: (Status.FAILED, "output_too_large", "The output is larger than what is kept."),
    Stop.UNSTORED: (Status.FAILED, "output_not_stored", "A file of the output could not be stored."),
}


class Verdict(StrEnum):
    """Whether an output may be released. UNKNOWN: the moderator gave no verdict in time."""

    ALLOWED = "allowed"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Judged(Struct, frozen=True):
    """The verdict on an output. `reason` is for the caller."""

    verdict: Verdict
    reason: str = ""


# A verdict that withholds the output → the code of the failure, and the error if the moderator gave no reason
VERDICTS: Final[dict[Verdict, tuple[str, str]]] = {
    Verdict.REFUSED: ("moderation_refused", "The output was refused."),
    Verdict.UNKNOWN: ("moderation_unavailable", "No verdict on the output came in time."),
}


def end_of(ended: Ended, stopped: Stop | None, limits: Limits, *, has_begun: bool) -> Finish | GiveBack:
    """Return the end of a prediction by the end of its run. `ended` carries all known output and logs."""
    if stopped is Stop.DEADLINE and not has_begun:
        # the deadline's end depends on whether an earlier attempt began, which only the record knows
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
    if code == CLAIMED_AHEAD:  # no server was asked, and another director may have a free slot now
        return GiveBack(fault=None, error="", code=code)
    why = f"{error} ({_cut(ended.error)})" if ended.error else error
    return GiveBack(fault=fault, error=why, code=code, asked_s=ended.retry_after_s)


def released(end: Finish, judged: Judged, stopped: Stop | None) -> Finish | GiveBack:
    """Return what a success becomes by the verdict on its output."""
    if judged.verdict is Verdict.ALLOWED:
        return end
    if judged.verdict is Verdict.UNKNOWN and stopped is Stop.USER:
        return replace(end, status=Status.CANCELED, output=b"")
    if judged.verdict is Verdict.UNKNOWN and stopped is Stop.DRAIN:
        return DRAINED
    code, error = VERDICTS[judged.verdict]
    return replace(end, status=Status.FAILED, code=code, error=judged.reason or error, output=b"")


def tail(text: str, most_bytes: int) -> str:
    """Return the end of a text that is too long, from the start of a line if one is near."""
    if size_of(text) <= most_bytes:
        return text
    kept = text.encode()[-(most_bytes - size_of(LINES_DROPPED)) :]
    cut = kept.decode(errors="ignore")  # drops a character that was cut in two
    return LINES_DROPPED + cut[cut.find("\n", 0, LINE_SOUGHT_CHARS) + 1 :]


def size_of(text: str) -> int:
    """Return the size in bytes of UTF-8."""
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
    """Shorten an error: it goes into the record and into every listing."""
    return error if len(error) <= MOST_ERROR_CHARS else error[:MOST_ERROR_CHARS] + " …"
