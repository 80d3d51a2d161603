"""Judge whether something grows by the slope of what was seen over time."""

from collections.abc import Sequence
from itertools import combinations, pairwise
from statistics import mean, median
from typing import Final

from msgspec import Struct

MOST_PART: Final = 0.03  # of the mean, over all the time that was watched
HOUR_S: Final = 3600.0
LEAST_LOOKS: Final = 3


class Growth(Struct, frozen=True, kw_only=True):
    """`grown`: by the slope, over all of the time. Less than `allowed` counts as flat."""

    name: str
    unit: str
    mean: float
    per_hour: float
    grown: float
    allowed: float

    @property
    def is_flat(self) -> bool:
        return self.grown <= self.allowed

    def __str__(self) -> str:
        verdict = "flat" if self.is_flat else "GROWS"
        return (
            f"{verdict:5}  {self.name:24} {self.mean:12,.1f} {self.unit:4} {self.per_hour:+12,.2f} an hour, "
            f"{self.grown:+.2f} in this time (at most {self.allowed:.2f})"
        )


def growth(
    name: str,
    unit: str,
    seconds: Sequence[float],
    values: Sequence[float],
    *,
    floor: float,
    begins: Sequence[float] = (),
    warm_s: float = 0.0,
) -> Growth:
    """Take the median of the slopes between any two looks at one life, so that a moment's dip or peak counts little.
    Growth below `floor` counts as flat. Raises ValueError for no time.

    `begins`: when it was started, in order; a life is the time until the next start. So a restart hides no growth. The
    first `warm_s` of a life do not count.
    """
    starts = [*(begins or (seconds[0] - warm_s,)), float("inf")] if seconds else []
    slopes: list[float] = []
    seen: list[float] = []
    for start, end in pairwise(starts):
        life = [look for look in zip(seconds, values, strict=True) if start + warm_s <= look[0] < end]
        if len(life) >= LEAST_LOOKS:
            slopes += ((after - before) / (then - at) for (at, before), (then, after) in combinations(life, 2))
            seen += (value for _, value in life)
    if len(seen) < LEAST_LOOKS or seconds[-1] <= seconds[0]:
        raise ValueError(f"{name} was looked at {len(seen)} times: too few for a slope")
    slope, middle = median(slopes), mean(seen)
    return Growth(
        name=name,
        unit=unit,
        mean=middle,
        per_hour=slope * HOUR_S,
        grown=slope * (seconds[-1] - seconds[0]),
        allowed=max(floor, MOST_PART * middle),
    )
