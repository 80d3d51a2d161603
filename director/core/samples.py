"""Read a queue's samples: its state at a moment, and its counts since the sample before, as the keeper notes them. Say
by them how its objectives are kept. Pure.

A gap means that the queue was idle or no keeper ran. The next sample has its counts, so sums are right.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from msgspec import Struct

from director.core.ids import LANES
from director.core.policy import Lane, Objective, Objectives

PERIOD_S: Final = 10.0
HISTORY_S: Final = 3600.0
MOST: Final = int(HISTORY_S / PERIOD_S)
GAP_MS: Final = 2 * PERIOD_S * 1000


class Sample(Struct, frozen=True, kw_only=True):
    """One queue at one moment, and its counts since the sample before. Mappings are per lane.

    `late`: waiting predictions that are past their lane's objective. `waited_ms`: sum over all starts. `met`, `missed`:
    starts within their lane's objective, or not.
    """

    # in the order of the line that sample.lua writes
    at_ms: int
    waiting: Mapping[str, int]
    claimed: int
    delayed: int
    oldest_ms: int
    late: Mapping[str, int]
    accepted: Mapping[str, int]
    started: int
    ended: int
    waited_ms: int
    met: Mapping[str, int]
    missed: Mapping[str, int]

    @property
    def is_idle(self) -> bool:
        counted = (self.claimed, self.delayed, self.started, self.ended)
        return not any((*counted, *self.waiting.values(), *self.accepted.values()))


PER_LANE: Final = frozenset({"waiting", "late", "accepted", "met", "missed"})


def parse(line: bytes) -> Sample:
    numbers = map(int, line.split())
    fields: dict[str, Any] = {}
    for name in Sample.__struct_fields__:
        fields[name] = {lane: next(numbers) for lane in LANES} if name in PER_LANE else next(numbers)
    return Sample(**fields)


def within(samples: Sequence[Sample], over_s: float, *, now_ms: int) -> list[Sample]:
    return [sample for sample in samples if sample.at_ms > now_ms - over_s * 1000]


def arrivals_s(samples: Sequence[Sample], lane: str, over_s: float, *, now_ms: int) -> float:
    """Return the predictions per second that came into a lane over the last `over_s`. `samples` are in order of time.
    The first sample after a gap without a keeper counts arrivals of the whole gap, so they are spread over it.
    """
    since_ms = now_ms - over_s * 1000
    came = float(samples[0].accepted[lane]) if samples and samples[0].at_ms > since_ms else 0.0
    for before, sample in pairwise(samples):
        if sample.at_ms <= since_ms:
            continue
        took_ms = sample.at_ms - before.at_ms
        is_spread = took_ms > GAP_MS and not before.is_idle
        share = min(1.0, (sample.at_ms - since_ms) / took_ms) if is_spread else 1.0
        came += sample.accepted[lane] * share
    return came / over_s


# A burn rate says how fast the misses that an objective allows are used: 1 misses exactly the allowed share, 10 uses an
# hour's allowance in six minutes. Two windows separate a blip from a fault: an alert waits until both are high.

WINDOWS: Final[Mapping[str, float]] = {"5m": 300.0, "1h": 3600.0}
# The last sample's late predictions still count as late, unless the sample is older than this
FRESH_S: Final = 6 * PERIOD_S


class Burn(Struct, frozen=True, kw_only=True):
    """The result of an objective over a window. `missed` includes predictions that wait and are late already."""

    met: int
    missed: int
    rate: float


Burns = Mapping[Lane, Mapping[str, Burn]]
"""By lane and window."""


def burn(samples: Sequence[Sample], lane: Lane, objective: Objective, *, over_s: float, now_ms: int) -> Burn:
    """Return the burn of one lane over the last `over_s` seconds. `samples` are in the order of time."""
    recent = within(samples, over_s, now_ms=now_ms)
    met, missed = sum(sample.met[lane] for sample in recent), sum(sample.missed[lane] for sample in recent)
    # if nothing starts, no start would ever count as missed
    missed += sum(sample.late[lane] for sample in within(samples[-1:], FRESH_S, now_ms=now_ms))
    share = missed / (met + missed) if missed else 0.0
    return Burn(met=met, missed=missed, rate=share / (1 - objective.share))


def burns(samples: Sequence[Sample], objectives: Objectives, *, now_ms: int) -> Burns:
    return {
        lane: {name: burn(samples, lane, each, over_s=over_s, now_ms=now_ms) for name, over_s in WINDOWS.items()}
        for lane, each in objectives.items()
    }
