"""How a queue stood at a moment, and what happened in it since the moment before, as the keeper notes it.

Pure. A time without samples is one in which the queue was idle, or no keeper ran: what happened meanwhile is told by
the next sample, so that sums are right in any case.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from director.core.ids import LANES

PERIOD_S: Final = 10.0
HISTORY_S: Final = 3600.0
MOST: Final = int(HISTORY_S / PERIOD_S)
GAP_MS: Final = 2 * PERIOD_S * 1000


class Sample(Struct, frozen=True, kw_only=True):
    """One queue at one moment, and what happened since the sample before. Per lane where it is a mapping.

    `late`: of what waits, how much is past its lane's objective by now. `waited_ms`: of all that started, together.
    `met`, `missed`: how many starts were within their lane's objective, or not.
    """

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
        """Nothing was there and nothing had happened: there is no other sample until something does."""
        counted = (
            *self.waiting.values(),
            self.claimed,
            self.delayed,
            *self.accepted.values(),
            self.started,
            self.ended,
        )
        return not any(counted)


def parse(line: bytes) -> Sample:
    """One line as sample.lua writes it. A newer release may write more at its end."""
    numbers = iter([int(number) for number in line.split()])

    def per_lane() -> dict[str, int]:
        return {lane: next(numbers) for lane in LANES}

    return Sample(  # evaluated in this order, which is the script's
        at_ms=next(numbers),
        waiting=per_lane(),
        claimed=next(numbers),
        delayed=next(numbers),
        oldest_ms=next(numbers),
        late=per_lane(),
        accepted=per_lane(),
        started=next(numbers),
        ended=next(numbers),
        waited_ms=next(numbers),
        met=per_lane(),
        missed=per_lane(),
    )


def within(samples: Sequence[Sample], over_s: float, *, now_ms: int) -> list[Sample]:
    """Those of the last seconds, whatever their order."""
    return [sample for sample in samples if sample.at_ms > now_ms - over_s * 1000]


def arrivals_s(samples: Sequence[Sample], lane: str, over_s: float, *, now_ms: int) -> float:
    """How many came into a lane in a second, over the last seconds. `samples` in the order of time.

    What the first sample tells after a time without a keeper came during all of that time, not at its end.
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
