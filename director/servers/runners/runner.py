"""What every runner promises the executor, whatever server it drives.

A runner owns one model server. It never decides what a prediction becomes: it reports what it saw, in order, and
ends with exactly one `Ended`. It never talks to Redis and never learns a caller's URL.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw, Struct

from director.core.trace_context import NO_TRACE, TraceHeaders

# Runs that share one slot of a server that takes several in one request. Pure.
#
# Knows who is still to come, and when the last one has gone. Never knows what they run.


class Batch:
    """`places`: for as many runs. `on_gathered` is called once no more will come. `ends`: what its runs ended as."""

    def __init__(self, most: int) -> None:
        self.places = tuple(Place(self) for _ in range(most))
        self.ends: set[str] = set()
        self.on_gathered: Callable[[], None] = lambda: None
        self._awaited = set(self.places)
        self._kept = set(self.places)

    @property
    def is_gathered(self) -> bool:
        """Has everyone come who will?"""
        return not self._awaited

    def _came(self, place: "Place") -> None:
        if place in self._awaited:
            self._awaited.remove(place)
            if not self._awaited:
                self.on_gathered()

    def _left(self, place: "Place") -> bool:
        self._kept.discard(place)
        self._came(place)
        return not self._kept


class Place:
    """That of one run, or of nobody."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def come(self) -> None:
        """Its run is there."""
        self.batch._came(self)

    def leave(self) -> bool:
        """Its run is over, or will never come. True when the slot is free by that: nobody else is in the batch."""
        return self.batch._left(self)


BLOCK_BYTES: Final = 4096  # of a disk: no file takes less, here or in a store


class HealthStatus(StrEnum):
    """What a model server says of itself, or what its silence says."""

    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    SETUP_FAILED = "setup_failed"
    UNHEALTHY = "unhealthy"  # answers, but not well; may recover by itself
    DEFUNCT = "defunct"  # its worker is dead: only a restart helps
    UNREACHABLE = "unreachable"


class Setup(Struct, frozen=True, kw_only=True):
    """What a server tells of its own start, in its own words; '' for what it does not."""

    started_at: str = ""
    completed_at: str = ""
    logs: str = ""


class Health(Struct, frozen=True, kw_only=True):
    """One look at a server. `detail` is for people: why it is not ready, in one line. `is_locked`: it does not let the
    director in.
    """

    status: HealthStatus
    detail: str = ""
    setup: Setup | None = None  # None on servers that tell nothing of it
    server: str = ""  # e.g. "coglet 0.23.1"; empty while unknown
    since: str = ""  # tells one start of the server from the next; empty while unknown
    is_locked: bool = False

    @property
    def can_run(self) -> bool:
        """True when the server would take a prediction now or as soon as a slot is free."""
        return self.status in (HealthStatus.READY, HealthStatus.BUSY)


class RunRequest(Struct, frozen=True, kw_only=True):
    """What a runner needs to start one run. `wants_progress`: somebody asked to see output or logs before the end.

    `remote`: what an earlier run of it told with `Accepted`. A runner that knows it follows that run and starts none.
    `place`: in the batch that shares its slot, of a runner that sends several together; one that has to be `alone` goes
    by itself even there, since an earlier run of it was lost, and it may be what took the others along. `cost`: its
    share of what one request for several of them uses, as far as the server tells none. `trace`: headers of the
    request that starts the run.
    """

    id: str
    input: Raw
    wants_progress: bool = True
    remote: str = ""
    place: Place | None = None
    alone: bool = False
    cost: float = 1.0
    trace: TraceHeaders = NO_TRACE


class Outcome(StrEnum):
    """How a run ended. The error classes that the retry policy knows are the last four."""

    SUCCEEDED = "succeeded"
    CANCELED = "canceled"  # the server stopped it; only its holder knows whether it was asked to
    FAILED = "failed"  # the model's own code failed: the same input will fail again
    INVALID = "invalid"  # the server refused the input
    REFUSED = "refused"  # no free slot, not ready, or not there: the prediction never began; give it back unspent
    LOST = "lost"  # the server or its worker died, or the connection broke: another attempt may succeed


class Began(Struct, frozen=True, tag="began"):
    """The run has begun on the server: it shows progress, or was not refused within 30 ms."""


class Accepted(Struct, frozen=True, tag="accepted"):
    """The server took it under a name of its own, by which the run can be followed by whoever comes after us."""

    remote: str


class Produced(Struct, frozen=True, tag="produced"):
    """One more output of a model that yields. `index` counts from 0 within the run."""

    item: Raw
    index: int


class ServerFile(Struct, frozen=True, kw_only=True, eq=False):
    """A file that the server gave us beside its output. `digest`: SHA-256 of it. `blocks` has it from its beginning, as
    often as it is called.
    """

    content_type: str
    size: int
    digest: str
    blocks: Callable[[], AsyncGenerator[bytes, None]]


class Received(Struct, frozen=True, tag="received"):
    """The server gave this file, and has `name` in its output where the file is to be."""

    name: str
    file: ServerFile


class Unreceived(Struct, frozen=True, tag="unreceived"):
    """A file that it gave could not be taken: its output will lack it, whatever the server says of it."""

    too_large: bool = False


class Logged(Struct, frozen=True, tag="logged"):
    """More text that the model printed."""

    text: str


class Measured(Struct, frozen=True, tag="measured"):
    """A metric that the model recorded. `mode`: replace, increment or append."""

    name: str
    value: Raw
    mode: str = "replace"


class Restarted(Struct, frozen=True, tag="restarted"):
    """The server runs it once more from the start: what it showed until now is of a run that nobody saw the end of.

    `why`: one word of ours.
    """

    why: str


class Lasting(Protocol):
    """What takes its time, and says when it is over."""

    def add_done_callback(self, call: Callable[[Any], object], /) -> None:
        """Call it then."""
        ...


class Ended(Struct, frozen=True, kw_only=True, tag="ended"):
    """The one last event. Fields the server did not tell are None: the tracker then keeps what progress showed.

    `retry_after_s`: the server's own wish on a refusal. `server_is_dead`: take no more work to it before a restart.
    `has_no_slot`: it stayed full, though by our count a slot was free. `is_locked`: it does not let the director in, so
    nothing is to be sent there. `code`: instead of the outcome's. `goes_on`: nobody waits for it any more, and yet it
    uses its slot on the server until this is done.
    """

    outcome: Outcome
    output: Raw | None = None
    logs: str | None = None
    error: str | None = None
    metrics: dict[str, Raw] = msgspec.field(default_factory=dict)
    retry_after_s: float | None = None
    server_is_dead: bool = False
    has_no_slot: bool = False
    is_locked: bool = False
    code: str = ""
    goes_on: Lasting | None = None


RunEvent = Began | Accepted | Produced | Received | Unreceived | Logged | Measured | Restarted | Ended


class Capabilities(Struct, frozen=True, kw_only=True):
    """What its kind of server can do. `streams`: output is seen before the end, if a model has it. `resumes`: a run
    that was `Accepted` can be followed by another one. `idempotent`: asked twice for an id, the server runs it once.
    `batches`: so many runs at most go in one request and use one slot; 0 where each is a request of its own.
    `restarts`: it ends when it is asked to, and a fresh one comes.
    """

    streams: bool = False
    resumes: bool = False
    idempotent: bool = False
    restarts: bool = False
    batches: int = 0


Hear = Callable[[RunEvent], None]
"""Is told each event of a run, in order."""


class Runner(Protocol):
    """One model server."""

    url: str
    capabilities: Capabilities

    async def health(self) -> Health:
        """Look once. Never raises for what the server does: silence is `UNREACHABLE`."""
        ...

    async def openapi_schema(self) -> Raw | None:
        """The server's OpenAPI document, or None when it has none. At most 1 MB is read."""
        ...

    def run(self, request: RunRequest) -> AsyncGenerator[RunEvent, None]:
        """Start a run and follow it to its end: zero or more progress events, then exactly one `Ended`.

        `Began` comes before any other progress, at most once, and never before a refusal.
        Closing the generator early lets go of the run: the server is told to stop it where it can be told. One that was
        `Accepted` is left as it is, since somebody else may follow it by now: `cancel` stops it.
        """
        ...

    def knows(self, remote: str) -> bool:
        """Is that, from an `Accepted`, a run on this very server?"""
        ...

    async def cancel(self, prediction_id: str) -> bool:
        """Ask the server to stop a run. True if it knew the id; the end still comes from `run`. Safe to repeat."""
        ...

    async def shutdown(self) -> bool:
        """Ask the server's process to end, so that whoever looks after it starts a fresh one. True if it heard."""
        ...

    async def aclose(self) -> None:
        """Let go of connections. Runs still open end as LOST."""
        ...


class OneAnswer(ABC):
    """A runner whose runs show nothing before their end: whoever wants one can follow it itself, with no task more."""

    @abstractmethod
    async def hear(self, request: RunRequest, hear: Hear) -> None:
        """As `run`, in the task of who calls: returns after `Ended` was told. Canceled, it lets go of the run."""
