"""Compare ours with a reference by the median of paired rounds, with its interval."""

import math
from collections.abc import Sequence
from statistics import mean, median, stdev
from typing import Final

from msgspec import Struct

# two-sided 95 % of Student's t, by degrees of freedom; beyond them the normal's
STUDENT: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
NORMAL: Final = 1.96


class Ratio(Struct, frozen=True, kw_only=True):
    """The median of the rounds' ratios, and the interval that holds their true mean in 19 of 20 runs."""

    median: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


def ratio(ours: Sequence[float], reference: Sequence[float]) -> Ratio:
    """Raises ValueError for rounds that are no pairs or a value that is not above 0."""
    if not ours or len(ours) != len(reference):
        raise ValueError(f"{len(ours)} rounds of ours and {len(reference)} of the reference are no pairs")
    if min(*ours, *reference) <= 0:
        raise ValueError("a ratio needs values above 0")
    logs = [math.log(mine / other) for mine, other in zip(ours, reference, strict=True)]
    half = _half_interval(logs)
    return Ratio(
        median=math.exp(median(logs)),
        low=math.exp(mean(logs) - half),
        high=math.exp(mean(logs) + half),
        rounds=len(logs),
    )


def interval(values: Sequence[float]) -> Ratio:
    return ratio(values, [1.0] * len(values))


def spread(values: Sequence[float]) -> float:
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def _half_interval(logs: Sequence[float]) -> float:
    if len(logs) < 2:
        return math.inf
    freedom = len(logs) - 1
    student = STUDENT[freedom - 1] if freedom <= len(STUDENT) else NORMAL
    return student * stdev(logs) / math.sqrt(len(logs))
