"""How numbers of a queue move: starts in a minute, and a line of blocks for what waited lately. Pure."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from director.core.ids import QueueName
    from director.core.samples import Sample
    from director.diagnosis.queue_view import QueueView

__all__ = ("Rates", "blocks", "started_per_min", "waited")

WINDOW_S: Final = 60.0
LEAST_S: Final = 5.0  # of less, a rate says little
BLOCKS: Final = "▁▂▃▄▅▆▇█"
TREND_S: Final = 600.0


class Rates:
    """Starts in a minute, from the counters that were seen within the last one."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[QueueName, int]]] = deque()

    def note(self, at_s: float, queues: "Iterable[QueueView]") -> None:
        """What the counters say now."""
        self._looks.append((at_s, {each.name: each.started for each in queues}))
        while at_s - self._looks[0][0] > WINDOW_S:
            self._looks.popleft()

    def per_min(self, queue: "QueueName") -> float | None:
        """None while too little was seen."""
        seen = [(at_s, started[queue]) for at_s, started in self._looks if queue in started]
        if not seen or seen[-1][0] - seen[0][0] < LEAST_S:
            return None
        began_s, ended_s = seen[0][0], seen[-1][0]
        # one that was removed and made again counts from nought
        return sum(max(0, now - was) for (_, was), (_, now) in pairwise(seen)) * 60 / (ended_s - began_s)


def started_per_min(samples: "Sequence[Sample]", *, now_ms: int) -> float | None:
    """The same from what a keeper noted; None where it noted nothing in that time."""
    lately = [sample.started for sample in samples if sample.at_ms > now_ms - WINDOW_S * 1000]
    return float(sum(lately)) if lately else None


def waited(samples: "Sequence[Sample]", *, now_ms: int, now: int, parts: int) -> list[int]:
    """The most that waited in each part of the last ten minutes. No sample, no work; the last part ends `now`."""
    found = [0] * parts
    for sample in samples:
        at = parts - 1 - int((now_ms - sample.at_ms) / 1000 / TREND_S * parts)
        if 0 <= at < parts:
            found[at] = max(found[at], sum(sample.waiting.values()))
    return [*found[:-1], max(found[-1], now)]


def blocks(numbers: Sequence[int]) -> str:
    """A line of blocks, the highest for the largest of them; nought is the lowest alone."""
    most = max(numbers, default=0)
    return "".join(BLOCKS[-(-number * (len(BLOCKS) - 1) // most) if most else 0] for number in numbers)
