"""Read the traffic of a queue from a trace, or from the file that `director audit` writes. An error names its line.
Half a line at the end is still being written, and is left out.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from director.core.errors import SettingsError
from director.core.ids import LANES
from director.core.policy import Lane
from director.lab.simulate.trace import LEFT_OUT, Builder, Trace

LONGEST_S: Final = 366 * 86400.0
LATEST_MS: Final = 10**14  # the year 5138
LONGEST_LINE: Final = 64 * 1024
STEP: Final = re.compile(rb'"kind"\s*:')  # in every line of a log, and in no line of a trace

Account = Annotated[str, Meta(min_length=1, max_length=256)]
T = TypeVar("T")
Lines = Iterable[tuple[int, bytes]]


class Line(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a trace. `run_s`: how long the prediction holds a slot. `model` is only read beside `--pool`."""

    at_s: Annotated[float, Meta(ge=0, le=LONGEST_S)]
    run_s: Annotated[float, Meta(ge=0, le=LONGEST_S)]
    account: Account = "default"
    lane: Lane = "normal"
    cost: Annotated[float, Meta(gt=0, le=1_000_000)] = 1.0
    model: Annotated[str, Meta(max_length=256)] = ""


class Step(Struct, frozen=True, kw_only=True):
    """One line of an audit log, with the fields that are needed here. `count`: the number of missed entries."""

    kind: str
    entry: Annotated[str, Meta(pattern=r"^[0-9]{1,20}-[0-9]{1,20}$")] = "0-0"
    partition: int = -1
    at: Annotated[int, Meta(ge=0, le=LATEST_MS)] = 0
    id: str = ""
    queue: str = ""
    account: str = ""
    detail: str = ""
    count: int = 0


def read(path: Path, *, queue: str = "") -> Trace:
    """Read a trace or an audit log. `queue` chooses one of a log with several. Raises SettingsError."""
    try:
        with path.open("rb") as file:
            lines = _lines(file)
            first = list(islice(lines, 1))  # a pipe cannot be read twice
            is_log = bool(first and STEP.search(first[0][1]))
            every = chain(first, lines)
            return _of_log(every, queue) if is_log else _of_trace(every)
    except OSError as exc:
        raise SettingsError(f"{path} cannot be read: {exc.strerror}.") from exc
    except SettingsError as exc:
        raise SettingsError(f"{path}: {exc}") from exc


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE:
            raise SettingsError(f"line {number} is longer than {LONGEST_LINE // 1024} KiB.")
        if line.strip():
            yield number, line


def _decode(lines: Lines, decode: Callable[[bytes], T]) -> Iterator[T]:
    for number, line in lines:
        try:
            yield decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            if number > 1 and not line.endswith(b"\n"):
                return
            raise SettingsError(f"line {number}: {exc}.") from exc


def _of_trace(lines: Lines) -> Trace:
    builder = Builder()
    for line in _decode(lines, msgspec.json.Decoder(Line).decode):
        at_ms, run_ms = round(line.at_s * 1000), round(line.run_s * 1000)
        builder.add(at_ms=at_ms, account=line.account, lane=line.lane, cost=line.cost, run_ms=run_ms, model=line.model)
    return builder.build()


def _of_log(lines: Lines, queue: str) -> Trace:
    log = _Log(queue)
    for step in _decode(lines, msgspec.json.Decoder(Step).decode):
        log.add(step)
    return log.build()


class Open(Struct):
    """A prediction that has not ended: when its claim began, and how long it was claimed before."""

    number: int
    since: int | None = None
    held_ms: int = 0
    was_claimed: bool = False

    def release(self, at: int) -> None:
        if self.since is not None:
            self.held_ms += max(0, at - self.since)
        self.since = None


class _Log:
    def __init__(self, queue: str) -> None:
        self._asked = queue
        self._seen = ""
        self._builder = Builder()
        self._open: dict[str, Open] = {}
        self._last: dict[int, list[int]] = {}
        self._missed = 0

    def add(self, step: Step) -> None:
        if step.kind == "missed":
            self._missed += step.count
            return
        place = [int(part) for part in step.entry.split("-")]
        if place <= self._last.get(step.partition, []):
            return  # an entry may come twice
        self._last[step.partition] = place
        if step.kind == "accepted":
            self._accept(step)
        elif (known := self._open.get(step.id)) is not None:
            self._follow(known, step)

    def build(self) -> Trace:
        if self._asked and not self._seen:
            raise SettingsError(f"it has no prediction of the queue {self._asked}.")
        return self._builder.build(missed=self._missed)

    def _accept(self, step: Step) -> None:
        if self._asked and step.queue != self._asked:
            return
        if self._seen and step.queue != self._seen:
            raise SettingsError(f"it has several queues, {self._seen} and {step.queue} too: choose one with --queue.")
        self._seen = step.queue
        lane = step.detail if step.detail in LANES else "normal"
        self._open[step.id] = Open(self._builder.add(at_ms=step.at, account=step.account, lane=lane))

    def _follow(self, known: Open, step: Step) -> None:
        if step.kind in ("claimed", "retried", "released", "ended"):
            known.release(step.at)
        if step.kind == "claimed":
            known.since, known.was_claimed = step.at, True
        elif step.kind in ("moved", "ended"):  # moved to another queue, where the rest happened
            has_run = step.kind == "ended" and known.was_claimed
            self._builder.ran(known.number, known.held_ms if has_run else LEFT_OUT)
            del self._open[step.id]
