"""What is stored and what goes over the wire: records, claims, events, and the prediction as a caller sees it.

A caller's JSON stays `Raw` from end to end: nothing here re-encodes an input or an output.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from director.core.ids import Kind, PredictionId, QueueName
from director.core.states import TERMINAL, Status, WebhookEvent
from director.core.trace_context import NO_TRACE, TraceHeaders

T = TypeVar("T")

Token = str
NewEvent = tuple[str, bytes]
"""(kind, data) of an event that gets its number in Redis."""


class Record(Struct, frozen=True, kw_only=True):
    """The hash `rec:<id>`: the prediction's truth, all but its bulk. Times are milliseconds of the server's clock."""

    id: PredictionId
    account: str
    model: str
    version: str
    queue: QueueName
    kind: Kind = ""
    destination: str = ""  # owner/name of the model that a training makes a version of
    deployment: str = ""  # owner/name, where it was made by one
    lane: str
    status: Status
    created: int
    started: int | None = None
    completed: int | None = None
    deadline: int | None = None
    late: str = ""  # 'aborted' when the caller asked for the deadline, and so knows the word
    attempt: int = 0
    claims: int = 0
    token: Token = ""
    holder: str = ""
    claimed: int | None = None
    seq: int = 0
    cancel: str = ""
    url: str = ""  # base of the URLs in answers, as the client that made it knew us
    ticket: str = ""  # makes the address of its event stream unguessable; '' where it has none
    webhook: str = ""
    events: str = ""  # the filter: webhook events wanted, joined by commas
    error: str = ""
    code: str = ""
    metrics: str = ""
    told: str = ""
    tellings: int = 0
    tellings_before: int = 0  # of those, before somebody asked for it to be told again: the schedule began anew
    owed_since: int | None = None  # where it did
    revivals: int = 0
    affinity: str = ""  # digest of the key whose predictions like to run on one server
    cost: float = 1
    metered: bool = False  # its account's compute is counted: see director/keeper/cashier.py
    data_ttl_ms: int | None = None  # life of its data after the end, where its account has its own
    start_by: int | None = None
    remote: str = ""  # what its server calls its run, where another director could follow it by that
    begun: bool = False  # some attempt of it ran
    ended: Token = ""  # of the claim that finished it
    place: str = ""  # position and how many were ahead when it was accepted; eta50 and eta90: ms that it was told then
    eta50: int | None = None
    eta90: int | None = None
    idem: str = ""  # digest of its idempotency key
    leaving: str = ""  # site of the Redis server that it is on its way to
    moved: str = ""  # site of the one that it is at: all else of it is there
    moves: int = 0  # how often it left for another server
    history: str = ""  # the attempts that did not end it: see director.core.schema
    traceparent: str = ""  # of the trace that it belongs to: see director.core.trace_context
    tracestate: str = ""

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def trace(self) -> TraceHeaders:
        """What whoever is asked or told for it is given."""
        if not self.traceparent:
            return NO_TRACE
        parent = {"traceparent": self.traceparent}
        return {**parent, "tracestate": self.tracestate} if self.tracestate else parent

    def wants(self, event: WebhookEvent) -> bool:
        """Does the caller want to be told of this?"""
        return bool(self.webhook) and event in self.events.split(",")

    @classmethod
    def parse(cls, prediction_id: PredictionId, flat: Sequence[bytes]) -> "Record":
        """From the reply of HGETALL. Fields that a newer release wrote are ignored; empty ones read as absent."""
        fields: dict[str, object] = {name.decode(): value.decode() for name, value in pairs(flat) if value}
        return msgspec.convert({**fields, "id": prediction_id}, cls, strict=False)


class Claim(Struct, frozen=True):
    """The right of one director to run one prediction now."""

    record: Record
    input: Raw

    @property
    def id(self) -> PredictionId:
        return self.record.id

    @property
    def token(self) -> Token:
        return self.record.token


LIFE: Final = 10_000_000  # more events than one list ever has


class Event(Struct, frozen=True):
    """One entry of `ev:<id>`. `seq`: its place there, and `LIFE` more for each revival where a list is replayed.

    `data` is JSON for output, logs and metric, a word for the rest.
    """

    seq: int
    kind: str
    at: int
    data: bytes = b""


class Outlook(Struct, frozen=True, array_like=True):
    """How it stands with one that waits: its place in its account's own line, from 1; how many of everybody's start
    before it; the times until it starts, None where nobody can tell; `detail`: a moment or a number.
    """

    position: int
    ahead: int
    p50_ms: int | None
    p90_ms: int | None
    reason: str
    detail: int | None = None


class Stored(Struct, frozen=True, kw_only=True):
    """A prediction at one moment. `input` is None once the data was removed; output and logs grow while it runs.

    `left_out`: bytes of input, output and logs that were too large to be read with it, none of which is here then.
    """

    record: Record
    input: Raw | None
    output: Raw | None = None
    logs: str = ""
    outlook: Outlook | None = None
    left_out: int = 0


class Urls(Struct, frozen=True, omit_defaults=True):
    """Absolute, on the public host. `stream` only where there is one: official clients fail on null."""

    get: str
    cancel: str
    web: str
    stream: str = ""


class Eta(Struct, frozen=True):
    """Seconds until it starts: half of all start within p50, nine of ten within p90."""

    p50: float
    p90: float


class Place(Struct, frozen=True):
    """Why one waits, and for how long: the member `queue` of a prediction that waits."""

    position: int
    ahead: int
    eta_s: Eta | None
    reason: str
    detail: str


class Prediction(Struct, frozen=True, kw_only=True):
    """A prediction as Replicate's clients know it. Which fields may be null is what those clients can take."""

    id: PredictionId
    model: str
    version: str
    input: Raw
    output: Raw | None
    logs: str
    error: str | None
    status: Status
    created_at: str
    started_at: str | None
    completed_at: str | None
    data_removed: bool
    metrics: dict[str, Raw]
    urls: Urls
    source: str = "api"
    deployment: str | UnsetType = UNSET
    destination: str | UnsetType = UNSET
    deadline: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    queue: Place | UnsetType = UNSET
    webhook: str | UnsetType = UNSET
    webhook_events_filter: tuple[str, ...] | UnsetType = UNSET


class Page(Struct, Generic[T], frozen=True):
    """One page of a listing, newest first; both addresses absolute or null."""

    next: str | None
    previous: str | None
    results: Sequence[T]


def pairs(flat: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    """A flat reply of field, value, field, value … by twos."""
    return zip(flat[::2], flat[1::2], strict=True)


def flat(fields: Mapping[str, str | int | bytes | None]) -> list[str | int | bytes]:
    """The other way round, for a script's arguments; None and '' are left out."""
    return [part for name, value in fields.items() if value is not None and value != "" for part in (name, value)]


class Known(Struct, frozen=True, kw_only=True):
    """What the queue knows of one prediction at the moment `now`, all but its bulk. Times in ms.

    `events` without output, logs and metrics; none once they were removed. `attempts`: most that its queue gives;
    `due`, `lease`, `owed`: when its next attempt, the end of its lease, the next attempt of its webhook is.
    """

    now: int
    record: Record
    events: tuple[Event, ...] = ()
    outlook: Outlook | None = None
    attempts: int | None = None
    due: int | None = None
    lease: int | None = None
    owed: int | None = None
    is_dead: bool = False


# How a record remembers the attempts that did not end its prediction. Pure; `lua/lib/settle.lua` writes it.


class Spent(Struct, frozen=True, kw_only=True):
    """One attempt that was used up: who held it, from when to when, and why it ended. Times in ms."""

    number: int
    director: str
    claimed: int | None
    ended: int
    code: str


def spent_attempts(history: str) -> tuple[Spent, ...]:
    """Oldest first: number, holder, claimed, ended, code of each; a semicolon between two."""
    return tuple(_spent(*line.split(" ", 4)) for line in history.split(";") if line)


def _spent(number: str, director: str, claimed: str, ended: str, code: str) -> Spent:
    return Spent(
        number=int(number), director=director, claimed=int(claimed) if claimed else None, ended=int(ended), code=code
    )


# How the setup of a model server went, as its version has it in the catalogue: the last one that ended, and no other.
#
# Pure. What the server says of itself is bounded and read for what it means, never believed to be well-formed.

MOST_LOG_BYTES: Final = 64 * 1024
LONGEST_TIME: Final = 64

SetupStatus = Literal["succeeded", "failed"]


class SetupRun(Struct, frozen=True, kw_only=True):
    """One setup that ended. Times are the server's own, None where it does not tell them.

    `logs`: the end of what it printed. `server`: its address, which is for operators alone.
    """

    status: SetupStatus
    started_at: str | None
    completed_at: str | None
    logs: str
    server: str


def setup_run(status: SetupStatus, *, started_at: str, completed_at: str, logs: str, server: str) -> SetupRun:
    """Of what a server says."""
    return SetupRun(
        status=status,
        started_at=_time(started_at),
        completed_at=_time(completed_at),
        logs=logs.encode(errors="replace")[-MOST_LOG_BYTES:].decode(errors="ignore"),
        server=server,
    )


def read_setup_run(stored: bytes | str | None) -> SetupRun | None:
    """As a director wrote it; None where none did, or one of another release that is not understood."""
    try:
        return msgspec.json.decode(stored, type=SetupRun) if stored else None
    except msgspec.DecodeError:
        return None


def _time(said: str) -> str | None:
    """RFC 3339 in UTC with milliseconds; None for what is no time. One without a zone is taken for UTC."""
    if len(said) > LONGEST_TIME:
        return None
    try:
        at = datetime.fromisoformat(said)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
