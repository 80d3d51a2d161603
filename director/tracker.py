"""What a run becomes: one attempt at one prediction, as a state machine without I/O.

Takes what the runner saw, with its time, and says what should be done about it. Waits for nothing, asks nobody.
A tracker is made for one claim and thrown away with it, so that no state can leak from one prediction to the next.
The model server is untrusted: sizes are bounded here, and only the fields of the runner's events are believed.
"""

from enum import StrEnum
from typing import Final, assert_never

import msgspec
from msgspec import Raw, Struct

from director.core.retry import RULES, ErrorClass
from director.core.schema import NewEvent, Record
from director.core.states import Status, WebhookEvent
from director.core.view import joined
from director.runners.runner import Began, Ended, Logged, Measured, Outcome, Produced, RunEvent

__all__ = ("Effect", "Finish", "GiveBack", "Halt", "Limits", "Stop", "Tell", "Tracker", "Write")

MOST_EVENTS: Final = 100_000
MOST_METRICS_BYTES: Final = 64 * 1024
MOST_ERROR_CHARS: Final = 16 * 1024
LINE_SOUGHT_CHARS: Final = 4096
LINES_DROPPED: Final = "… earlier lines were dropped …\n"
NULL: Final = Raw(b"null")


class Limits(Struct, frozen=True):
    """What one prediction may leave behind, in bytes."""

    output: int = 8 << 20
    logs: int = 2 << 20


class Stop(StrEnum):
    """Why a run was asked to stop before its own end."""

    USER = "user"
    DEADLINE = "deadline"
    RUN_LIMIT = "run_limit"
    TOO_LARGE = "too_large"
    DRAIN = "drain"


class Halt(Struct, frozen=True):
    """It has gone beyond its bounds: stop the run."""


class Write(Struct, frozen=True):
    """Put these events into the prediction's event stream; it is processing by now."""

    events: tuple[NewEvent, ...]


class Tell(Struct, frozen=True):
    """The caller may want to hear of this."""

    event: WebhookEvent


class Finish(Struct, frozen=True, kw_only=True):
    """The prediction has ended, for good."""

    status: Status
    error: str = ""
    code: str = ""
    output: bytes = b""
    logs: str = ""
    metrics: bytes = b""


class GiveBack(Struct, frozen=True, kw_only=True):
    """It may run again. `fault` says whether this was an attempt; None is a drain, which never is.

    `error` and `code` are its end when no attempt is left; `asked_s` is the server's own Retry-After.
    """

    fault: ErrorClass | None
    error: str
    code: str
    asked_s: float | None = None


Effect = Write | Tell | Halt | Finish | GiveBack

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
    Outcome.LOST: ("server_lost", "The model server died while it ran, and no attempt is left."),
    Outcome.CANCELED: ("server_canceled", "The model server stopped it unasked, and no attempt is left."),
}
# Why it was stopped -> what it ends as, whatever the server says. A drained one is given back.
STOPS: Final[dict[Stop, tuple[Status, str, str]]] = {
    Stop.USER: (Status.CANCELED, "", ""),
    Stop.DEADLINE: (Status.CANCELED, "", ""),
    Stop.RUN_LIMIT: (Status.FAILED, "timed_out", "Prediction timed out"),
    Stop.TOO_LARGE: (Status.FAILED, "output_too_large", "The output is larger than what is kept."),
}


class Tracker:
    """One attempt. `apply` is called with every event in order; the last one is `Ended`, and nothing follows it."""

    def __init__(self, record: Record, limits: Limits) -> None:
        self.record = record
        self.limits = limits
        self.stopped: Stop | None = None
        self.began_at: float | None = None
        self.ended = False
        self._items: list[bytes] = []
        self._items_bytes = 1  # as joined: a bracket, then each item with the comma or bracket after it
        self._logs: list[str] = []
        self._logs_bytes = 0
        self._shown = 0
        self._shown_bytes = 0

    @property
    def output(self) -> Raw | None:
        """What it produced so far."""
        return joined(self._items)

    @property
    def logs(self) -> str:
        """What it printed so far, or the end of it."""
        text = "".join(self._logs)
        self._logs = [text]
        return text

    def stop(self, why: Stop) -> bool:
        """Somebody wants it to end. The first reason stands, but a caller's cancel or deadline outranks a drain."""
        if self.ended or self.stopped not in (None, Stop.DRAIN) or self.stopped is why:
            return False
        self.stopped = why
        return True

    def ran_ms(self, now: float) -> int | None:
        """How long ago the run began; None while it has not."""
        return None if self.began_at is None else max(0, round((now - self.began_at) * 1000))

    def apply(self, event: RunEvent, at: float) -> list[Effect]:
        """What to do about `event`, seen `at` seconds of a clock that only grows."""
        if self.ended:
            return []
        match event:
            case Began():
                return self._begin(at)
            case Produced():
                return self._begin(at) + self._produce(event)
            case Logged():
                return self._begin(at) + self._log(event)
            case Measured():
                metric = msgspec.json.encode(event)
                return [*self._begin(at), *self._show(("metric", metric))]
            case Ended():
                self.ended = True
                return [self._end(event)]
            case _:
                assert_never(event)

    def _begin(self, at: float) -> list[Effect]:
        if self.began_at is not None:
            return []
        self.began_at = at
        return [Write((("started", b""),)), Tell(WebhookEvent.START)]

    def _produce(self, event: Produced) -> list[Effect]:
        if event.index != len(self._items):  # a callback that was overtaken, or told twice
            return []
        self._items_bytes += len(event.item) + 1
        if self._items_bytes > self.limits.output:
            return [Halt()] if self.stop(Stop.TOO_LARGE) else []
        self._items.append(bytes(event.item))
        return [*self._show(("output", self._items[-1])), Tell(WebhookEvent.OUTPUT)]

    def _log(self, event: Logged) -> list[Effect]:
        if not event.text:
            return []
        self._logs.append(event.text)
        self._logs_bytes += _size(event.text)
        if self._logs_bytes > 2 * self.limits.logs:  # twice, so that cutting stays rare
            self._logs = [self._tail("".join(self._logs))]
            self._logs_bytes = _size(self._logs[0])
        return [*self._show(("logs", msgspec.json.encode(event.text))), Tell(WebhookEvent.LOGS)]

    def _show(self, event: NewEvent) -> list[Effect]:
        """Write an event, up to a bound: beyond it progress is no longer shown, and the end tells all."""
        self._shown += 1
        self._shown_bytes += len(event[1])
        if self._shown > MOST_EVENTS or self._shown_bytes > self.limits.output + self.limits.logs:
            return []
        return [Write((event,))]

    def _end(self, ended: Ended) -> Effect:
        if self.stopped is Stop.DEADLINE and self.began_at is None:
            # only the record knows whether an earlier attempt began, and so what a passed deadline makes of it
            return GiveBack(fault=None, error="", code="deadline_exceeded")
        if self.stopped in STOPS:
            status, code, error = STOPS[self.stopped]
            return self._finish(ended, status, code=code, error=error)
        fault = FAULTS.get(ended.outcome)
        if fault is None:
            return self._finish(ended, Status.SUCCEEDED, code="", error="")
        code, error = CODES[ended.outcome]
        if not RULES[fault].again:
            return self._finish(ended, Status.FAILED, code=code, error=_cut(ended.error or error))
        if self.stopped is Stop.DRAIN:
            return GiveBack(fault=None, error="", code="drained")
        why = f"{error} ({_cut(ended.error)})" if ended.error else error
        return GiveBack(fault=fault, error=why, code=code, asked_s=ended.retry_after_s)

    def _finish(self, ended: Ended, status: Status, *, code: str, error: str) -> Finish:
        output = self.output if ended.output is None else ended.output
        logs = self._tail(self.logs if ended.logs is None else ended.logs)
        metrics = msgspec.json.encode(ended.metrics) if ended.metrics else b""
        if len(metrics) > MOST_METRICS_BYTES:
            metrics = b""
        if output is not None and len(output) > self.limits.output:
            size, limit = len(output), self.limits.output
            return Finish(
                status=Status.FAILED if status is Status.SUCCEEDED else status,
                error=error or f"The output has {size:,} bytes: more than the {limit:,} that are kept.",
                code=code or "output_too_large",
                logs=logs,
                metrics=metrics,
            )
        kept = b"" if output is None or output == NULL else bytes(output)
        return Finish(status=status, error=error, code=code, output=kept, logs=logs, metrics=metrics)

    def _tail(self, text: str) -> str:
        """The end of a text that is too long, from a line's start where one is near."""
        if _size(text) <= self.limits.logs:
            return text
        kept = text.encode()[-(self.limits.logs - _size(LINES_DROPPED)) :]
        cut = kept.decode(errors="ignore")  # the character that was cut through is left out
        return LINES_DROPPED + cut[cut.find("\n", 0, LINE_SOUGHT_CHARS) + 1 :]


def _size(text: str) -> int:
    """In bytes, as it is kept."""
    return len(text) if text.isascii() else len(text.encode())


def _cut(error: str) -> str:
    """An error goes into the record and every listing: its beginning is enough."""
    return error if len(error) <= MOST_ERROR_CHARS else error[:MOST_ERROR_CHARS] + " …"
