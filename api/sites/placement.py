"""In which order sites are tried for new work. Pure: what is known of each goes in, and names come out.

A site that is away, is told to take nothing new, or does not have the model is not asked about here. Where nothing
would start, by what it told last, is tried last, and never left out: a pool that was scaled to zero starts by what
waits for it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, Literal

from msgspec import Struct

Placement = Literal["random", "least-wait"]

UNKNOWN_MS: Final = 1_000.0  # a run of a model that has finished none: then whose queue is shorter decides


class Look(Struct, frozen=True, kw_only=True):
    """What a queue told lately. `service_ms`: of one run, 0 while nobody knows. `starts`: it is not held back."""

    waiting: int
    running: int
    slots: int
    service_ms: float
    starts: bool


class Candidate(Struct, frozen=True, kw_only=True):
    """One site that could have it. `since`: what we placed there after it told; `look`: None where it told nothing."""

    name: str
    weight: float
    look: Look | None
    since: int = 0

    @property
    def wait_ms(self) -> float:
        """About how long the next one would wait; endless where nothing starts."""
        look = self.look
        if look is None or not look.starts or not look.slots:
            return math.inf
        ahead = look.waiting + look.running + self.since - look.slots + 1
        return max(0, ahead) * (look.service_ms or UNKNOWN_MS) / look.slots


def in_order(candidates: Sequence[Candidate], placement: Placement, draw: Callable[[], float]) -> list[str]:
    """All of them, the best first. `draw`: from 0 up to 1, anew for each; equals are drawn by their weight."""
    lots = {each.name: -math.log(1 - draw()) / each.weight for each in candidates}
    waits = {each.name: each.wait_ms for each in candidates}

    def rank(name: str) -> tuple[float, float]:
        is_stuck = math.isinf(waits[name])
        return (waits[name] if placement == "least-wait" else float(is_stuck)), lots[name]

    return sorted(lots, key=rank)
