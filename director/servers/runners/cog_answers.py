"""Decide how a run ended, or that it has to be tried again, from the status and body of a Cog server's answer.

Pure: it never sends anything, never waits, and never raises for what a server wrote.
"""

import re
from enum import Enum
from typing import Any, Final, TypeVar

from msgspec import Raw, Struct
from msgspec.structs import replace

from director.core.json_pointer import Pointer
from director.servers.runners import answers, outcomes
from director.servers.runners.outcomes import Observation
from director.servers.runners.runner import Ended, Health, HealthStatus, Outcome, Setup

T = TypeVar("T")

# coglet adds one for each layer that the error crosses
PREFIXES: Final = re.compile(r"(?:(?:Prediction|Training) failed: )+")
OUTCOMES: Final = {outcome.value: outcome for outcome in (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELED)}

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
        return None if self.output in (Raw(b""), answers.NULL) else self.output


def read_answer(answer: answers.Answer, *, prediction_id: str, coglet: bool = True) -> Ended | Again:
    """Read the answer to a PUT. `coglet` is False for the older servers, written in Python."""
    match answer.status:
        case 200:
            return read_end(answer.body, prediction_id=prediction_id, coglet=coglet, is_framed=answer.is_framed)
        case 202:
            return Again.RUNNING
        case 406:
            return Again.NO_STREAM
        case 409:
            return Again.NO_SLOT
    return answers.judge_refusal_as(answer, answers.reason(answer.body))


class AnotherPrediction(answers.Unreadable):
    """The words of this answer are not for the caller of this prediction."""


def read_end(body: bytes, *, prediction_id: str, coglet: bool = True, is_framed: bool = True) -> Ended:
    try:
        snapshot = read_snapshot(body, prediction_id=prediction_id)
    except answers.Unreadable as exc:
        body = b"" if isinstance(exc, AnotherPrediction) else body
        return answers.unreadable("The model server's answer is", exc, body, is_framed=is_framed)
    if not snapshot.is_terminal:
        said = answers.one_line(snapshot.status)
        error = f"The model server answered before the run had ended: it is {said!r}"
        return outcomes.end(Observation.ENDLESS, error)
    if snapshot.status == "succeeded":
        try:
            output = answers.legible(snapshot.output_or_none or answers.NULL)
        except answers.Unreadable as exc:
            return answers.unreadable("The output of the model is", exc, body)
        return Ended(
            outcome=Outcome.SUCCEEDED,
            output=output,
            logs=snapshot.logs or "",
            metrics=answers.legible_metrics(snapshot.metrics or {}),
        )
    return _unsuccessful(snapshot, coglet=coglet)


def read_snapshot(body: bytes, *, prediction_id: str) -> Snapshot:
    """Read a snapshot of this prediction. Raises `Unreadable`, also for a snapshot of another prediction."""
    try:
        snapshot = answers.read_json(body, Snapshot)
    except answers.Unreadable:
        found = answers.read_json(body, _AnySnapshot)
        if found.id != answers.NULL and _as(found.id, str) is None:
            raise AnotherPrediction("about another prediction") from None
        snapshot = _leniently(found)
    if snapshot.id not in (None, prediction_id):
        raise AnotherPrediction("about another prediction")
    return snapshot


class _AnySnapshot(Struct, frozen=True):
    status: str
    id: Raw = answers.NULL
    output: Raw = Raw(b"")
    logs: Raw = answers.NULL
    error: Raw = answers.NULL
    metrics: Raw = answers.NULL


def _leniently(found: _AnySnapshot) -> Snapshot:
    """Leave out what has another type, except an error, which is shown as it is."""
    error = (
        "" if bytes(found.error) in answers.NO_ERROR else _as(found.error, str) or answers.excerpt(bytes(found.error))
    )
    metrics = _as(found.metrics, dict[str, Raw])
    return Snapshot(found.status, _as(found.id, str), found.output, _as(found.logs, str), error, metrics)


def _as(value: Raw, kind: type[T]) -> T | None:
    try:
        return answers.read_json(bytes(value), kind)
    except answers.Unreadable:
        return None


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
        output=answers.legible_or_none(snapshot.output_or_none),
        logs=snapshot.logs or None,  # coglet answers "" here whatever was printed, so "" says nothing
        error=error or None,
        metrics=answers.legible_metrics(snapshot.metrics or {}),
        server_is_dead=server_fault,
    )


# Read what a Cog server reports of itself: its health, its kind, and what its model can do. Pure.

STATUSES: Final = {status.name: status for status in HealthStatus if status is not HealthStatus.UNREACHABLE}
DETAILS: Final = {
    HealthStatus.READY: "",
    HealthStatus.BUSY: "Every slot is taken",
    HealthStatus.STARTING: "Setup is running",
}
# coglet never reports DEFUNCT: a dead worker shows in these words
WORKER_IS_DEAD: Final = ("protocol error", "channel closed")
MAY_BE_A_FILE: Final = (b'"uri"', b'"$ref"')
FIRST_STREAMING: Final = (0, 21)
STREAMING: Final = Pointer("/paths/~1predictions/post/x-cog-streaming")
OUTPUT: Final = Pointer("/components/schemas/Output")
OUTPUT_TYPE: Final = Pointer("/components/schemas/Output/type")


class Kind(Struct, frozen=True, kw_only=True):
    """The behaviour of one generation of Cog servers.

    `hears_meanwhile`: while a PUT is held open, it answers other requests. `cancels_again`: if a cancel got lost in the
    first ms of a run, it acts on the next one. `tells_all_at_end`: the answer to that PUT has the logs and the partial
    output of a failure. `sends_files`: its callbacks have files themselves, and not their paths on its disk.
    `repeats`: with several slots, a PUT of an id that runs there is answered; else it brings the server down.
    `trains_at`: the path of a training, on a server that was started to train; `cancels_trainings_at`: of its cancel.
    """

    hears_meanwhile: bool = True
    cancels_again: bool = True
    tells_all_at_end: bool = True
    sends_files: bool = False
    repeats: bool = True
    trains_at: str = "/trainings"
    cancels_trainings_at: str = "/predictions"


COGLET: Final = Kind(tells_all_at_end=False, sends_files=True, cancels_trainings_at="/trainings")
# The Python servers from the newest on: the first version and its kind. Those before 0.12 do not report a version
PYTHON: Final = (
    # All of them answer 500 to the cancel of /trainings, since that handler does not await it either
    ((0, 13), Kind(cancels_again=False, repeats=False)),
    # 0.9 and 0.10 answer 500 to PUT /trainings, since that handler does not await the run
    ((0, 0), Kind(cancels_again=False, hears_meanwhile=False, repeats=False, trains_at="/predictions")),
)


class Known(Struct, frozen=True, kw_only=True):
    since: str
    name: str
    coglet: bool
    kind: Kind
    streams: bool
    is_array: bool
    may_have_files: bool

    @property
    def shows_output(self) -> bool:
        """Whether output that it reports before the end can be shown."""
        return self.kind.sends_files or not self.may_have_files


# Safe to assume of a server that has not been READY yet
UNKNOWN: Final = Known(since="", name="", coglet=True, kind=COGLET, streams=False, is_array=False, may_have_files=True)


class Sighting(Struct, frozen=True, kw_only=True):
    """One look at a server. `coglet` is its version, None on Python servers. `since` differs for each start."""

    health: Health
    coglet: str | None = None
    since: str = ""

    @property
    def can_stream(self) -> bool:
        version = re.match(r"(\d{1,6})\.(\d{1,6})", self.coglet or "")
        return version is not None and tuple(map(int, version.groups())) >= FIRST_STREAMING


class Model(Struct, frozen=True, kw_only=True):
    """The schema of the model. `is_array`: the output comes item by item. `may_have_files`: the output may have files,
    which come as paths on the server's disk unless the server is asked for one whole answer.
    """

    streams: bool = False
    is_array: bool = False
    may_have_files: bool = True


class _Setup(Struct):
    started_at: str | None = None
    completed_at: Any = None
    logs: str | None = None


class _Version(Struct):
    coglet: str | None = None


class _Report(Struct):
    status: str
    setup: _Setup | None = None
    version: _Version | None = None
    user_healthcheck_error: str | None = None
    detail: str | None = None


def read_health(status: int, body: bytes) -> Sighting:
    """Read the answer to GET /health-check. An answer that makes no sense is UNHEALTHY, since a server is there."""
    if status != 200:
        why = answers.WRONG_KEY if status in answers.NO_ENTRY else answers.excerpt(body)
        health = _unhealthy(f"The model server answered {status} to a health check: {why}").health
        return Sighting(health=replace(health, is_locked=status in answers.NO_ENTRY))
    try:
        report = answers.read_json(body, _Report)
    except answers.Unreadable as exc:
        return _unhealthy(f"The model server's health is {exc}")
    if (said := STATUSES.get(report.status)) is None:
        return _unhealthy(f"The model server says that it is {answers.one_line(report.status)!r}")
    setup = report.setup or _Setup()
    trouble = report.user_healthcheck_error or report.detail or ""
    if said is HealthStatus.UNHEALTHY and any(sign in trouble for sign in WORKER_IS_DEAD):
        said = HealthStatus.DEFUNCT
    if said is HealthStatus.SETUP_FAILED:
        last = (setup.logs or "").rstrip().rpartition("\n")[2]  # of a traceback, the line that names the error
        detail = answers.one_line(last) or "Setup failed without saying why"
    else:
        detail = DETAILS.get(said, answers.one_line(trouble) or "The model server does not say what is wrong")
    coglet = report.version.coglet if report.version else None
    health = Health(
        status=said,
        detail=detail,
        setup=Setup(
            started_at=setup.started_at or "",
            completed_at=setup.completed_at if isinstance(setup.completed_at, str) else "",
            logs=setup.logs or "",
        ),
        server=f"coglet {answers.one_line(coglet)}" if coglet else "",
        since=setup.started_at or "",
    )
    return Sighting(health=health, coglet=coglet, since=setup.started_at or "")


def read_model(openapi: bytes) -> Model:
    """Read the OpenAPI document of a model. A document that makes no sense gives the defaults."""
    try:
        document = answers.read_document(openapi)
    except answers.Unreadable:
        return Model()
    output = bytes(OUTPUT.find(document) or b"{}")
    return Model(
        streams=bytes(STREAMING.find(document) or b"") == b"true",
        is_array=bytes(OUTPUT_TYPE.find(document) or b"") == b'"array"',
        may_have_files=b'"type"' not in output or any(sign in output for sign in MAY_BE_A_FILE),
    )


def _unhealthy(detail: str) -> Sighting:
    return Sighting(health=Health(status=HealthStatus.UNHEALTHY, detail=detail))


def python_kind(version: str) -> Kind:
    found = re.match(r"(\d{1,6})\.(\d{1,6})", version)
    said = (int(found[1]), int(found[2])) if found else (0, 0)
    return next(kind for first, kind in PYTHON if said >= first)
