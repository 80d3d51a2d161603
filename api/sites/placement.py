"""Order the sites that may take new work, best first. Pure.

The caller leaves out sites that are away, take nothing new, or lack the model. A site where nothing would start, by its
latest report, is tried last and never left out: a pool that was scaled to zero starts because work waits for it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, Literal

from msgspec import Struct

Placement = Literal["random", "least-wait"]

UNKNOWN_MS: Final = 1_000.0  # for a model without finished runs: then the shorter queue decides


class Look(Struct, frozen=True, kw_only=True):
    """A queue's latest report. `service_ms`: time of one run, 0 while unknown. `starts`: the queue is not held back."""

    waiting: int
    running: int
    slots: int
    service_ms: float
    starts: bool


class Candidate(Struct, frozen=True, kw_only=True):
    """A site that could take the work. `since`: predictions placed there since the report. `look`: None without a
    report.
    """

    name: str
    weight: float
    look: Look | None
    since: int = 0

    @property
    def wait_ms(self) -> float:
        """Estimate how long the next prediction would wait, in ms. Infinite where nothing starts."""
        look = self.look
        if look is None or not look.starts or not look.slots:
            return math.inf
        ahead = look.waiting + look.running + self.since - look.slots + 1
        return max(0, ahead) * (look.service_ms or UNKNOWN_MS) / look.slots


def in_order(candidates: Sequence[Candidate], placement: Placement, draw: Callable[[], float]) -> list[str]:
    """Return the names of all candidates, best first.

    `draw` returns a new random number in [0, 1) per call. Candidates with equal waits are ordered at random, by weight.
    """
    lots = {each.name: -math.log(1 - draw()) / each.weight for each in candidates}
    waits = {each.name: each.wait_ms for each in candidates}

    def rank(name: str) -> tuple[float, float]:
        is_stuck = math.isinf(waits[name])
        return (waits[name] if placement == "least-wait" else float(is_stuck)), lots[name]

    return sorted(lots, key=rank)
