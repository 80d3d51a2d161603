"""How near each account came to a fair share of the slots, bin by bin of the time that was played.

Pure. Who sends little gets little of the slots, and that is fair: so what an account got is compared with what it could
have had, if the slots had been filled by weights with what was there to run (max-min: nobody is given more than it can
use, and what one leaves goes to the others). Jain's index is made of these ratios.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from director.core.figures import jain
from director.simulate.trace import Trace

__all__ = ("fair_shares", "fairness")

MOST_BINS: Final = 30
LEAST_RUNS: Final = 20  # a bin lasts as long as so many runs, since a run is not cut where a bin ends


class Had(Struct):
    """Of one account in one bin, in slot-milliseconds: what it could have used, and what it was given."""

    wanted: int = 0
    given: int = 0


def fairness(
    trace: Trace, started_ms: "array[int]", *, weights: Sequence[float], limits: Sequence[int | None], slots: int
) -> float | None:
    """Jain's index over accounts, as the mean of the bins in which more was to run than the slots could; None: none.

    `weights` and `limits` (most that run) by account.
    """
    runs = [n for n in range(len(trace)) if started_ms[n] >= 0]
    if not runs:
        return None
    span = max(started_ms[n] + trace.run_ms[n] for n in runs) + 1
    mean = max(1.0, sum(trace.run_ms[n] for n in runs) / len(runs))
    width = -(-span // max(1, min(MOST_BINS, int(span / (LEAST_RUNS * mean)))))
    bins: list[dict[int, Had]] = [{} for _ in range(-(-span // width))]
    for n in runs:
        _note(bins, width, trace.account[n], at=trace.at_ms[n], start=started_ms[n], run=trace.run_ms[n])
    found = [
        index
        for each in bins
        if (index := _index(each, weights=weights, limits=limits, width=width, slots=slots)) is not None
    ]
    return sum(found) / len(found) if found else None


def _note(bins: Sequence[dict[int, Had]], width: int, account: int, *, at: int, start: int, run: int) -> None:
    """One prediction, in each bin from its arrival to its end."""
    for number in range(at // width, (start + run) // width + 1):
        begin, end = number * width, (number + 1) * width
        had = bins[number].setdefault(account, Had())
        left = run - max(0, begin - start)
        had.wanted += min(left, end - max(at, begin))
        had.given += max(0, min(end, start + run) - max(begin, start))


def _index(
    had: Mapping[int, Had], *, weights: Sequence[float], limits: Sequence[int | None], width: int, slots: int
) -> float | None:
    wanted = {
        account: float(min(each.wanted, (limits[account] or slots) * width))
        for account, each in had.items()
        if each.wanted > 0
    }
    if len(wanted) < 2 or sum(wanted.values()) <= slots * width:
        return None
    fair = fair_shares(wanted, weights=weights, capacity=slots * width)
    return jain(had[account].given / share for account, share in fair.items())


def fair_shares(wanted: Mapping[int, float], *, weights: Sequence[float], capacity: float) -> dict[int, float]:
    """Max-min: the capacity by weights, where nobody gets more than it wants."""
    shares, left, weight = {}, capacity, sum(weights[account] for account in wanted)
    for account in sorted(wanted, key=lambda account: (wanted[account] / weights[account], account)):
        shares[account] = min(wanted[account], left * weights[account] / weight)
        left -= shares[account]
        weight -= weights[account]
    return shares
