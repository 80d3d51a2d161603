"""The lines that the parties of a run write down. The checker has no other evidence.

Each party writes its own file (`client.jsonl`, `cog-0.jsonl`, `sink.jsonl`, `nemesis.jsonl`, `server.jsonl`,
`queue.jsonl`), one JSON line at a time. It flushes every line, so a killed process loses at most its last line.
Times are milliseconds of this machine's clock. Lines of the server have times of the server's own clock, which may be
stepped: evidence.py translates them. The code under test writes nothing here.

The checker relies on this:

- client: the requests of one key follow each other, each after the answer to the one before. A different body under a
  used key is another `plan`.
- a model server: it writes `CogStarted` before the run shows anything, and `CogEnded` before its answer leaves. Every
  item of an output is `{"run": <run>, "i": <n>}`, so that a write shows which run it comes from. A run that crashes
  its server writes `crashed` first. A run that freezes its server for a moment is a fault, `stop_by_input`.
- a reader of event streams: it writes `Followed` once, before its first visit, then each event in order. These lines
  are in the client's file. Once all is at rest, readers come back for the events that they lack: those lines are in
  `readers.jsonl`.
- clients of a shared prediction: one gets it and one lists it, again and again, on connections of their own, while the
  caller that made it may cancel it and a reader follows it. Each answer is a `Seen`.
- a model server with OpenAI's API: it knows no prediction, so that the id of its runs is the tag of the call, which its
  body has as `user`. It writes `Spoken` before each piece leaves.
- callers of OpenAI's API: each try has a tag of its own, which is its `key`. A `Called` follows when it is over.
- makers of batches: they write `Batched` once a batch is made, and again, in `batches.jsonl`, once all is at rest. The
  tag in each line's body is its `custom_id`.
- nemesis: it names a process by its part and number (`director-0`, `cog-0`, `api-0`), and a link by its two ends
  (`director-0:redis`, `director-0:cog`, `webhooks:sink-0`, `all:redis`). Director and model server of one number belong
  together. Kinds that end a process begin with `kill` or `crash`, kinds that freeze one with `stop`; `partition` and
  `black_hole` cut a link. A fault ends when its target works again: after a kill, when the next process is ready. `pid`
  is the process that was hit. A `clock_step` of the server's clock has its seconds as detail, and is written down
  before the clock is stepped.
- the machine: it samples each process once a second, in `usage.jsonl`. Once all is at rest, nothing is asked for some
  seconds, which are a `Rested` of the nemesis.
- the server: its append-only file, read once all is at rest (rest.py). `number` is the place of a command in it. With
  several servers, their lines are in one order of time: all have the machine's clock.
"""

import gzip
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec
from msgspec import Struct


class _Line(Struct, frozen=True, kw_only=True, tag=lambda name: re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()):
    at: int


Action = Literal["create", "cancel"]
Value = str | int | bool | None


class Sent(_Line, frozen=True, kw_only=True):
    """client: a request is about to leave. `key` is its idempotency key, the same for every try of one submit. Limits
    that it did not ask for are 0.
    """

    key: str
    action: Action
    tenant: str = ""
    model: str = ""
    webhook: bool = False
    plan: str = ""
    start_by_s: int = 0
    cancel_after_s: int = 0


class Answered(_Line, frozen=True, kw_only=True):
    """client: the answer to a request. `status` is 0 if none came. `id` and `shown` are id and status in the body."""

    key: str
    action: Action
    status: int
    id: str = ""
    shown: str = ""
    replayed: bool = False


class Followed(_Line, frozen=True, kw_only=True):
    id: str
    tenant: int


class Heard(_Line, frozen=True, kw_only=True):
    """a reader: an event of the stream with its id as `mark`, or the comment `retried`, which has no id."""

    id: str
    event: str
    mark: str = ""
    data: str = ""


class Visited(_Line, frozen=True, kw_only=True):
    """a reader: it connected after the event of that mark. `status` is 0 if no answer came. `end` says why the visit
    ended: `done` was received, the stream broke, it was silent for too long, it ended without `done` ("whole"), or the
    reader left.
    """

    id: str
    after: str
    status: int
    end: Literal["done", "broken", "silent", "whole", "left"]
    until: int = 0


class Listed(_Line, frozen=True, kw_only=True):
    """a reader: the prediction's events as (number, type), read page by page once all is at rest."""

    id: str
    events: list[tuple[int, str]]


class Seen(_Line, frozen=True, kw_only=True):
    """client: a prediction in an answer that was asked for at `asked`. `status` is '' if the answer lacks it."""

    id: str
    asked: int
    by: Literal["get", "list"]
    status: str


class Called(_Line, frozen=True, kw_only=True):
    """client: its call of OpenAI's API is over. `key`: its tag. `chunks`: what came, each data of a stream or the whole
    answer. `end`: it came whole, it broke, it was silent for too long, or its caller left.
    """

    key: str
    id: str
    plan: str
    status: int
    chunks: list[str]
    end: Literal["whole", "broken", "silent", "left"]


class Batched(_Line, frozen=True, kw_only=True):
    """client: a batch of `total` lines was made, or what is shown of it at rest: its status, its counts, and name and
    prediction of each line in its two files.
    """

    id: str
    key: str
    tenant: int
    total: int
    status: str = ""
    counts: dict[str, int] = {}
    output: list[tuple[str, str]] = []
    errors: list[tuple[str, str]] = []


class CogStarted(_Line, frozen=True, kw_only=True):
    """a model server: a run began. `run` is unique for each run; `server` says where."""

    id: str
    run: str
    server: str
    pid: int


class CogEnded(_Line, frozen=True, kw_only=True):
    """a model server: that run ended. Missing after a kill. `asked`: when it was asked to stop, or 0. `odd` names its
    odd answer, whose `outcome` is what a director must make of it. `tokens`: of its output, as its answer reports them.
    """

    id: str
    run: str
    outcome: Literal["succeeded", "failed", "canceled", "crashed"]
    asked: int = 0
    odd: str = ""
    tokens: int = 0


class Spoken(_Line, frozen=True, kw_only=True):
    """a model server with OpenAI's API: a piece of the run's answer, or all of it, with so many tokens."""

    run: str
    data: str
    tokens: int


class Delivered(_Line, frozen=True, kw_only=True):
    """sink: a webhook arrived. `answered` is the sink's status, `signed` whether the signature was valid."""

    id: str
    webhook_id: str
    status: str
    answered: int
    signed: bool


class Fault(_Line, frozen=True, kw_only=True):
    """nemesis: a fault begins or ends. `kind` is one of plan.py; `target` names the process or link."""

    kind: str
    target: str
    phase: Literal["begin", "end"]
    detail: str = ""
    pid: int = 0


class Held(_Line, frozen=True, kw_only=True):
    """a neighbour: so many of its connections were open at this moment. Of `stall` only those with an answer count."""

    kind: Literal["slow", "stall"]
    part: str
    count: int


class Healed(_Line, frozen=True, kw_only=True):
    """nemesis: the load is over, every fault is mended, every process runs. The system must come to rest now."""


class Sampled(_Line, frozen=True, kw_only=True):
    """the machine: the processor time that a process has used so far, and the memory that it has now."""

    target: str
    pid: int
    busy_ms: int
    kb: int


class Rested(_Line, frozen=True, kw_only=True):
    """the run: all was at rest from then on, and nothing was asked for until `until`."""

    until: int


class Arrived(_Line, frozen=True, kw_only=True):
    """the server: a prediction was accepted. `at` is the time in its record."""

    number: int
    id: str
    tenant: str
    queue: str
    lane: str


class Claimed(_Line, frozen=True, kw_only=True):
    """the server: a prediction was claimed. `at` is the time in its record, `delivered` the server's own time of
    reading the entry out of `stream`. They are 0 and -1 if no entry was read.
    """

    number: int
    id: str
    stream: int
    holder: str
    delivered: int


class Stepped(_Line, frozen=True, kw_only=True):
    """the server: a script wrote these variables of the specification (`lab/spec/page.py`), as they are after it.
    `now`: the server's own time, 0 if it wrote none. `code`: of a claim that was taken away or of an end, else ''.
    """

    number: int
    id: str
    wrote: tuple[tuple[str, Value], ...]
    now: int = 0
    code: str = ""


class Breaker(_Line, frozen=True, kw_only=True):
    """the server: the breaker of a queue opened, so that one claim at a time probes it, or it closed again."""

    number: int
    queue: str
    is_open: bool


class Reign(_Line, frozen=True, kw_only=True):
    """the servers: one of them became the master."""

    server: str


class Unmade(_Line, frozen=True, kw_only=True):
    """the servers: a master made changes to a prediction, the first at `at`, that its successor never got. That one was
    promoted at `promoted`.
    """

    id: str
    server: str
    promoted: int


class Final(_Line, frozen=True, kw_only=True):
    """queue: a prediction in Redis once all is at rest, its events as (kind, at, data). One for every prediction in
    the accounts' listings, and for every id that the client received. `record` is empty if Redis has none. `listed`:
    the account whose list has it, or ''; None in journals that do not say so. `tag`: of the call in its input, or ''.
    """

    id: str
    record: dict[str, str]
    events: list[tuple[str, int, str]]
    output: str = ""
    listed: str | None = None
    tag: str = ""


ClientLine = Sent | Answered | Called | Followed | Heard | Visited | Listed | Seen | Batched
ServerLine = Arrived | Breaker | Claimed | Stepped
RunLine = Fault | Held | Healed | Rested | Sampled
Line = ClientLine | CogStarted | CogEnded | Spoken | Delivered | RunLine | ServerLine | Reign | Unmade | Final


PACKED = ".gz"


class Journal:
    """Several processes may append to one file, because a line is one write."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("ab", buffering=0)

    def write(self, line: Line) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Iterator[Line]:
    """Yield every whole line of a file, compressed or not. Drop a last line that a kill cut short."""
    decoder = msgspec.json.Decoder(Line)
    content = path.read_bytes()
    for line in (gzip.decompress(content) if path.suffix == PACKED else content).split(b"\n")[:-1]:
        yield decoder.decode(line)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
