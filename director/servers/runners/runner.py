"""The contract between a runner and the executor, the same for every kind of model server.

A runner owns one model server. It never decides what a prediction becomes: it reports what it saw, in order, and
ends with exactly one `Ended`. It never talks to Redis and never learns a caller's URL.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw, Struct

from director.core.schema import NO_TRACE, TraceHeaders

# The bytes of chunks that may come for one answer, in outputs of the most bytes: a chunk of 250 bytes has 4 of text
CHUNKS_OF_OUTPUT: Final = 4
BLOCK_BYTES: Final = 4096  # the smallest block of a disk: no file takes less, here or in a store


class NoAnswer(Exception):
    """A model server did not answer. The text says why."""


class HealthStatus(StrEnum):
    """The state of a model server, as it says or as its silence shows."""

    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    SETUP_FAILED = "setup_failed"
    UNHEALTHY = "unhealthy"  # answers with an error; may recover by itself
    DEFUNCT = "defunct"  # its worker is dead: only a restart helps
    UNREACHABLE = "unreachable"


class Setup(Struct, frozen=True, kw_only=True):
    """A server's report of its own start, in its own words; '' for what it does not report."""

    started_at: str = ""
    completed_at: str = ""
    logs: str = ""


class Health(Struct, frozen=True, kw_only=True):
    """One look at a server. `detail`: why it is not ready. `is_locked`: it does not let the director in. `is_silent`:
    it did not answer in time. A server that is busy with a run looks the same as one that hangs.
    """

    status: HealthStatus
    detail: str = ""
    setup: Setup | None = None  # None if the server reports none
    server: str = ""  # e.g. "coglet 0.23.1"; empty while unknown
    since: str = ""  # differs for each start of the server; empty while unknown
    is_locked: bool = False
    is_silent: bool = False

    @property
    def can_run(self) -> bool:
        return self.status in (HealthStatus.READY, HealthStatus.BUSY)


class Batch:
    """Runs that go to a server in one request and share one slot, at most `most`. `on_gathered` is called once no more
    will come. `ends`: their outcomes. `awaited`: places whose run may still come. `kept`: places whose run is not over.
    """

    def __init__(self, most: int) -> None:
        self.places = tuple(Place(self) for _ in range(most))
        self.ends: set[str] = set()
        self.on_gathered: Callable[[], None] = lambda: None
        self.awaited = set(self.places)
        self.kept = set(self.places)

    @property
    def is_gathered(self) -> bool:
        return not self.awaited


class Place(Struct, eq=False):
    batch: Batch

    def come(self) -> None:
        if self in self.batch.awaited:
            self.batch.awaited.remove(self)
            if self.batch.is_gathered:
                self.batch.on_gathered()

    def leave(self) -> bool:
        self.batch.kept.discard(self)
        self.come()
        return not self.batch.kept


class RunRequest(Struct, frozen=True, kw_only=True):
    """A request to start one run. `wants_progress`: the caller asked to see output or logs before the end.

    `remote`: the name from an earlier `Accepted` of this prediction. A runner that knows it follows that run and starts
    none. `place`: in the batch that shares its slot, for runners that send several runs together. `alone`: it goes in a
    request by itself even there, since an earlier run of it was lost or often refused, and may have taken others along.
    `cost`: its share of what a request for several runs uses, unless the server reports a share. `trace`: headers of
    the request that starts the run. `is_first`: no run of this id can be left on any server. `endpoint`: of OpenAI's
    API, whose body `input` is and whose answers its caller expects; '' for an input in the form of Replicate's API.
    """

    id: str
    input: Raw
    wants_progress: bool = True
    remote: str = ""
    place: Place | None = None
    alone: bool = False
    cost: float = 1.0
    trace: TraceHeaders = NO_TRACE
    is_first: bool = False
    endpoint: str = ""


class Outcome(StrEnum):
    """How a run ended. The last four are the error classes that the retry policy knows."""

    SUCCEEDED = "succeeded"
    CANCELED = "canceled"  # the server stopped it; only the executor knows whether it was asked to
    FAILED = "failed"  # the model's own code failed: the same input will fail again
    INVALID = "invalid"  # the server refused the input
    REFUSED = "refused"  # no free slot, not ready, or not there: the prediction never began; give it back unspent
    LOST = "lost"  # the server or its worker died, or the connection broke: another attempt may succeed


class Began(Struct, frozen=True, tag="began"):
    """The run has begun on the server: it shows progress, or was not refused within 30 ms."""


class Accepted(Struct, frozen=True, tag="accepted"):
    """The server took the run under a name of its own, by which another director can follow it later."""

    remote: str


class Produced(Struct, frozen=True, tag="produced"):
    """One more output of a model that yields. `index` counts from 0 within the run. `tokens`: those of the output that
    came with it, as far as the server shows them; they count until the server reports its own number. `is_role`: a
    chunk that says no more than who speaks, so another run may still follow it.
    """

    item: Raw
    index: int
    tokens: int = 0
    is_role: bool = False


class ServerFile(Struct, frozen=True, kw_only=True, eq=False):
    """A file that the server sent beside its output. `digest`: SHA-256. Each call of `blocks` yields all of it."""

    content_type: str
    size: int
    digest: str
    blocks: Callable[[], AsyncGenerator[bytes, None]]


class Received(Struct, frozen=True, tag="received"):
    """The server sent this file. The output has `name` in the place where the file belongs."""

    name: str
    file: ServerFile


class Unreceived(Struct, frozen=True, tag="unreceived"):
    too_large: bool = False


class Logged(Struct, frozen=True, tag="logged"):
    text: str


class Counted(Struct, frozen=True, tag="counted"):
    """The server made tokens that no `Produced` shows: reasoning, or a tool call that is shown at the end."""

    tokens: int


class Measured(Struct, frozen=True, tag="measured"):
    name: str
    value: Raw
    mode: str = "replace"  # or increment, append


class Restarted(Struct, frozen=True, tag="restarted"):
    why: str


class Remainder(Protocol):
    def add_done_callback(self, call: Callable[[Any], object], /) -> None: ...


class Ended(Struct, frozen=True, kw_only=True, tag="ended"):
    """The one last event. A field that the server did not report is None: the tracker then keeps what progress showed.

    `retry_after_s`: the server's own wish on a refusal. `server_is_dead`: give it no more work before it was asked.
    `hangs`: an earlier run there does not stop, so that only a restart helps.
    `has_no_slot`: it stayed full although our count has a free slot. `is_locked`: it does not let the director in, so
    send nothing there. `code`: overrides the code of the outcome. `goes_on`: the rest of the run, which uses its slot
    on the server until it is over. `in_doubt`: the health of the server decides what it means (`outcomes.settle`);
    never seen outside of a runner. `may_be_input`: a server that is ready refused it, so the reason may be this input.
    `may_be_full`: it said so by a status that mostly speaks of other runs. `refusals`: how often a server that had room
    refused it so. `by_words`: only words of the answer say
    that the server lost the run, and an input may make a server say them.
    """

    outcome: Outcome
    output: Raw | None = None
    logs: str | None = None
    error: str | None = None
    metrics: dict[str, Raw] = msgspec.field(default_factory=dict)
    retry_after_s: float | None = None
    server_is_dead: bool = False
    hangs: bool = False
    has_no_slot: bool = False
    is_locked: bool = False
    code: str = ""
    goes_on: Remainder | None = None
    in_doubt: bool = False
    may_be_input: bool = False
    may_be_full: bool = False
    refusals: int = 0
    by_words: bool = False


Progress = Accepted | Produced | Received | Unreceived | Logged | Counted | Measured | Restarted
RunEvent = Began | Progress | Ended


class Capabilities(Struct, frozen=True, kw_only=True):
    """The abilities of a kind of server. `streams`: output is seen before the end, if the model yields. `resumes`:
    another director can follow a run that was `Accepted`. `idempotent`: asked twice for an id, the server runs it once.
    `batches`: the most runs that share one request and one slot; 0 for none. `restarts`: it ends when asked to.
    `takes_bytes`: files of an input are sent with it, and not fetched by the server. `endpoints`: those of OpenAI's API
    whose bodies it takes as inputs.
    """

    streams: bool = False
    resumes: bool = False
    idempotent: bool = False
    restarts: bool = False
    takes_bytes: bool = False
    batches: int = 0
    endpoints: frozenset[str] = frozenset()


Hear = Callable[[RunEvent], None]
"""Is told each event of a run, in order."""


class Runner(Protocol):
    url: str
    capabilities: Capabilities

    async def health(self) -> Health:
        """Look once. Never raises for what the server does: silence is `UNREACHABLE`."""
        ...

    async def openapi_schema(self) -> Raw | None:
        """Return the server's OpenAPI document, or None if it has none. At most 1 MB is read. Raises NoAnswer."""
        ...

    def run(self, request: RunRequest) -> AsyncGenerator[RunEvent, None]:
        """Start a run and follow it to its end: zero or more progress events, then exactly one `Ended`.

        `Began` comes before any other progress, at most once, and never before a refusal. Closing the generator early
        stops the run on the server where that is possible. A run that was `Accepted` goes on, since another director
        may follow it by now: `cancel` stops it.
        """
        ...

    def knows(self, remote: str) -> bool:
        """Return whether `remote`, from an `Accepted`, is a run on this very server."""
        ...

    async def cancel(self, prediction_id: str) -> bool:
        """Ask the server to stop a run. True if it knew the id; the end still comes from `run`. Safe to repeat."""
        ...

    async def shutdown(self) -> bool:
        """Ask the server's process to end, so that its supervisor starts a fresh one. True if it answered."""
        ...

    async def aclose(self) -> None:
        """Close all connections. Runs still open end as LOST."""
        ...


class OneAnswer:
    """A runner whose runs are one answer each, whole or streamed: a caller can follow one without another task."""

    def hear(self, request: RunRequest, hear: Hear) -> Coroutine[Any, Any, None]:
        """Follow a run as `run` does, in the task of the caller. Returns after it called `hear` with `Ended`."""
        raise NotImplementedError
