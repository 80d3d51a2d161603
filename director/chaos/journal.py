"""What the parties of a run write down, one JSON line at a time: the only evidence that the checker has.

Each party writes a file of its own (`client.jsonl`, `cog-0.jsonl`, `sink.jsonl`, `nemesis.jsonl`, `server.jsonl`,
`queue.jsonl`) and flushes every line, so that a killed process leaves all but its last thought. Times are milliseconds
of the one clock of this machine. The server tells times of its own clock, which may be stepped: gather.py translates
them. Nothing here is written by the code under test.

What the checker counts on:

- client: the tries of one key follow each other, each after the answer to the one before. Another body under a key that
  was used is another `plan`.
- a model server: `CogStarted` is down before the run shows anything, `CogEnded` before its answer leaves. Every item of
  an output is `{"run": <run>, "i": <n>}`, so that a write shows which run it comes from. A run that takes its server
  with it says `crashed` first.
- a reader of event streams: `Followed` once, before its first visit; then what it heard, in order. These are lines of
  the client, and once all is at rest of `readers.jsonl`: then it comes back for what it lacks.
- nemesis: a process is named by its part and number (`director-0`, `cog-0`, `api-0`), a link by its two ends
  (`director-0:redis`, `all:redis`). Director and model server of one number belong together. Kinds that end a process
  begin with `kill` or `crash`, those that freeze it with `stop`; `partition` cuts a link. A fault ends when what it hit
  works again: after a kill, when the next process is ready. `pid` is the process that was hit. A `clock_step` of the
  server's clock has its seconds as detail, and is written down before it is done.
- the server: its own log of changes, read once all is at rest (server_log.py). `number` is a line's place in it.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec
from msgspec import Struct


class Sent(Struct, frozen=True, kw_only=True, tag="sent"):
    """client: a request is about to leave. `key`: its idempotency key; the same for every try of one submit.

    `plan`: what the caller wants of it (see load.py). `start_by_s`, `cancel_after_s`: what it asked for, if anything.
    """

    at: int
    key: str
    action: Literal["create", "cancel"]
    tenant: str = ""
    model: str = ""
    webhook: bool = False
    plan: str = ""
    start_by_s: int = 0
    cancel_after_s: int = 0


class Answered(Struct, frozen=True, kw_only=True, tag="answered"):
    """client: the answer to it. `status` 0: none came. `id` where the body named one; `shown` its status."""

    at: int
    key: str
    action: Literal["create", "cancel"]
    status: int
    id: str = ""
    shown: str = ""
    replayed: bool = False


class Followed(Struct, frozen=True, kw_only=True, tag="followed"):
    """a reader: it is going to follow this prediction of this tenant, to its end."""

    at: int
    id: str
    tenant: int


class Heard(Struct, frozen=True, kw_only=True, tag="heard"):
    """a reader: an event of the stream, with its id as `mark`; or a comment that matters, which has none."""

    at: int
    id: str
    event: str
    mark: str = ""
    data: str = ""


class Visited(Struct, frozen=True, kw_only=True, tag="visited"):
    """a reader: it came at that time, after the event of that mark. `status` 0: no answer came.

    `end`: it heard `done`; the stream broke; it ended as if it were whole; or the reader left.
    """

    at: int
    id: str
    after: str
    status: int
    end: Literal["done", "broken", "whole", "left"]


class Listed(Struct, frozen=True, kw_only=True, tag="listed"):
    """a reader: the prediction's events as (number, type), page after page, once all is at rest."""

    at: int
    id: str
    events: list[tuple[int, str]]


class CogStarted(Struct, frozen=True, kw_only=True, tag="cog_started"):
    """a model server: a run began. `run` is unique for each run; `server` and `slot` say where."""

    at: int
    id: str
    run: str
    server: str
    pid: int


class CogEnded(Struct, frozen=True, kw_only=True, tag="cog_ended"):
    """a model server: that run ended, as it told whoever asked. Missing after a kill.

    `asked`: when it was told to stop, 0 for never.
    """

    at: int
    id: str
    run: str
    outcome: Literal["succeeded", "failed", "canceled", "crashed"]
    asked: int = 0


class Delivered(Struct, frozen=True, kw_only=True, tag="delivered"):
    """sink: a webhook arrived. `answered`: the status that the sink gave. `signed`: its signature was good."""

    at: int
    id: str
    webhook_id: str
    status: str
    answered: int
    signed: bool


class Fault(Struct, frozen=True, kw_only=True, tag="fault"):
    """nemesis: a fault begins or ends. `kind` as in faults.py, `target` the name of the process or link."""

    at: int
    kind: str
    target: str
    phase: Literal["begin", "end"]
    detail: str = ""
    pid: int = 0


class Healed(Struct, frozen=True, kw_only=True, tag="healed"):
    """nemesis: the load is over, every fault is mended, every process runs: from here on things must come to rest."""

    at: int


class Arrived(Struct, frozen=True, kw_only=True, tag="arrived"):
    """the server: a prediction was accepted. `at`, as the record has it."""

    at: int
    number: int
    id: str
    tenant: str
    queue: str
    lane: str


class Claimed(Struct, frozen=True, kw_only=True, tag="claimed"):
    """the server: it was handed out. `at`, as the record has it.

    `delivered`: when the server itself says that the entry was read, out of `stream`; 0 and -1 where none was.
    """

    at: int
    number: int
    id: str
    stream: int
    holder: str
    delivered: int


class Breaker(Struct, frozen=True, kw_only=True, tag="breaker"):
    """the server: from now on a queue hands nothing out, but for one at a time that tries; or it does again."""

    at: int
    number: int
    queue: str
    is_open: bool


class Final(Struct, frozen=True, kw_only=True, tag="final"):
    """queue: a prediction as Redis has it once all is at rest: its record, its events as (kind, at, data), its output.

    Every prediction that the accounts' lists name, and every one that the client was told of; `record` is empty where
    there is none. Written by rest.py.
    """

    at: int
    id: str
    record: dict[str, str]
    events: list[tuple[str, int, str]]
    output: str = ""


Line = (
    Sent
    | Answered
    | Followed
    | Heard
    | Visited
    | Listed
    | CogStarted
    | CogEnded
    | Delivered
    | Fault
    | Healed
    | Arrived
    | Claimed
    | Breaker
    | Final
)


class Journal:
    """One party's file, appended to. Several processes may append to one file: a line is one write."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("ab", buffering=0)

    def write(self, line: Line) -> None:
        """Put a line down, now."""
        self._file.write(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Iterator[Line]:
    """Every whole line of a file; a last one that was cut by a kill is left out."""
    decoder = msgspec.json.Decoder(Line)
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield decoder.decode(line)


def now_ms() -> int:
    """The clock that all parties share."""
    return time.time_ns() // 1_000_000
