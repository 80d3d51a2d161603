"""Track one attempt at one prediction, as a state machine without I/O, and decide its end by tables.

The tracker takes each event of the runner with its time, and returns the effects that the executor carries out. The
model server is untrusted: sizes are bounded here, and its word on how a run ended counts only where nothing asked the
run to stop. After the run the attempt may go on: its files are stored (`uploads.py`), then its output is judged.
"""

from enum import StrEnum
from typing import Final, assert_never

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from director.core.schema import NewEvent, Record
from director.core.states import Status, WebhookEvent
from director.core.usage import NOTHING as NOTHING_USED
from director.core.usage import Used
from director.core.view import LINES_DROPPED, join
from director.execution.uploads import Upload, Uploaded, Uploads
from director.servers.runners import runner
from director.servers.runners.outcomes import REFUSALS_OF_AN_ATTEMPT
from director.servers.runners.runner import Ended, Logged, Outcome, Produced, RunEvent

MOST_METRICS_BYTES: Final = 64 * 1024
MOST_ERROR_CHARS: Final = 16 * 1024
MOST_EVENTS: Final = 100_000  # shown of one attempt: see docs/reference/internals/director.md
CHUNK_BYTES: Final = 32  # of a chunk in Redis beside its data, at most
LINE_SOUGHT_CHARS: Final = 4096
NULL: Final = Raw(b"null")
# The wait for a server that had no room, unless the server says how long itself
CAPACITY_S: Final = 1.0
# The code of a claim that waited in this process for a slot while the runs before it took longer than expected
CLAIMED_AHEAD: Final = "claimed_ahead"
# The code of a claim whose input could not be read from the file store
INPUT_AWAY: Final = "input_away"
UNTRIED: Final = frozenset({CLAIMED_AHEAD, INPUT_AWAY})


class ErrorClass(StrEnum):
    CAPACITY = "capacity"  # no room, or not ready: the run never began
    REFUSAL = "refusal"  # refused several times by a server that had room for it: the run never began
    INFRASTRUCTURE = "infrastructure"  # the server, its worker or the connection died during the run
    MODEL = "model"  # the model's own code raised: it would raise again
    INPUT = "input"  # the input was refused: it would be refused again


class Rule(Struct, frozen=True):
    """`again`: the prediction may run again while attempts are left. `spent`: this run was an attempt."""

    again: bool
    spent: bool


RULES: Final[dict[ErrorClass, Rule]] = {
    ErrorClass.CAPACITY: Rule(again=True, spent=False),
    ErrorClass.REFUSAL: Rule(again=True, spent=True),
    ErrorClass.INFRASTRUCTURE: Rule(again=True, spent=True),
    ErrorClass.MODEL: Rule(again=False, spent=True),
    ErrorClass.INPUT: Rule(again=False, spent=True),
}


def backoff_s(
    error: ErrorClass, attempt: int, *, base_s: float, cap_s: float, dice: float, asked_s: float | None = None
) -> float:
    """Return the wait in seconds after the `attempt`-th attempt. `dice` is 0..1. Full jitter, so that a fleet does not
    retry in step: anywhere up to base, twice base, four times base … up to the cap. A server's own Retry-After
    (`asked_s`) is the minimum, up to the cap.
    """
    asked = min(asked_s or 0.0, cap_s)
    if not RULES[error].spent:
        return max(CAPACITY_S, asked)
    return max(dice * min(cap_s, base_s * 2.0 ** (attempt - 1)), asked)


class Limits(Struct, frozen=True):
    """The most that one prediction may leave behind, in bytes. `files`: all its files, as written in its output.
    `inline`: the longest text in a data URI that stays in an output; None where no files are stored. `chunks`: those of
    a streamed call of OpenAI's API, which go soon after its end.
    """

    output: int = 8 << 20
    logs: int = 2 << 20
    files: int = 1 << 30
    inline: int | None = None

    @property
    def chunks(self) -> int:
        return self.output * runner.CHUNKS_OF_OUTPUT


class Stop(StrEnum):
    USER = "user"
    DEADLINE = "deadline"
    RUN_LIMIT = "run_limit"
    TOO_LARGE = "too_large"
    UNSTORED = "unstored"
    DRAIN = "drain"


class Finish(Struct, frozen=True, kw_only=True):
    status: Status
    error: str = ""
    code: str = ""
    output: bytes = b""
    logs: str = ""
    metrics: bytes = b""


class GiveBack(Struct, frozen=True, kw_only=True):
    """The claim is released and the prediction may run again. With a `fault` this was an attempt, if its rule says so;
    a drain, or a slot that did not come in time, has None. `error` and `code` become the prediction's own when it may
    not run again. `asked_s` is the server's Retry-After, or the time until the input may be read.
    """

    fault: ErrorClass | None
    error: str
    code: str
    asked_s: float | None = None


End = Finish | GiveBack
# The end of a drained run that may not run twice: the run had begun where the model allows no second one, or has shown
# output that a caller read
DRAINED: Final = GiveBack(
    fault=None,
    error="The run had begun when its director was drained, and it may not run again.",
    code="drained",
)


class Fault(Struct, frozen=True):
    kind: ErrorClass
    code: str
    error: str


# The outcome of a run that was not asked to stop → its fault. A success has no row.
FAULTS: Final[dict[Outcome, Fault]] = {
    Outcome.FAILED: Fault(ErrorClass.MODEL, "model_failed", "The model failed without saying why."),
    Outcome.INVALID: Fault(ErrorClass.INPUT, "invalid_input", "The model server refused the input without saying why."),
    Outcome.REFUSED: Fault(ErrorClass.CAPACITY, "refused", "The model server had no room for it."),
    Outcome.LOST: Fault(
        ErrorClass.INFRASTRUCTURE, "server_lost", "The model server died while it ran, and it may not run again."
    ),
    Outcome.CANCELED: Fault(
        ErrorClass.INFRASTRUCTURE,
        "server_canceled",
        "The model server stopped it unasked, and it may not run again.",
    ),
}
# The fault of a run that was refused so often that this was an attempt
REFUSED_AGAIN: Final = Fault(
    ErrorClass.REFUSAL, "refused", "The model server refused it again and again while it had room for it."
)
# The reason to stop → the end, whatever the server answers. A drain has no row: it releases the claim.
STOPS: Final[dict[Stop, tuple[Status, str, str]]] = {
    Stop.USER: (Status.CANCELED, "", ""),
    Stop.DEADLINE: (Status.CANCELED, "deadline_exceeded", ""),
    Stop.RUN_LIMIT: (Status.FAILED, "timed_out", "Prediction timed out"),
    Stop.TOO_LARGE: (Status.FAILED, "output_too_large", "The output is larger than what is kept."),
    Stop.UNSTORED: (Status.FAILED, "output_not_stored", "A file of the output could not be stored."),
}


class Verdict(StrEnum):
    ALLOWED = "allowed"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Judged(Struct, frozen=True):
    verdict: Verdict
    reason: str = ""


# A verdict that withholds the output → the code of the failure, and the error if the moderator gave no reason
VERDICTS: Final[dict[Verdict, tuple[str, str]]] = {
    Verdict.REFUSED: ("moderation_refused", "The output was refused."),
    Verdict.UNKNOWN: ("moderation_unavailable", "No verdict on the output came in time."),
}


def end_of(ended: Ended, stopped: Stop | None, limits: Limits, *, has_begun: bool) -> End:
    """Return the end of a prediction by the end of its run. `ended` carries all known output and logs."""
    if stopped is Stop.DEADLINE and not has_begun:
        # the deadline's end depends on whether an earlier attempt began, which only the record knows
        return GiveBack(fault=None, error="", code="deadline_exceeded")
    if stopped in STOPS:
        status, code, error = STOPS[stopped]
        return _finish(ended, limits, status, code=code, error=error)
    fault = REFUSED_AGAIN if ended.refusals >= REFUSALS_OF_AN_ATTEMPT else FAULTS.get(ended.outcome)
    if fault is None:
        return _finish(ended, limits, Status.SUCCEEDED, code="", error="")
    code = ended.code or fault.code
    if not RULES[fault.kind].again:
        return _finish(ended, limits, Status.FAILED, code=code, error=_cut(ended.error or fault.error))
    if stopped is Stop.DRAIN:
        return DRAINED
    if code in UNTRIED:  # no server was asked
        return GiveBack(fault=None, error="", code=code, asked_s=ended.retry_after_s)
    why = f"{fault.error} ({_cut(ended.error)})" if ended.error else fault.error
    return GiveBack(fault=fault.kind, error=why, code=code, asked_s=ended.retry_after_s)


def apply_verdict(end: Finish, judged: Judged, stopped: Stop | None) -> End:
    if judged.verdict is Verdict.ALLOWED:
        return end
    if judged.verdict is Verdict.UNKNOWN and stopped is Stop.USER:
        return replace(end, status=Status.CANCELED, output=b"")
    if judged.verdict is Verdict.UNKNOWN and stopped is Stop.DRAIN:
        return DRAINED
    code, error = VERDICTS[judged.verdict]
    return replace(end, status=Status.FAILED, code=code, error=judged.reason or error, output=b"")


def tail(text: str, most_bytes: int) -> str:
    if size_of(text) <= most_bytes:
        return text
    kept = text.encode()[-(most_bytes - size_of(LINES_DROPPED)) :]
    cut = kept.decode(errors="ignore")  # drops a character that was cut in two
    return LINES_DROPPED + cut[cut.find("\n", 0, LINE_SOUGHT_CHARS) + 1 :]


def in_lines(text: str) -> str:
    """Return logs as Replicate records them: each CR, by which a progress bar overwrites itself, ends a line."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def size_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _finish(ended: Ended, limits: Limits, status: Status, *, code: str, error: str) -> Finish:
    output, logs = ended.output, tail(in_lines(ended.logs), limits.logs) if ended.logs else ""
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
    return error if len(error) <= MOST_ERROR_CHARS else error[:MOST_ERROR_CHARS] + " …"


class Halt(Struct, frozen=True):
    why: Stop


class Write(Struct, frozen=True):
    """Write these events to the prediction's event stream. The prediction is processing from then on."""

    events: tuple[NewEvent, ...]


class Remember(Struct, frozen=True):
    """Write the server's name for the run to the record, so that the next director that claims it can follow it."""

    remote: str


class Tell(Struct, frozen=True):
    event: WebhookEvent


class Ask(Struct, frozen=True):
    """Ask the moderator whether this output may be released. The answer is a `Judged`."""

    output: bytes


Effect = Write | Remember | Tell | Halt | Upload | Ask | End
Happening = RunEvent | Uploaded | Judged
"""Input of a tracker: an event of the runner, or the result of an `Upload` or an `Ask`."""


class Tracker:
    """One attempt. Call `apply` with every event, in order.

    `is_over`: the run is over. `ended`: the attempt is over, and no effect follows. `is_accepted`: another director
    could follow the run. `is_moderated`: no output is shown before it was allowed, nor of a run that did not succeed.
    """

    def __init__(self, record: Record, limits: Limits, *, is_moderated: bool = False) -> None:
        self.record = record
        self.limits = limits
        self.stopped: Stop | None = None
        self.began_at: float | None = None
        self.over_at: float | None = None
        self.first_output_at: float | None = None
        self.last_output_at = 0.0
        self.outputs = 0
        self.tokens = NOTHING_USED  # that the server reported, of this run of it
        self._tokens_before = NOTHING_USED  # of runs that it started again
        self._shown_tokens = 0
        self.ended = False
        self.is_accepted = False
        self._is_moderated = is_moderated
        self._withheld: Finish | None = None
        self._is_call = bool(record.endpoint)  # of OpenAI's API: its outputs are chunks, which its end puts together
        self._uploads = Uploads(None if self._is_call else limits.inline)
        self._files_bytes = 0
        self._items: list[bytes] = []
        self._taken = 0  # outputs, of which those that nothing reads here are not kept
        self._items_bytes = 1  # as joined: a bracket, then each item with the comma or bracket after it
        self._logs: list[str] = []
        self._logs_bytes = 0
        self._after_cr = False  # the logs so far end with a CR: a LF that follows belongs to it
        self._shown = 0
        self._shown_bytes = 0

    @property
    def shown_bytes(self) -> int:
        """Bytes of the events that this attempt has written, without chunks."""
        return min(self._shown_bytes, self.limits.output + self.limits.logs)

    @property
    def is_over(self) -> bool:
        return self.over_at is not None

    @property
    def output(self) -> Raw | None:
        return None if self._is_moderated else join(self._items)

    @property
    def logs(self) -> str:
        if len(self._logs) > 1:
            self._logs = ["".join(self._logs)]
        return self._logs[0] if self._logs else ""

    def stop(self, why: Stop) -> bool:
        """Note why the run is to stop; False if nothing changed. A caller's cancel or deadline replaces a drain."""
        if self.ended or self.stopped not in (None, Stop.DRAIN) or self.stopped is why:
            return False
        self.stopped = why
        return True

    def ran_ms(self, now: float) -> int | None:
        return None if self.began_at is None else max(0, round((now - self.began_at) * 1000))

    def over_ms(self, now: float) -> int:
        return 0 if self.over_at is None else max(0, round((now - self.over_at) * 1000))

    def count_usage(self, now: float, *, file_bytes: int = 0) -> Used:
        """Return what the run used so far, or until it was over; nothing if none began. Tokens are those that the
        server reported, else those of the output that it showed.
        """
        if self.began_at is None:
            return NOTHING_USED
        before, tokens = self._tokens_before, self.tokens
        until = now if self.over_at is None else self.over_at
        return Used(
            runs=1,
            ms=max(0, round((until - self.began_at) * 1000)),
            input_tokens=before.input_tokens + tokens.input_tokens,
            cached_tokens=before.cached_tokens + tokens.cached_tokens,
            output_tokens=before.output_tokens + (tokens.output_tokens or self._shown_tokens),
            file_bytes=file_bytes,
        )

    def apply(self, event: Happening, at: float) -> list[Effect]:
        if self.ended or (self.over_at is not None and not isinstance(event, Uploaded | Judged)):
            return []
        match event:
            case runner.Began():
                return self._begin(at)
            case Ended():
                self.over_at = at
                for name, value in event.metrics.items():
                    self.tokens = self.tokens.with_metric(name, value)
                end = self._end(event)
                return self._close(end) if isinstance(end, GiveBack) else self._put(event, end)  # a retry keeps none
            case runner.Accepted():
                self.is_accepted = True
                return [*self._begin(at), Remember(event.remote)]
            case runner.Produced():
                self._count(event, at)
                return self._begin(at) + self._put(event)
            case runner.Received():
                self._uploads.receive(event)
                return self._begin(at)
            case runner.Unreceived():
                return self._begin(at) + self._give_up(Stop.TOO_LARGE if event.too_large else Stop.UNSTORED)
            case runner.Logged():
                return self._begin(at) + self._log(event)
            case runner.Counted():
                self._shown_tokens += event.tokens
                return self._begin(at)
            case runner.Measured():
                self.tokens = self.tokens.with_metric(event.name, event.value)
                return self._begin(at) + self._show(("metric", msgspec.json.encode(event)))
            case runner.Restarted():
                return self._restart(event.why)
            case Uploaded():
                if not self._uploads.awaits(event.number):
                    return []
                if event.urls is None:
                    return self._give_up(Stop.UNSTORED)
                return self._show_all(self._uploads.note_upload(event))
            case Judged():
                return (
                    [] if self._withheld is None else self._end_with(apply_verdict(self._withheld, event, self.stopped))
                )
            case _:
                assert_never(event)

    def _count(self, event: Produced, at: float) -> None:
        if event.index == self.outputs:  # neither repeated nor out of order
            self.outputs += 1
            self._shown_tokens += event.tokens
            self.last_output_at = at
            self.first_output_at = at if self.first_output_at is None else self.first_output_at

    def _put(self, event: Produced | Ended, end: End | None = None) -> list[Effect]:
        """`end`: that of an `Ended`, if no output waits before it and it has no file."""
        upload, ready = self._uploads.take(event)
        if upload is None:
            return self._close(end) if end is not None and ready and ready[0] is event else self._show_all(ready)
        if isinstance(event, Ended):  # the final output repeats the earlier files
            self._files_bytes = 0
        self._files_bytes += upload.size
        return [upload] if self._files_bytes <= self.limits.files else self._give_up(Stop.TOO_LARGE)

    def _give_up(self, why: Stop) -> list[Effect]:
        last = self._uploads.give_up()
        if last is None:
            return [Halt(why)] if self.stop(why) else []
        if last.outcome is Outcome.SUCCEEDED:  # any other end has a reason of its own
            self.stop(why)
        return self._close(self._end(replace(last, output=None)))

    def _show_all(self, ready: list[Produced | Ended]) -> list[Effect]:
        effects: list[Effect] = []
        for event in ready:
            effects += self._produce(event) if isinstance(event, Produced) else self._close(self._end(event))
        return effects

    def _close(self, end: End) -> list[Effect]:
        if self._is_moderated and isinstance(end, Finish) and end.output:
            if end.status is Status.SUCCEEDED:
                self._withheld = end
                return [Ask(end.output)]
            end = replace(end, output=b"")
        return self._end_with(end)

    def _end_with(self, end: End) -> list[Effect]:
        self.ended = True
        return [end]

    def _begin(self, at: float) -> list[Effect]:
        if self.began_at is not None:
            return []
        self.began_at = at
        return [Write((("started", b""),)), Tell(WebhookEvent.START)]

    def _restart(self, why: str) -> list[Effect]:
        """Forget output and logs and write so to the event stream: the new run may differ from the first."""
        self.outputs, self.first_output_at = 0, None
        self._tokens_before, self.tokens, self._shown_tokens = self.count_usage(0), NOTHING_USED, 0
        self._uploads.restart()
        self._files_bytes = 0
        self._items.clear()
        self._taken = 0
        self._items_bytes = 1
        self._logs.clear()
        self._logs_bytes = 0
        self._after_cr = False
        return [Write((("restarted", f"{why} {self.record.holder}".encode()),))]

    def _produce(self, event: Produced) -> list[Effect]:
        if event.index != self._taken:  # a callback that was overtaken or repeated
            return []
        self._taken += 1
        self._items_bytes += len(event.item) + (CHUNK_BYTES if self._is_call else 1)
        if self._items_bytes > (self.limits.chunks if self._is_call else self.limits.output):
            return [Halt(Stop.TOO_LARGE)] if self.stop(Stop.TOO_LARGE) else []
        shown: NewEvent = ("role" if event.is_role else "output", bytes(event.item))
        if not self._is_call or self.record.webhook:
            self._items.append(shown[1])
        if self._is_moderated:
            return []
        return [*([Write((shown,))] if self._is_call else self._show(shown)), Tell(WebhookEvent.OUTPUT)]

    def _log(self, event: Logged) -> list[Effect]:
        text = in_lines(event.text[1:] if self._after_cr and event.text.startswith("\n") else event.text)
        self._after_cr = event.text.endswith("\r")
        if not text:
            return []
        self._logs.append(text)
        self._logs_bytes += size_of(text)
        if self._logs_bytes > 2 * self.limits.logs:  # twice the limit, so that cutting stays rare
            self._logs = [tail("".join(self._logs), self.limits.logs)]
            self._logs_bytes = size_of(self._logs[0])
        return [*self._show(("logs", msgspec.json.encode(text))), Tell(WebhookEvent.LOGS)]

    def _show(self, event: NewEvent) -> list[Effect]:
        self._shown += 1
        self._shown_bytes += len(event[1])
        if self._shown > MOST_EVENTS or self._shown_bytes > self.limits.output + self.limits.logs:
            return []
        return [Write((event,))]

    def _end(self, ended: Ended) -> End:
        if ended.output is None and self._items and not self._is_call:
            ended = replace(ended, output=join(self._items))
        if ended.logs is None and self._logs:
            ended = replace(ended, logs=self.logs)
        return end_of(ended, self.stopped, self.limits, has_begun=self.began_at is not None)
