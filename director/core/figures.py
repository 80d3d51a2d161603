"""Compute figures of a set of values: Jain's index and percentiles. Pure."""

import math
from collections.abc import Iterable


def jain(shares: Iterable[float]) -> float:
    """Jain's index: 1 where all have the same, 1/n where one has everything, 0 where nobody has anything."""
    values = list(shares)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0


def percentile(values: Iterable[float], share: float) -> float:
    """Nearest rank: one of the values."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]
