"""Count how predictions of a queue ended, how long they waited and ran, and how full it was, by steps of time. Pure.

Four steps, each finer one for a shorter time. Durations are kept as counts in buckets whose bounds grow by a quarter.
So steps can be merged, and a quantile is within an eighth of the truth.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from msgspec import Struct

RATIO: Final = 1.25
# Buckets in a line of one queue, and of all together. Durations that spread more widely get wider buckets.
MOST_BUCKETS: Final = 16
MOST_OF_ALL: Final = 48
Range = Literal["15m", "1h", "24h", "7d"]


class Step(Struct, frozen=True):
    """One line of the history covers `seconds`; the newest `kept` lines of a queue are kept."""

    name: str
    seconds: int
    kept: int

    @property
    def covers_s(self) -> int:
        return self.seconds * self.kept

    def start(self, at_s: float) -> int:
        return int(at_s // self.seconds) * self.seconds


STEPS: Final = (Step("10s", 10, 90), Step("1m", 60, 60), Step("15m", 900, 96), Step("2h", 7200, 84))
RANGES: Final[Mapping[Range, Step]] = {"15m": STEPS[0], "1h": STEPS[1], "24h": STEPS[2], "7d": STEPS[3]}


class Point(Struct, frozen=True, kw_only=True):
    """The ends in the step that begins at `at_s`. `waits` are of first starts, `runs` of what succeeded or failed."""

    at_s: int
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    waits: Mapping[int, int] = {}
    runs: Mapping[int, int] = {}

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed + self.canceled


class Level(Struct, frozen=True, kw_only=True):
    """How full it was in the step that begins at `at_s`: the most that waited, the seconds that slots were in use, and
    the most slots. Of all together: slots of the queues that had work.
    """

    at_s: int
    waiting: int = 0
    busy_s: int = 0
    slots: int = 0


def bucket(ms: float) -> int:
    return max(0, math.ceil(math.log(ms, RATIO))) if ms > 1 else 0


def quantile_s(counts: Mapping[int, int], part: float) -> float | None:
    """Return the seconds that `part` of the durations do not exceed, or None without any."""
    left = part * sum(counts.values())
    for number, count in sorted(counts.items()):
        left -= count
        if left <= 0:
            return RATIO ** (number - 0.5) / 1000 if number else 0.0
    return None


def thin(counts: Mapping[int, int], most: int) -> Mapping[int, int]:
    width = 1
    while len({number // width for number in counts}) > most:
        width *= 2
    if width == 1:
        return counts
    found = Counter[int]()
    for number, count in counts.items():
        found[number // width * width + width // 2] += count
    return found


def merge(points: Iterable[Point], *, at_s: int) -> Point:
    succeeded = failed = canceled = 0
    waits, runs = Counter[int](), Counter[int]()
    for one in points:
        succeeded, failed, canceled = succeeded + one.succeeded, failed + one.failed, canceled + one.canceled
        waits.update(one.waits)
        runs.update(one.runs)
    return Point(at_s=at_s, succeeded=succeeded, failed=failed, canceled=canceled, waits=waits, runs=runs)


def steps_of(points: Iterable[Point], step: Step) -> list[Point]:
    """Merge finer points into the steps that they belong to, oldest first."""
    found: dict[int, list[Point]] = {}
    for one in points:
        found.setdefault(step.start(one.at_s), []).append(one)
    return [merge(some, at_s=at_s) for at_s, some in sorted(found.items())]


def levels_of(levels: Iterable[Level], step: Step) -> list[Level]:
    """Merge finer levels into the steps that they belong to, oldest first. A step without one was idle."""
    found: dict[int, list[Level]] = {}
    for one in levels:
        found.setdefault(step.start(one.at_s), []).append(one)
    return [
        Level(
            at_s=at_s,
            waiting=max(one.waiting for one in some),
            busy_s=sum(one.busy_s for one in some),
            slots=max(one.slots for one in some),
        )
        for at_s, some in sorted(found.items())
    ]


def level_line(level: Level) -> str:
    return f"{level.at_s} {level.waiting} {level.busy_s} {level.slots}"


def parse_level(line: bytes) -> Level:
    at_s, waiting, busy_s, slots = map(int, line.split(b" ")[:4])
    return Level(at_s=at_s, waiting=waiting, busy_s=busy_s, slots=slots)


def line_of(point: Point, *, most: int = MOST_BUCKETS) -> str:
    counts = (_text(thin(point.waits, most)), _text(thin(point.runs, most)))
    return " ".join(map(str, (point.at_s, point.succeeded, point.failed, point.canceled, *counts)))


def parse(line: bytes) -> Point:
    at_s, succeeded, failed, canceled, waits, runs = line.decode().split(" ")
    return Point(
        at_s=int(at_s),
        succeeded=int(succeeded),
        failed=int(failed),
        canceled=int(canceled),
        waits=_counts(waits),
        runs=_counts(runs),
    )


def _text(counts: Mapping[int, int]) -> str:
    return ",".join(f"{number}:{count}" for number, count in sorted(counts.items())) or "-"


def _counts(text: str) -> dict[int, int]:
    pairs = (pair.split(":") for pair in text.split(",") if text != "-")
    return {int(number): int(count) for number, count in pairs}
