"""Compute figures of a set of values: Jain's index and percentiles. Pure."""

import math
from collections.abc import Iterable
from typing import TypeVar

Number = TypeVar("Number", bound=float)


def jain(shares: Iterable[float]) -> float:
    """Return Jain's index: 1 if all shares are equal, 1/n if one has everything, 0 if all are zero."""
    values = list(shares)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0


def percentile(values: Iterable[Number], share: float) -> Number:
    """Return a percentile by nearest rank, which is always one of the values."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]
