"""Define what is stored and sent: records, claims, events, and the prediction that a caller sees. A caller's JSON stays
`Raw` from end to end: inputs and outputs are never encoded again.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import fields

from director.core.ids import Kind, PredictionId, QueueName
from director.core.states import TERMINAL, Status, WebhookEvent

T = TypeVar("T")

Token = str
NewEvent = tuple[str, bytes]
"""(kind, data) of an event that gets its number in Redis."""
TraceHeaders = Mapping[str, str]
"""What is handed on with a prediction: `traceparent`, and `tracestate` where there is one; empty where none came."""

NO_TRACE: Final[TraceHeaders] = {}

REFERENCE_BYTES: Final = 44  # of every reference: so most other values are told apart by their size
REFERENCE: Final = re.compile(rb"\0([0-9a-f]{32}) ([0-9]{10})")


class Reference(Struct, frozen=True):
    """The value in Redis of an input or an output whose bytes are in the file store. `digest`: the start of their
    SHA-256 in hex. `size`: their number.

    A reference begins with a byte that begins no JSON. Inputs and outputs are JSON, so no caller and no model can write
    one. It names no prediction: its file is looked for among those of the prediction that it was read of.
    """

    digest: str
    size: int

    def __bytes__(self) -> bytes:
        return f"\0{self.digest} {self.size:010}".encode()


def reference_in(kept: bytes | Raw | None) -> Reference | None:
    """Return the reference that stands in place of the data, or None if this is the data."""
    if kept is None or len(kept) != REFERENCE_BYTES:
        return None
    found = REFERENCE.fullmatch(bytes(kept))
    return Reference(found[1].decode(), int(found[2])) if found else None


class RequestFacts(Struct, frozen=True, kw_only=True, rename={"webhook_events": "events", "deadline_status": "late"}):
    """The facts that a request fixes for the whole life of its prediction. Empty values are not stored.

    A field here is in `NewPrediction` and in `Record`, `enqueue` stores it under its name, and an operator's retry
    copies it unless `store/across.py` lists it as the attempt's own. `rename`: fields with another name in Redis.
    """

    account: str
    model: str
    version: str
    queue: QueueName
    kind: Kind = ""
    lane: str = "normal"
    cost: float = 1
    destination: str = ""  # owner/name of the model that a training makes a version of
    deployment: str = ""  # owner/name of the deployment that made it, if any
    split: str = ""  # why it has its version, if its deployment has two: see `read_mark` of director/core/split.py
    url: str = ""  # base of the URLs in answers, as the client that made it reached the API
    ticket: str = ""  # secret part of its event stream's URL; '' without a stream
    webhook: str = ""
    webhook_events: str = ""  # the filter: wanted events, joined by commas
    deadline_status: str = ""  # 'aborted' if the caller asked for the deadline and so knows this status
    affinity: str = ""  # digest of a key, 16 hex digits; predictions with the same key prefer one server
    metered: bool = False  # its account's compute is reserved and corrected at its end, see director/keeper/cashier.py
    data_ttl_ms: int | None = None  # lifetime of its data after the end, if its account has its own
    secret: str = ""  # where secret values lie in its input, in bytes: pairs of start and end; overwritten at the end
    api_token: str = ""  # id of the API token that it came with, see lua/lib/ledger.lua
    budgeted: bool = False  # its account's tokens, or compute of the month, are reserved and settled at its end
    start_after: int | None = None  # ms: the time that its caller asked for, before which it does not start
    tokens: str = ""  # expected: `<of its input> <most of its output>`, see lua/lib/estimate.lua
    endpoint: str = ""  # of OpenAI's API: its input is a body for it. '' for an input in the form of Replicate's API
    once_shown: bool = False  # after it has shown output no other run of it begins: it fails instead
    traceparent: str = ""  # of its trace, see director/runtime/tracing.py
    tracestate: str = ""

    @property
    def request_facts(self) -> dict[str, Any]:
        return dict(zip(FACTS, values_of_facts(self), strict=True))

    @property
    def texts(self) -> tuple[str, ...]:
        return texts_of_facts(self)


# each create reads all of them, several times
FACTS: Final = RequestFacts.__struct_fields__
TEXTS: Final = tuple(fact.name for fact in fields(RequestFacts) if fact.type not in (float, bool, int | None))
values_of_facts: Final = attrgetter(*FACTS)
texts_of_facts: Final = attrgetter(*TEXTS)


STORED_NAMES: Final = {
    "webhook_outcome": "told",
    "webhook_attempts": "tellings",
    "webhook_attempts_before": "tellings_before",
    "next_webhook_attempt": "next_telling",
    "ended_by": "ended",
}


class Record(RequestFacts, frozen=True, kw_only=True, rename=STORED_NAMES):
    """The hash `rec:<id>`: a prediction without its large data. Times are ms of the server's clock."""

    id: PredictionId
    status: Status
    created: int
    started: int | None = None
    completed: int | None = None
    deadline: int | None = None
    attempt: int = 0
    claims: int = 0
    token: Token = ""
    holder: str = ""
    claimed: int | None = None
    seq: int = 0
    cancel: str = ""
    error: str = ""
    code: str = ""
    metrics: str = ""
    webhook_outcome: str = ""  # of its terminal webhook's last attempt
    webhook_attempts: int = 0
    webhook_attempts_before: int = 0  # those before a redelivery was asked for, which restarted the schedule
    owed_since: int | None = None  # start of that schedule
    next_webhook_attempt: int | None = None  # when its next attempt is due by the schedule
    forwarded: int | None = None  # the same time, if that attempt was brought forward; 0 if it was put off before
    revivals: int = 0
    start_by: int | None = None
    remote: str = ""  # the server's id of its run, by which another director can follow the run
    begun: bool = False  # an attempt has run
    shown: bool = False  # its run has shown output; written only where `once_shown` asks for it
    ended_by: Token = ""  # token of the claim that finished it
    place: str = ""  # position and number ahead on acceptance; eta50 and eta90: the ms that its caller was given then
    eta50: int | None = None
    eta90: int | None = None
    idem: str = ""  # digest of its idempotency key
    leaving: str = ""  # site of the Redis server that it is moving to
    moved: str = ""  # site of the server that has it now, with all its data
    moves: int = 0  # number of moves to another server
    history: str = ""  # attempts that did not end it, see `parse_history`

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def is_early(self) -> bool:
        """Was the webhook's present attempt brought forward?"""
        return self.forwarded is not None and self.forwarded == self.next_webhook_attempt

    @property
    def trace(self) -> TraceHeaders:
        if not self.traceparent:
            return NO_TRACE
        parent = {"traceparent": self.traceparent}
        return {**parent, "tracestate": self.tracestate} if self.tracestate else parent

    def wants(self, event: WebhookEvent) -> bool:
        return bool(self.webhook) and event in self.webhook_events.split(",")

    @classmethod
    def parse(cls, prediction_id: PredictionId, flat: Sequence[bytes]) -> "Record":
        """Parse a reply of HGETALL. Unknown fields of newer releases are ignored; empty fields count as absent."""
        found = {NAMES[name]: value.decode() for name, value in pairs(flat) if value and name in NAMES}
        return msgspec.convert({**found, "id": prediction_id}, cls, strict=False)

    @classmethod
    def unpack(cls, packed: bytes) -> "Record":
        """Unpack a record as `records.pack` of lua/lib returns it: a third of the time of `parse`."""
        return PACKED.decode(packed)


PACKED: Final = msgspec.msgpack.Decoder(Record, strict=False)
NAMES: Final = {name.encode(): name for name in Record.__struct_encode_fields__}


class NewPrediction(RequestFacts, frozen=True, kw_only=True):
    """A checked prediction that `enqueue` takes. Fields below `waiter` are for the script; the record keeps the others.

    `weight`, `most_queued`, `most_running`, `open_hours`: the account's limits in this queue, as of revision
    `limits_rev`; the queue ignores older ones.
    """

    id: PredictionId
    input: bytes
    shard: str  # numbers of its account's streams, joined by commas
    waiter: str = ""  # the API process whose caller waits, which is notified of the end
    idempotency: tuple[str, str] | None = None  # digest of the key, and fingerprint of the request
    weight: float = 1
    most_running: int | None = None
    most_queued: int | None = None
    limits_rev: int = 0
    open_hours: str = ""
    lifetime_ms: int | None = None
    start_by_ms: int | None = None
    bound: bool = False  # the idempotency key was bound to it before

    def record(self, prediction_id: PredictionId, *, created: int, deadline: int | None) -> Record:
        """Return the record that `enqueue` stored under this id, without what only the script knows."""
        if deadline is None and self.lifetime_ms is not None:
            deadline = created + self.lifetime_ms
        facts = self.request_facts
        return Record(id=prediction_id, status=Status.STARTING, created=created, deadline=deadline, **facts)


class Claim(Struct):
    """`input`: as Redis keeps it, until its director has read it from the file store."""

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
    """One entry of `ev:<id>`. `seq`: its place there; a replayed list adds `LIFE` for each revival. `data` is JSON for
    output, logs and metric, a word for the other kinds.
    """

    seq: int
    kind: str
    at: int
    data: bytes = b""


class Outlook(Struct, frozen=True, array_like=True):
    """The outlook of a waiting prediction. `position`: in its account's line, from 1. `ahead`: predictions of all
    accounts before it. `p50_ms`, `p90_ms`: times until it starts, None if unknown. `detail`: a time or a number, by
    `reason`. `by`: who paused the queue, if that is known; the zone of open hours.
    """

    position: int
    ahead: int
    p50_ms: int | None
    p90_ms: int | None
    reason: str
    detail: int | None = None
    by: str = ""


class Stored(Struct, frozen=True, kw_only=True):
    """A prediction at one moment. `input` is None once the data was removed; output and logs grow during the run.
    `left_out`: bytes of input, output and logs that were too large to read; none of them is here then.
    """

    record: Record
    input: Raw | None
    output: Raw | None = None
    logs: str = ""
    outlook: Outlook | None = None
    left_out: int = 0


class Urls(Struct, frozen=True, omit_defaults=True):
    """Absolute URLs on the public host. `stream` is left out without a stream: official clients fail on null."""

    get: str
    cancel: str
    web: str
    stream: str = ""


class Eta(Struct, frozen=True):
    """Seconds until the start: half of all predictions start within p50, nine of ten within p90."""

    p50: float
    p90: float


class Place(Struct, frozen=True):
    """Why a prediction waits and for how long: the member `queue` of a waiting prediction. `since`: when its queue was
    paused.
    """

    position: int
    ahead: int
    eta_s: Eta | None
    reason: str
    detail: str
    since: str | None = None


class Prediction(Struct, frozen=True, kw_only=True):
    """A prediction in the form of Replicate's API. A field may be null only where official clients accept it."""

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
    """One page of a listing, newest first. Both URLs are absolute or null."""

    next: str | None
    previous: str | None
    results: Sequence[T]


def pairs(flat: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


class Known(Struct, frozen=True, kw_only=True):
    """A prediction at the moment `now` without its large data. Times in ms. `events` lacks output, logs and metrics,
    and is empty once they were removed. `attempts`: the queue's maximum. `due`, `lease`, `owed`: time of its next
    attempt, end of its lease, time of its webhook's next attempt.
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


# A record's history of attempts that did not end its prediction. Pure; `lua/lib/ends.lua` writes it.


class Spent(Struct, frozen=True):
    """One attempt that was used up: its director, its time and the reason why it ended. Times in ms."""

    number: int
    director: str
    claimed: int | None
    ended: int
    code: str


def parse_history(history: str) -> tuple[Spent, ...]:
    """Parse a history, oldest first: number, holder, claimed, ended and code of each, separated by semicolons."""
    attempts = (line.split(" ", 4) for line in history.split(";") if line)
    return tuple(
        Spent(int(number), director, int(claimed) if claimed else None, int(ended), code)
        for number, director, claimed, ended, code in attempts
    )


# The last finished setup of a version's model server, as the catalogue keeps it. Pure. A server's own statements are
# bounded, and never assumed to be well-formed.

MOST_LOG_BYTES: Final = 64 * 1024
LONGEST_TIME: Final = 64

SetupStatus = Literal["succeeded", "failed"]


class SetupRun(Struct, frozen=True, kw_only=True):
    """One finished setup. Times are the server's own, None if it reports none.

    `logs`: the end of its output. `server`: its address, for operators only.
    """

    status: SetupStatus
    started_at: str | None
    completed_at: str | None
    logs: str
    server: str


def setup_run(status: SetupStatus, *, started_at: str, completed_at: str, logs: str, server: str) -> SetupRun:
    return SetupRun(
        status=status,
        started_at=_time(started_at),
        completed_at=_time(completed_at),
        logs=logs.encode(errors="replace")[-MOST_LOG_BYTES:].decode(errors="ignore"),
        server=server,
    )


def read_setup_run(stored: bytes | str | None) -> SetupRun | None:
    """Decode what a director wrote; None if it is missing, or another release wrote it in an unknown form."""
    try:
        return msgspec.json.decode(stored, type=SetupRun) if stored else None
    except msgspec.DecodeError:
        return None


def _time(said: str) -> str | None:
    """Return RFC 3339 in UTC with milliseconds, or None if it is malformed. A time without zone counts as UTC."""
    if len(said) > LONGEST_TIME:
        return None
    try:
        at = datetime.fromisoformat(said)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
