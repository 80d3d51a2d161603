"""How a queue stood at a moment, and what happened in it since the moment before, as the keeper notes it.

Pure. A time without samples is one in which the queue was idle, or no keeper ran: what happened meanwhile is told by
the next sample, so that sums are right in any case.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from director.core import keys

__all__ = ("HISTORY_S", "MOST", "PERIOD_S", "Sample", "parse", "within")

PERIOD_S: Final = 10.0
HISTORY_S: Final = 3600.0
MOST: Final = int(HISTORY_S / PERIOD_S)


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


def parse(line: bytes) -> Sample:
    """One line as sample.lua writes it. A newer release may write more at its end."""
    numbers = iter([int(number) for number in line.split()])

    def per_lane() -> dict[str, int]:
        return {lane: next(numbers) for lane in keys.LANES}

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
