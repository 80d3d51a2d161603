"""State the replies of scripts as types, and parse the parts that several replies share."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from director.core.ids import LANES, PredictionId
from director.core.policy import NONE, Lane, Objectives
from director.core.schema import Claim, Event, Outlook
from director.core.states import TERMINAL, Status

Admission = Literal["absorb", "bounded", "reject"]
Unregistered = Literal["done", "live", "dead", "served"]


class QueueStats(Struct, frozen=True, kw_only=True):
    """One queue at one moment. `oldest_ms`: age of the oldest prediction that is not terminal.

    `service_ms`: how long a recent run keeps a slot, 0 if unknown. `starting`, `setup_failed`, `server_auth`: directors
    whose servers are in this state. `leaving`: predictions on their way to another server. `swap`: the reason of a
    `Swap` while the model shares a device and is not loaded. `opens_ms`: when its open hours begin, None while they are
    open; `zone`: their clock. `planned`: of those that are delayed. `idle`: of those in the lane low. `closed`: of each
    lane, what is out of its open hours.
    """

    high: int
    normal: int
    low: int
    claimed: int
    delayed: int
    dead: int
    live: int
    oldest_ms: int
    directors: int
    streams: int
    read: int
    paused: bool
    slots: int
    service_ms: float
    service_cost: float
    mode: str
    max_queued: int | None
    breaker: str
    starting: int
    setup_failed: int
    server_auth: int
    leaving: int
    objectives: Objectives = NONE
    paused_at: int | None = None
    paused_by: str = ""
    swap: str = ""
    opens_ms: int | None = None
    zone: str = ""
    planned: int = 0
    idle: int = 0
    closed: tuple[int, int, int] = (0, 0, 0)
    tally: dict[str, int]

    @property
    def waiting(self) -> int:
        return self.high + self.normal + self.low

    def may_start_in(self, lane: Lane) -> int:
        """Return how many wait in a lane for a director: none has to be there for idle and for closed work."""
        return int(getattr(self, lane)) - self.closed[LANES.index(lane)] - (self.idle if lane == "low" else 0)

    @property
    def accepted(self) -> int:
        """Predictions ever accepted. A planned one is once it is due, a revived dead letter once more."""
        return sum(map(self.count_accepted, LANES))

    def count_accepted(self, lane: str) -> int:
        """Idle work counts as low, as in `low`."""
        return self.tally.get(f"accepted:{lane}", 0) + (self.tally.get("accepted:idle", 0) if lane == "low" else 0)

    @property
    def started(self) -> int:
        return self.tally.get("started", 0)

    @property
    def ended(self) -> int:
        return self.tally.get("ended", 0)


class Demand(Struct, frozen=True, kw_only=True):
    """Predictions that a queue runs, and could run soon. `slots_each` and `service_ms` are 0 if unknown."""

    now_ms: int
    runnable: int
    running: int
    high: int
    normal: int
    low: int
    slots_each: float
    service_ms: float
    paused: bool
    objectives: Objectives


Order = Literal["", "load", "rest", "pin"]
"""The order of an operator: `load` once; `rest` and `pin` until the next order."""


class Line(Struct, frozen=True):
    """Predictions of one account in one lane that could start now. `account` is '' if there are too many accounts."""

    account: str
    lane: Lane
    count: int
    oldest_s: float


class Survey(Struct, frozen=True, kw_only=True):
    """All that waits in a queue and could start now. `accepted` counts from the beginning. `run_s` is 0 if unknown."""

    order: Order
    accepted: int
    run_s: float
    lines: tuple[Line, ...]


class Migrated(Struct, frozen=True, kw_only=True):
    """One slice: the start of the next, -1 after the last; how many moved, and how many stay as claimed or held."""

    next: int
    moved: int
    claimed: int
    held: int


Reserved = Literal["create", "read", "compute", "credit"]
"""credit: compute over all days."""
Rotated = Literal["rotated", "unknown", "full"]
Deployed = Literal["written", "changed", "full"]
Split = Literal["written", "changed", "full"]
SplitStep = Literal["begins", "shares", "stays", "ends"]
SplitCounted = Literal["counted", "changed"]
BatchOpened = Literal["opened", "full"]
BatchWritten = Literal["written", "lost", "changed"]


class Allowance(Struct, frozen=True):
    """The state of a limit after a request. `remaining` of `most`: requests, or seconds of compute.

    `reset_ms`: until all is available again. `retry_after_ms`: 0 if allowed. Credit does not come back: both are 0.
    """

    limit: Reserved
    allowed: bool
    most: int
    remaining: int
    reset_ms: int
    retry_after_ms: int


BudgetLimit = Literal["", "minute", "day", "month", "compute"]


class Budgeted(Struct, frozen=True):
    """The answer to a reservation of tokens and compute. `limit`: the one that denies for longest."""

    allowed: bool
    limit: BudgetLimit
    retry_after_ms: int


class Stowed(Struct, frozen=True):
    fits: bool
    total: int


Amended = Literal["done", "exists", "unknown"]
Configured = Literal["done", "changed", "unknown"]
Withdrawn = Literal["done", "versions"]
Canceled = Literal["canceled", "asked", "over", "moved", "unknown"]
Erased = Literal["erased", "unknown", "running"]
Redelivered = Literal["owed", "unknown", "running", "unwanted", "settled", "removed"]


class Accepted(Struct, frozen=True):
    """The result of a submit. `replayed`: the idempotency key belongs to this older prediction."""

    id: PredictionId
    replayed: bool = False
    created_ms: int = 0
    deadline_ms: int | None = None
    outlook: Outlook | None = None


class Bound(NamedTuple):
    """The prediction of an idempotency key, the request's fingerprint, and the key's age by the server's clock."""

    id: PredictionId
    fingerprint: str
    age_ms: int


class Replayed(Struct, frozen=True, kw_only=True):
    """`last`: the newest event. `next`: the event after these. `moved`: the server that it moved to, or ''."""

    account: str
    status: Status
    ticket: str
    moved: str
    last: int
    next: int
    events: tuple[Event, ...]

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def is_removed(self) -> bool:
        return self.last == 0

    @property
    def has_more(self) -> bool:
        return self.next <= self.last


Hold = Literal["held", "lost", "user", "deadline"]
"""State of a claim: held; lost; its caller asked to cancel; its deadline has passed."""
Requeued = Literal["waiting", "delayed", "dead", "canceled", "late", "gone", "lost", "fault"]
Readiness = Literal["ready", "starting", "setup_failed", "server_auth", "draining"]
"""State of a director: `starting` has no ready server yet; `draining` claims nothing more."""


class Swap(Struct, frozen=True, kw_only=True):
    """The wait of a queue whose model is not loaded, since several models share a device.

    `eta_s`, `late_s`: until it is loaded, as is likely, and in nine of ten cases; None if unknown. `slots`: those that
    it has then.
    """

    reason: Literal["loading", "waiting_for_device"]
    eta_s: float | None
    late_s: float | None
    slots: int


Ceased = Literal["count", "empty", "budget", "bound", "paused", "open"]
"""Why a call handed out no more. `bound`: one call looks at no more entries; `open`: the breaker is open."""


class Claims(list[Claim]):
    def __init__(self, claims: Iterable[Claim] = (), *, why: Ceased = "empty") -> None:
        super().__init__(claims)
        self.why = why


class Advanced(Struct, frozen=True):
    """The state of a claim after its progress was written, the last event's number, and when the run began."""

    hold: Hold
    seq: int
    started_ms: int | None


Delivered = Literal["", "noted", "others"]
"""'': nothing was noted, since it is no longer owed. `others`: it arrived, and others wait for the same host."""
Repair = Literal["forgotten", "leased", "offered", "placed", "timed"]
"""What reconcile did: dropped an id that is terminal or has no record; gave a claim its lease; made claims look into
its stream or backlog; put it back in line; put its deadline back into the index."""
Departed = Literal["leaving", "elsewhere", "claimed", "held", "gone"]
"""State of a prediction that should leave. `elsewhere`: it leaves for a third server; `held`: its account is paused."""
Arrived = Literal["here", "refused", "unknown"]
"""`refused`: this move is refused for good; `unknown`: the queue is unknown."""
Vacated = Literal["moved", "cancel", "stays"]
Stayed = Literal["waiting", "delayed", "canceled", "gone"]


def event(seq: int, entry: bytes) -> Event:
    kind, at, data = entry.split(b" ", 2)
    return Event(seq, kind.decode(), int(at), data)


def parse_news(message: bytes) -> list[Event]:
    """Return the events in a message of `advance`; none if the log has to be read for them."""
    if b"\0" in message:
        last, *entries = message.replace(b"\1", b" ").split(b"\0")
    else:
        last, *entries = message.split(b" ", 1)
    if not entries:
        return []
    try:
        first = int(last) - len(entries) + 1
        return [event(first + at, entry) for at, entry in enumerate(entries)]
    except ValueError:  # one that could not be read would end the subscription of all readers
        return []


def parse_outlook(reply: Sequence[bytes | int] | None) -> Outlook | None:
    """Parse the outlook of a waiting prediction as lib/outlook returns it; None if it does not wait."""
    if not reply:
        return None
    position, ahead, p50, p90, reason, detail = reply
    words, by = reason.decode() if isinstance(reason, bytes) else "", b""
    if words in ("paused", "closed") and isinstance(detail, bytes):
        detail, _, by = detail.partition(b" ")
    return Outlook(int(position), int(ahead), number(p50), number(p90), words, number(detail), by.decode())


def number(text: bytes | int) -> int | None:
    return None if text == b"" else int(float(text))
