"""Judge whether something grows by the slope of what was seen over time."""

from collections.abc import Sequence
from statistics import linear_regression, mean
from typing import Final

from msgspec import Struct

MOST_PART: Final = 0.03  # of the mean, over all the time that was watched
HOUR_S: Final = 3600.0


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


def growth(name: str, unit: str, seconds: Sequence[float], values: Sequence[float], *, floor: float) -> Growth:
    """Fit a line by least squares. Growth below `floor` counts as flat. Raises ValueError for no time."""
    if len(seconds) < 3 or seconds[-1] <= seconds[0]:
        raise ValueError(f"{name} was looked at {len(seconds)} times: too few for a slope")
    slope = linear_regression(seconds, values).slope
    middle = mean(values)
    return Growth(
        name=name,
        unit=unit,
        mean=middle,
        per_hour=slope * HOUR_S,
        grown=slope * (seconds[-1] - seconds[0]),
        allowed=max(floor, MOST_PART * middle),
    )
