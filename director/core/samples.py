"""Read a queue's samples: its state at a moment, and its counts since the sample before, as the keeper notes them.
Pure. A gap means that the queue was idle or no keeper ran. The next sample has its counts, so sums are right.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from msgspec import Struct

from director.core.ids import LANES

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
